"""The gate on a machine that exists: what to expect of it, the run, and what follows from its results."""

from __future__ import annotations

import datetime
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from images import builds, bundle, gate
from images.errors import ExitCode, UserError
from images.manifest.documents import Release
from images.manifest.resolve import read_record, read_release
from images.manifest.store import NotFound, Store, open_store
from images.manifest.validations import validated
from images.settings import Settings
from images.validate import host as hosts
from images.validate.host import Address, Facts, Host
from validation.boot_checks import image as machine_image

#: What must have passed before a GPU family counts as validated; everything else must not have failed.
MUST_PASS = ("gpu.count", "gpu.driver", "gpu.kernel_log", "gpu.memory", "dcgm.diag")

Note = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What the user asked for. ``release`` is a digest; ``gpus`` how many there should be (None: as the
    machine's type says); ``tier`` the highest tier to run."""

    address: Address
    release: str | None = None
    diag_level: int = 1
    tier: str = "nvswitch"
    gpus: int | None = None
    user_config: Path | None = None
    identity: Path | None = None


@dataclass
class Outcome:
    """What came out. ``verdict`` is of the machine: healthy, degraded, unhealthy or unknown.

    ``recorded`` is GPU family -> statement, ``not_recorded`` says why there is none.
    """

    host: str
    verdict: str
    reason: str
    image: str
    release: str | None
    level: str
    checks: list[dict[str, Any]]
    evidence: Path
    degraded: list[str] = field(default_factory=list)
    gpus: dict[str, int] = field(default_factory=dict)
    recorded: dict[str, str] = field(default_factory=dict)
    not_recorded: str | None = None

    @property
    def code(self) -> ExitCode:
        """The command's exit code."""
        return {
            "healthy": ExitCode.DONE,
            "degraded": ExitCode.DONE,
            "unhealthy": ExitCode.FAILED,
        }.get(self.verdict, ExitCode.NOTHING)


def validate(options: Options, settings: Settings, *, actor: str, note: Note) -> Outcome:
    """Judges the machine; with a release, records what was validated.

    Raises ``UserError``: 2 for a release that the machine does not run or a machine that cannot be judged,
    3 when it cannot be reached or the release is not in the manifest.
    """
    store = open_store(settings.manifest)
    wanted = read_release(store, options.release) if options.release else None
    now = datetime.datetime.now(datetime.UTC)
    name = re.sub(r"[^A-Za-z0-9.-]", "_", options.address.host)
    folder = settings.build_dir / f"validate-{name}-{now:%Y%m%dT%H%M%S.%fZ}"
    with tempfile.TemporaryDirectory(prefix="validate-", dir=builds.short_folder()) as name_:
        temporary = Path(name_)
        config = temporary / "ssh_config"
        hosts.write_config(
            config,
            user_config=options.user_config,
            identity=options.identity,
            control=temporary / "ssh",
        )
        host = Host(options.address, config)
        note("connecting")
        facts = host.look()
        about = _image_json(host, facts)
        digest, release = _release(store, options, wanted, about)
        folder.mkdir(parents=True)
        expected = expectation(release, about, options)
        file = folder / "expected.json"
        file.write_text(json.dumps(expected, indent=2, sort_keys=True) + "\n")
        image = _words(about, digest)
        with host.tools(bundle.collect(), sudo=facts.sudo) as tools:
            note(f"gate, DCGM level {options.diag_level}")
            document = gate.run_suite(
                phase="host",
                expected_file=file,
                results=folder / "gate-host.json",
                image=image,
                machine=options.address.url,
                log=folder / "gate.log",
                ssh_config=config,
                host=options.address.url,
                sudo=facts.sudo,
                options=[f"--tools={tools}", f"--tier={options.tier}", f"--outputs={folder / 'outputs'}"],
            )
        host.close()
    verdict, reason = judge(document)
    outcome = Outcome(
        host=options.address.url,
        verdict=verdict,
        reason=reason,
        image=image,
        release=digest,
        level=document["level"],
        checks=document["checks"],
        evidence=folder,
        degraded=_degraded(document),
        gpus=document.get("gpus") or {},
    )
    if options.release:
        record(store, outcome, options.release, document, actor=actor)
    return outcome


def judge(document: Mapping[str, Any]) -> tuple[str, str]:
    """The verdict on the machine and the reason, from the results of the gate."""
    results = [check["result"] for check in document["checks"]]
    counts = {word: results.count(word) for word in ("fail", "unknown", "not_run", "pass")}
    ran = len(results) - counts["not_run"]
    also = f"; {counts['not_run']} not run" if counts["not_run"] else ""
    if counts["fail"]:
        return "unhealthy", f"{counts['fail']} of {ran} checks failed{also}"
    if counts["unknown"]:
        return "unknown", f"{counts['unknown']} of {ran} checks cannot tell{also}"
    if not counts["pass"]:
        return "unknown", "no check applied"
    held_back = _degraded(document)
    if held_back:
        return "degraded", f"{counts['pass']} of {ran} checks passed, and: {held_back[0]}{also}"
    return "healthy", f"{counts['pass']} of {ran} checks passed{also}"


def expectation(release: Release | None, about: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """``expected.json`` of this machine. What no release and no image says is left out: then the checks that
    ask for it are not run."""
    document: dict[str, Any] = {
        "schema": "gpu-image/expected/v1",
        "boots": [],
        "ours": bool(about),
        "gpu": {"count": options.gpus, "diag_level": options.diag_level, "driver": about.get("driver")},
    }
    if about:
        document["services"] = list(about.get("services") or [])
    if not release:
        return document
    document |= {
        "image": {
            "family": release.family,
            "version": release.version,
            "build_id": release.build.id,
            "cloud": release.cloud,
            "arch": release.arch,
            "lock_digest": release.build.lock_digest,
        },
        "os": {"id": release.os.id, "version": release.os.version},
        "kernel": {"release": release.os.kernel},
        "masked_units": list(gate.MASKED_UNITS),
        "bundle": {
            "digest": release.boot_checks.bundle_digest,
            "files": [
                {"path": item.path, "mode": item.mode, "sha256": item.sha256}
                for item in release.boot_checks.items
            ],
        },
    }
    document["gpu"]["driver"] = release.software.requested.get("nvidia_driver") and (
        release.software.observed.get("nvidia_driver")
    )
    return document


def _image_json(host: Host, facts: Facts) -> dict[str, Any]:
    """What the image there says about itself; empty on a machine without one of our images."""
    text = host.read(machine_image.IMAGE, sudo=facts.sudo)
    if text is None:
        return {}
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _release(
    store: Store, options: Options, wanted: Release | None, about: Mapping[str, Any]
) -> tuple[str | None, Release | None]:
    """The release of the machine's image: the one that was given, else the one that the manifest finds."""
    if wanted:
        if about.get("build_id") != wanted.build.id:
            runs = f"runs {about.get('build_id')}" if about else "has no image of ours"
            raise UserError(
                f"{options.address.url} {runs}; {options.release} is of {wanted.build.id}",
                hint="validate a machine that was booted from this release, or leave out --release",
            )
        return options.release, wanted
    try:
        entry = read_record(
            store,
            family=str(about["family"]),
            version=str(about["version"]),
            cloud=str(about["cloud"]),
            arch=str(about["arch"]),
        )
        found = read_release(store, entry.release)
    except (KeyError, NotFound, UserError):
        return None, None
    return (entry.release, found) if found.build.id == about.get("build_id") else (None, None)


def _words(about: Mapping[str, Any], digest: str | None) -> str:
    if not about:
        return "not one of our images"
    where = f"release {digest}" if digest else "not in this manifest"
    return f"{about.get('family')} {about.get('version')}, build {about.get('build_id')} ({where})"


def _degraded(document: Mapping[str, Any]) -> list[str]:
    """What the checks say the machine gives less of."""
    return [text for check in document["checks"] for text in check.get("degraded") or []]


def record(store: Store, outcome: Outcome, release: str, document: Mapping[str, Any], *, actor: str) -> None:
    """Writes a statement for each GPU family that was there, or says why there is none."""
    outcome.not_recorded = why_not(document, outcome)
    if outcome.not_recorded:
        return
    files = [outcome.evidence / "gate-host.json", *sorted((outcome.evidence / "outputs").iterdir())]
    evidence = [content for path in files if (content := path.read_bytes())]
    for family, count in outcome.gpus.items():
        outcome.recorded[family] = validated(
            store,
            release,
            family=family,
            gpus=count,
            on=str(document.get("machine_type") or outcome.host),
            evidence=evidence,
            actor=actor,
        )


def why_not(document: Mapping[str, Any], outcome: Outcome) -> str | None:
    """Why the results validate nothing; None when they do."""
    if outcome.verdict not in ("healthy", "degraded"):
        return f"the machine is {outcome.verdict}: {outcome.reason}"
    if outcome.level != "gpu_hardware":
        return f"the level is {outcome.level}; only gpu_hardware validates a GPU family"
    results = {check["id"]: check["result"] for check in document["checks"]}
    missing = [id for id in MUST_PASS if results.get(id) != "pass"]
    if missing:
        return f"not passed: {', '.join(missing)}"
    if not outcome.gpus:
        return "the GPUs' family is not known"
    return None
