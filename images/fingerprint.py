"""What a build depends on, as one digest: when it is the published one, nothing needs building.

No archive is asked: spec, lock, template, roles, gate, bundle, base and the site's settings are all here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from images.settings import CHECKOUT, Site
from images.spec import digest_of


def of(
    *,
    spec_digest: str,
    lock_digest: str,
    rendered: Mapping[str, str],
    bundle_digest: str,
    base_id: str,
    site: Site,
) -> str:
    """``sha256:…`` over all inputs of a build."""
    local_files = [Path(path) for path in (*site.ca_certificates, *site.roles)]
    return digest_of(
        {
            "spec": spec_digest,
            "lock": lock_digest,
            "rendered": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in rendered.items()},
            "bundle": bundle_digest,
            "base": base_id,
            "site": site.model_dump(mode="json"),
            "trees": tree(
                [CHECKOUT / "roles", CHECKOUT / "ansible.cfg", CHECKOUT / "validation/gate", *local_files]
            ),
            "pins": tree([CHECKOUT / "constraints.txt"]),
        }
    )


def tree(paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of every file below ``paths`` by its path; caches and editors' files do not count."""
    digests = {}
    for top in paths:
        files = sorted(top.rglob("*")) if top.is_dir() else [top]
        for path in files:
            if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".#"):
                name = str(path.relative_to(CHECKOUT)) if path.is_relative_to(CHECKOUT) else str(path)
                digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests
