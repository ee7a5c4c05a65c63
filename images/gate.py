"""The gate, seen from the pipeline: writes ``expected.json``, runs the suite, reads its results.

The checks themselves are in ``validation/gate/``. Inside a build Packer's ``shell-local`` runs this
module; on the capture the pipeline calls ``run_suite``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images import run
from images.bundle import BundleFile
from images.bundle import digest as bundle_digest
from images.errors import ExitCode, UserError
from images.lock import Lock
from images.remote import write_ssh_config
from images.settings import CHECKOUT
from images.spec import Spec

SUITE = CHECKOUT / "validation" / "gate"

#: DCGM's level on a build or gate machine that has GPUs: software, memory and PCIe, some two minutes.
DIAG_LEVEL = 2

#: Units that must be masked in every image: they would change packages behind our back, and hold apt's
#: lock while we build.
MASKED_UNITS = (
    "apt-daily.service",
    "apt-daily.timer",
    "apt-daily-upgrade.service",
    "apt-daily-upgrade.timer",
    "unattended-upgrades.service",
)


@dataclass(frozen=True)
class Identity:
    """Who the image is; the same words stand in ``image.json`` on the machine."""

    family: str
    version: str
    build_id: str
    cloud: str
    arch: str
    lock_digest: str


def expected(
    identity: Identity,
    spec: Spec,
    lock: Lock,
    bundle: Sequence[BundleFile],
    *,
    services: Sequence[str],
    build_user: str,
    hostname: str,
    forbidden: Sequence[str],
    disk_bytes: int | None,
) -> dict[str, Any]:
    """What the gate must know, as one document (``gpu-image/expected/v1``)."""
    return {
        "schema": "gpu-image/expected/v1",
        "image": vars(identity),
        "os": {"id": spec.os.id, "version": spec.os.version},
        "kernel": {
            "release": lock.kernel.release,
            "packages": {package.name: package.version for package in lock.kernel.packages},
        },
        "held_packages": sorted(package.name for package in lock.kernel.packages),
        "masked_units": list(MASKED_UNITS),
        "services": list(services),
        "bundle": {
            "digest": bundle_digest(bundle),
            "files": [{"path": item.path, "mode": item.mode, "sha256": item.sha256} for item in bundle],
        },
        "min_free_bytes": spec.min_free_mib * 1024**2,
        "disk_bytes": disk_bytes,
        "build": {"user": build_user, "hostname": hostname, "forbidden_strings": list(forbidden)},
        "boots": [],
        "gpu": {"driver": spec.driver.version, "diag_level": DIAG_LEVEL},
    }


def run_suite(
    *,
    phase: str,
    expected_file: Path,
    results: Path,
    image: str,
    machine: str,
    log: Path,
    ssh_config: Path | None = None,
    disk_root: Path | None = None,
    host: str = "ssh://vm",
    sudo: bool = True,
    options: Sequence[str] = (),
) -> dict[str, Any]:
    """Runs the suite for one phase and returns its results document. Never raises for failed checks.

    ``ssh_config`` is how to reach ``host``; the phase ``capture`` has none and reads ``disk_root``.
    ``options`` are further ones of the suite (see its ``conftest``).
    """
    command: list[str | Path] = [sys.executable, "-m", "pytest", SUITE, "-q", f"--phase={phase}"]
    command += [f"--expected={expected_file}", f"--results={results}"]
    command += [f"--on-image={image}", f"--on-machine={machine}"]
    if ssh_config:
        command += [f"--hosts={host}", f"--ssh-config={ssh_config}", *(["--sudo"] if sudo else [])]
    if disk_root:
        command += [f"--disk-root={disk_root}"]
    command += options
    results.unlink(missing_ok=True)
    # The suite's own configuration, not this checkout's: nothing of the project's tests leaks in.
    command += ["-c", SUITE / "pytest.ini", "-p", "no:cacheprovider"]
    outcome = run.run(command, check=False, cwd=CHECKOUT, log=log, env={"PYTHONDONTWRITEBYTECODE": "1"})
    return read_results(results, code=outcome.returncode, log=log)


def read_results(path: Path, *, code: int, log: Path) -> dict[str, Any]:
    """The results document at ``path``. Raises ``UserError`` when the suite did not get as far."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise UserError(
            f"the gate ended with code {code} and wrote no results", hint=f"see {log}", code=ExitCode.FAILED
        ) from None
    if not isinstance(document, dict) or not document.get("checks"):
        raise UserError("the gate ran no check", hint=f"see {log}", code=ExitCode.FAILED)
    return document


def merge(evidence: Path, build_id: str) -> dict[str, Any]:
    """Writes ``gate.json``: the results of all phases so far, in the order of the build; returns them."""

    def order(path: Path) -> tuple[int, str]:
        return {"gate-build.json": 0, "gate-capture.json": 2}.get(path.name, 1), path.stem

    phases = [json.loads(path.read_bytes()) for path in sorted(evidence.glob("gate-*.json"), key=order)]
    merged = {"schema": "gpu-image/gate/v1", "build_id": build_id, "phases": phases}
    (evidence / "gate.json").write_text(json.dumps(merged, indent=2, sort_keys=True) + "\n")
    return merged


def bad_checks(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The checks that stop a publication: fail first, then unknown."""
    checks = document.get("checks", [])
    return [check for wanted in ("fail", "unknown") for check in checks if check["result"] == wanted]


def require_pass(document: Mapping[str, Any], *, where: str, evidence: Path) -> None:
    """Raises ``GateFailed`` unless every check passed or was not run."""
    bad = bad_checks(document)
    if bad:
        raise GateFailed(bad, where=where, evidence=evidence)


class GateFailed(UserError):
    """At least one check failed. The first line names it."""

    def __init__(self, bad: Sequence[Mapping[str, Any]], *, where: str, evidence: Path) -> None:
        lines = [f"{check['id']} ({check['result']}): {check['reason']}" for check in bad[:5]]
        more = f"\n  and {len(bad) - 5} more" if len(bad) > 5 else ""
        super().__init__(
            f"the gate {where} failed: " + "\n  ".join(lines) + more,
            hint=f"all results: {evidence}",
            code=ExitCode.FAILED,
        )


def main() -> int:
    """Runs the gate inside a build: called by Packer's ``shell-local`` with GATE_HOST, _PORT and _USER."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--evidence", type=Path, required=True)
    parser.add_argument("--temporary", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--image", required=True)
    parser.add_argument("--known-host", action="store_true", help="the host key is in known_hosts already")
    options = parser.parse_args()
    config = options.temporary / "ssh_config"
    write_ssh_config(
        config,
        host=os.environ["GATE_HOST"],
        port=int(os.environ["GATE_PORT"]),
        user=os.environ["GATE_USER"],
        key=options.key,
        known_hosts=options.temporary / "known_hosts",
        control=options.temporary / "ssh-gate",
        strict=options.known_host,
    )
    results = options.evidence / "gate-build.json"
    started = time.monotonic()
    document = run_suite(
        phase="build",
        expected_file=options.evidence / "expected.json",
        results=results,
        image=f"{options.image} (build machine, before capture)",
        machine="build machine",
        log=options.evidence / "gate.log",
        ssh_config=config,
    )
    bad = bad_checks(document)
    for check in document["checks"]:
        print(f"{check['result']:8} {check['id']:32} {check.get('reason') or ''}")
    print(f"gate: {len(document['checks'])} checks in {time.monotonic() - started:.1f} s, {len(bad)} bad")
    return ExitCode.FAILED if bad else ExitCode.DONE


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"{error.message}\n{error.hint or ''}")
