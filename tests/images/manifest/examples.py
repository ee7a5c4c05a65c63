"""A release as a build would publish it, in plain data, and its evidence."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

from images.manifest import codec
from images.manifest.documents import Release

EVIDENCE = b'{"checks": []}\n'
EVIDENCE_DIGEST = "sha256:" + hashlib.sha256(EVIDENCE).hexdigest()
BLOBS = {EVIDENCE_DIGEST: EVIDENCE}
SCRIPT = "#!/usr/bin/python3\nprint('ü')\n"
SCRIPT_SHA256 = hashlib.sha256(SCRIPT.encode()).hexdigest()
ZERO = "sha256:" + "0" * 64
WHERE = {"family": "gpu-debian", "cloud": "local", "arch": "amd64"}

PASSED = {
    "id": "kernel-is-locked",
    "tier": "any_vm",
    "level": "vm_no_gpu",
    "result": "pass",
    "reason": None,
    "phase": "first_boot",
    "seconds": 0.4,
    "script_sha256": "ab" * 32,
    "image": "gpu-debian-2026.1130.54712",
    "machine": "first-a: qemu tcg, bios",
}
NOT_RUN = {**PASSED, "id": "driver-loads", "tier": "gpu", "result": "not_run", "reason": "no GPU here"}
VALIDATED = {
    "state": "validated",
    "level": "gpu_hardware",
    "evidence": [EVIDENCE_DIGEST],
    "at": "2026-11-30T07:00:00Z",
    "on": "p5.48xlarge",
}

DATA: dict[str, Any] = {
    "schema": "gpu-image/release/v1",
    **WHERE,
    "version": "2026.1130.54712",
    "created": "2026-11-30T06:00:00Z",
    "image": {
        "name": "gpu-debian-2026.1130.54712",
        "min_disk_gib": 4,
        "disk": {"format": "qcow2", "digest": "sha256:" + "cd" * 32, "size": 300_000_000},
        "regions": {"local": {"id": "/images/gpu-debian.qcow2"}},
    },
    "os": {"id": "debian", "version": "13", "kernel": "6.12.118+deb13-cloud-amd64"},
    "software": {
        "package_origin": "distribution",
        "requested": {"nvidia_driver": "550.163.01"},
        "observed": {"nvidia_driver": None},
    },
    "gpu": {
        "families": {
            "h100": {"support": "intended", "validation": {"state": "not_validated", "reason": "no GPU"}}
        }
    },
    "boot_checks": {
        "bundle_digest": "sha256:"
        + hashlib.sha256(f"0755 {SCRIPT_SHA256} /usr/lib/gpu-image/10-services\n".encode()).hexdigest(),
        "items": [
            {
                "path": "/usr/lib/gpu-image/10-services",
                "mode": "0755",
                "sha256": SCRIPT_SHA256,
                "size": len(SCRIPT.encode()),
                "content": SCRIPT,
            }
        ],
    },
    "gates": [PASSED, NOT_RUN],
    "build": {
        "id": "gpu-debian-2026.1130.54712-3fa9",
        "tools": {"packer": "1.6.6", "ansible-core": "2.19.14"},
        "source": {"commit": "1" * 40, "dirty": False},
        "base": {"id": "debian-13-base", "name": "debian 13"},
        "inputs_digest": ZERO,
        "lock_digest": ZERO,
        "overrides": ["kernel.series=6.12"],
        "started": "2026-11-30T05:47:12Z",
        "finished": "2026-11-30T06:00:00Z",
    },
    "links": [
        {
            "rel": "gate",
            "name": "gate.json",
            "digest": EVIDENCE_DIGEST,
            "size": len(EVIDENCE),
            "media_type": "application/json",
        }
    ],
}

STATEMENT: dict[str, Any] = {
    "schema": "gpu-image/statement/v1",
    "release": ZERO,
    "made": "2026-11-30T06:30:00Z",
    "actor": "ci",
    "body": {"kind": "replicated", "region": "eu-west-1", "id": "ami-2", "snapshots": ["snap-2"]},
}
FAILED_BODY = {"kind": "replication_failed", "region": "eu-west-1", "reason": "ResourceLimitExceeded"}
SHARED_BODY = {"kind": "shared", "images": {"us-east-1": "ami-1"}, "grantees": ["111122223333"]}

RECORD: dict[str, Any] = {
    "schema": "gpu-image/record/v1",
    **WHERE,
    "version": "2026.1130.54712",
    "release": ZERO,
    "lifecycle": "candidate",
    "updated": "2026-11-30T06:00:00Z",
    "statements": [ZERO],
    "regions": {
        "eu-west-1": {
            "state": "available",
            "id": "ami-2",
            "statement": ZERO,
            "updated": "2026-11-30T06:30:00Z",
        },
        "us-west-2": {"state": "pending", "id": "ami-3", "updated": "2026-11-30T06:30:00Z"},
        "ap-south-1": {
            "state": "failed",
            "reason": "ResourceLimitExceeded",
            "statement": ZERO,
            "updated": "2026-11-30T06:30:00Z",
        },
    },
}

CHANNEL: dict[str, Any] = {
    "schema": "gpu-image/channel/v1",
    **WHERE,
    "channel": "candidate",
    "serial": 1,
    "parent": None,
    "updated": "2026-11-30T06:00:00Z",
    "action": "create",
    "actor": "ci",
    "reason": "build",
    "target": {
        "release": ZERO,
        "version": "2026.1130.54712",
        "regions": {"local": {"id": "/images/gpu-debian.qcow2", "release": ZERO}},
        "gpu": {"h100": "not_validated"},
        "bundle_digest": ZERO,
    },
}

REVOCATIONS: dict[str, Any] = {
    "schema": "gpu-image/revocations/v1",
    "family": "gpu-debian",
    "serial": 1,
    "updated": "2026-12-01T00:00:00Z",
    "entries": [
        {
            "release": ZERO,
            "version": "2026.1130.54712",
            "images": ["/images/gpu-debian.qcow2"],
            "reason": "the driver hangs",
            "severity": "drain",
            "effective": "2026-12-01T00:00:00Z",
        }
    ],
}


def changed(data: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of ``data`` with ``value`` at ``path`` ("image.disk", "gates.0.reason")."""
    result = copy.deepcopy(dict(data))
    *parents, last = path.split(".")
    place: Any = result
    for step in parents:
        place = place[int(step) if isinstance(place, list) else step]
    place[int(last) if isinstance(place, list) else last] = value
    return result


def without(data: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A copy of ``data`` that lacks the key at ``path``."""
    parent, _, last = path.rpartition(".")
    result = copy.deepcopy(dict(data))
    place: Any = result
    for step in filter(None, parent.split(".")):
        place = place[int(step) if isinstance(place, list) else step]
    del place[last]
    return result


def release(version: str = "2026.1130.54712", **changes: Any) -> Release:
    """The example as a document, with other top-level values."""
    return codec.make(Release, {**DATA, "version": version, **changes})
