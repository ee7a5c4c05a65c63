"""From evidence to release document: what a build writes into the manifest, and what it says of itself.

Versions are what was *observed* on the machine booted from the capture. What nobody looked at is null; what
was not tested is listed, never left out.
"""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from images import bundle, gate, lock, run, simulation
from images.capture_gate import Evidence
from images.clouds.model import Image
from images.errors import ExitCode, UserError
from images.inputs import Inputs
from images.job import Job, Made
from images.manifest import codec
from images.manifest.documents import DiskFile, Release
from images.manifest.publish import publish as publish_document
from images.manifest.resolve import read_channel, read_release
from images.manifest.store import open_store
from images.settings import CHECKOUT, Settings
from images.spec import Spec

CHANNEL = "candidate"
NO_GPU = "no check of a GPU ran in this build"


@dataclass
class Outcome:
    """What came out: shown to people by ``tasks``, printed whole with ``--json``."""

    status: str  # published, unchanged
    image: str
    version: str
    build_id: str
    release: str
    image_id: str
    image_sha256: str | None
    image_bytes: int | None
    channel: str
    serial: int
    how_to_boot: str
    not_tested: list[str]
    evidence: str
    stages: dict[str, float] = field(default_factory=dict)
    regions: dict[str, str] = field(default_factory=dict)  # region -> image id


def actor() -> str:
    """Who publishes, in words."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def publish(job: Job, made: Made) -> Outcome:
    """Publishes what a build made; returns what to show. Everything is written before the channel moves."""
    gates = gate.merge(job.evidence, job.build.id)["phases"]
    blobs, links = _evidence(job, made.evidence)
    release = _document(job, made, gates, links)
    published = publish_document(
        open_store(job.settings.manifest),
        release,
        blobs,
        channel=CHANNEL,
        actor=actor(),
        reason=f"build {job.build.id}",
        wanted=job.inputs.cloud.regions(job.inputs.loaded),
    )
    channel = CHANNEL if published.moved else f"{CHANNEL} (not moved: {published.why})"
    return outcome(job.inputs, release, published.digest, channel, published.serial, status="published")


def unchanged(settings: Settings, inputs: Inputs) -> Outcome | None:
    """The published release that was made from exactly these inputs and whose image is there; else None."""
    store = open_store(settings.manifest)
    try:
        pointer = read_channel(
            store,
            family=inputs.loaded.spec.family,
            cloud=inputs.cloud.name,
            arch=inputs.lock.arch,
            channel=CHANNEL,
        )
        release = read_release(store, pointer.target.release)
    except UserError as error:
        if error.code != ExitCode.NOTHING:  # a damaged manifest: better known before a build than after
            raise
        return None
    there = all(
        inputs.cloud.image_state(found.id, region, settings) == "available"
        for region, found in release.image.regions.items()
    )
    if release.build.inputs_digest != inputs.digest or not there:
        return None
    return outcome(inputs, release, pointer.target.release, CHANNEL, pointer.serial, status="unchanged")


def outcome(
    inputs: Inputs, release: Release, digest: str, channel: str, serial: int, *, status: str
) -> Outcome:
    """What a person or script gets to see of a release."""
    region, found = next(iter(release.image.regions.items()))
    disk = release.image.disk if isinstance(release.image.disk, DiskFile) else None
    image = Image(id=found.id, region=region, name=release.image.name)
    return Outcome(
        status=status,
        image=release.family,
        version=release.version,
        build_id=release.build.id,
        release=digest,
        image_id=found.id,
        image_sha256=disk.digest if disk else None,
        image_bytes=disk.size if disk else None,
        channel=channel,
        serial=serial,
        how_to_boot=inputs.cloud.how_to_boot(image),
        not_tested=not_tested(release),
        evidence=str(Path(found.id).parent) if disk else digest,
    )


def not_tested(release: Release) -> list[str]:
    """What the release does not prove, a line each."""
    lines = []
    if release.build.simulation:
        lines.append(f"a real cloud: this was {release.build.simulation}")
    families = [name for name, gpu in release.gpu.families.items() if gpu.validation.state != "validated"]
    if families:
        lines.append(f"GPU families {', '.join(families)}: {NO_GPU}; the release stays {CHANNEL}")
    unseen = [
        f"{name} {wanted}"
        for name, wanted in sorted(release.software.requested.items())
        if wanted and release.software.observed.get(name) is None
    ]
    if unseen:
        lines.append(f"requested, not observed in the image: {', '.join(unseen)}")
    passed = {check.id for check in release.gates if check.result == "pass"}  # in whatever phase
    reasons: dict[str, set[str]] = {}
    for check in release.gates:
        if check.id not in passed:
            reasons.setdefault(str(check.reason), set()).add(check.id)
    return lines + [f"{', '.join(sorted(ids))}: {reason}" for reason, ids in sorted(reasons.items())]


def _document(
    job: Job, made: Made, gates: Sequence[dict[str, Any]], links: Sequence[dict[str, Any]]
) -> Release:
    """The release document of what a build made."""
    base, image, evidence = made.base, made.image, made.evidence
    spec, the_lock = job.inputs.loaded.spec, job.inputs.lock
    moment = lock.now()
    disk: dict[str, Any] = {"format": "none"}
    if image.sha256:
        disk = {"format": image.format, "digest": f"sha256:{image.sha256}", "size": image.size}
    not_validated = {"state": "not_validated", "reason": NO_GPU}
    data = {
        "schema": "gpu-image/release/v1",
        "family": spec.family,
        "version": job.build.version,
        "cloud": job.inputs.cloud.name,
        "arch": the_lock.arch,
        "created": moment,
        "image": {
            "name": job.image_name,
            "min_disk_gib": spec.disk_gib,
            "disk": disk,
            "regions": {image.region: {"id": image.id}},
        },
        "os": {"id": spec.os.id, "version": spec.os.version, "kernel": evidence.kernel},
        "software": _software(spec),
        "gpu": {
            "families": {
                name: {"support": "intended", "validation": not_validated} for name in spec.gpu_families
            }
        },
        "boot_checks": {
            "bundle_digest": bundle.digest(job.inputs.bundle),
            "items": [
                {
                    "path": item.path,
                    "mode": item.mode,
                    "sha256": item.sha256,
                    "size": len(item.content),
                    "content": item.content.decode(),
                }
                for item in job.inputs.bundle
            ],
        },
        "gates": _gates(gates),
        "build": {
            "id": job.build.id,
            "tools": _tools(job),
            "source": _source(),
            "base": {"id": base.id, "name": base.name},
            "inputs_digest": job.inputs.digest,
            "lock_digest": the_lock.digest,
            "overrides": list(job.inputs.loaded.overrides),
            "simulation": simulation.name(),
            "started": job.started,
            "finished": moment,
        },
        "links": list(links),
    }
    return codec.make(Release, data)


def _software(spec: Spec) -> dict[str, Any]:
    """Requested from the spec; nothing of it is observed before the driver's own checks exist."""
    requested = {"nvidia_driver": spec.driver.version, "kernel_modules": spec.driver.modules}
    if spec.dcgm:
        requested["dcgm"] = spec.dcgm.version
    if spec.container_toolkit:
        requested["container_toolkit"] = spec.container_toolkit.version
    return {
        "package_origin": "distribution" if spec.driver.source == "debian" else "vendor",
        "requested": requested,
        "observed": dict.fromkeys(requested),
    }


def _gates(phases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every check of every phase, as the suite wrote it."""
    return [
        {**check, "phase": document["phase"], "image": document["image"], "machine": document["machine"]}
        for document in phases
        for check in document["checks"]
    ]


def _evidence(job: Job, evidence: Evidence) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """The evidence as blobs by digest, and the links to them."""
    boots = [{key: boot[key] for key in boot if key != "packages"} for boot in evidence.boots]
    (job.evidence / "boots.json").write_text(json.dumps(boots, indent=2, sort_keys=True) + "\n")
    (job.evidence / "packages.tsv").write_text(evidence.packages + "\n")
    files = [
        ("gate", "gate.json", "application/json"),
        ("boots", "boots.json", "application/json"),
        ("packages", "packages.tsv", "text/tab-separated-values"),
    ]
    files += [("serial-log", path.name, "text/plain") for path in sorted(job.evidence.glob("serial-*.log"))]
    blobs: dict[str, bytes] = {}
    links = []
    for rel, name, media_type in files:
        data = (job.evidence / name).read_bytes()
        digest = codec.digest_of(data)
        blobs[digest] = data
        links.append(
            {"rel": rel, "name": name, "digest": digest, "size": len(data), "media_type": media_type}
        )
    return blobs, links


def _tools(job: Job) -> dict[str, str]:
    """Versions of what built the image."""
    from importlib.metadata import version

    return {
        "packer": ".".join(map(str, job.inputs.packer_version)),
        "accelerator": job.inputs.accelerator,
        **{name: version(name) for name in ("ansible-core", "mitogen", "pytest-testinfra")},
    }


def _source() -> dict[str, Any]:
    """The checkout's commit, and whether it has changes that are not committed."""
    head = run.run(["git", "-C", CHECKOUT, "rev-parse", "HEAD"], check=False)
    status = run.run(["git", "-C", CHECKOUT, "status", "--porcelain"], check=False)
    if head.returncode or status.returncode:
        return {"commit": None, "dirty": True}
    return {"commit": head.stdout.strip(), "dirty": bool(status.stdout.strip())}
