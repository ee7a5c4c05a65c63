"""Makes the root file system of the base disk with mmdebstrap.

The distribution's own default mirror is used (no mirror argument), so no host name stands here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from images import mmdebstrap


def make_root(
    tar: Path,
    *,
    suite: str,
    packages: Sequence[str],
    kernel_packages: Mapping[str, str],
    root_uuid: str,
    esp_id: str,
    scratch: Path,
    log: Path,
    note: Callable[[str], None],
) -> None:
    """Bootstraps ``suite`` with ``packages`` into ``tar``.

    The apt lists stay in it, and the locked ``kernel_packages`` (name -> version) lie downloaded in apt's
    cache: both cost half a minute in a virtual machine. ``log`` gets all output.
    """
    hook = Path(__file__).with_name("base_customize.sh").read_text()
    mmdebstrap.call(
        [
            "--variant=apt",
            "--format=tar",
            "--skip=cleanup/apt",
            f"--include={','.join(packages)}",
            f"--customize-hook={hook}",
            suite,
            tar,
        ],
        env={
            "ROOT_UUID": root_uuid,
            "ESP_ID": esp_id,
            "KERNELS": " ".join(f"{name}={version}" for name, version in sorted(kernel_packages.items())),
        },
        scratch=scratch,
        note=note,
        log=log,
    )


def code_digest(*files: Path) -> str:
    """SHA-256 over the content of our own files, so that a change of theirs makes another base."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
