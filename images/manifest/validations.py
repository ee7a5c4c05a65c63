"""GPU families that a release was validated on after it was published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from images.lock import now
from images.manifest import codec, keys
from images.manifest.changes import Change, change_record
from images.manifest.store import Store
from images.manifest.targets import backfill
from images.manifest.writing import put


def validated(
    store: Store,
    release: str,
    *,
    family: str,
    gpus: int,
    on: str,
    evidence: Sequence[bytes],
    actor: str,
    at: str | None = None,
) -> str:
    """Records that ``release`` was validated on ``gpus`` real GPUs of ``family``; returns the statement.

    ``on`` is the machine in words, ``evidence`` the files that prove it. Evidence first, then the statement,
    the record and the channels that name the release. Each validation is a statement of its own; the record
    names the last one. Raises ``UserError``: 3 when there is no such release.
    """
    at = at or now()
    for blob in evidence:
        put(store, keys.blob(codec.digest_of(blob)), blob)
    body = {
        "kind": "validated",
        "family": family,
        "level": "gpu_hardware",
        "gpus": gpus,
        "on": on,
        "evidence": [codec.digest_of(blob) for blob in evidence],
    }

    def edit(data: dict[str, Any], statement: str | None) -> None:
        data["gpu"] = {**data.get("gpu", {}), family: statement}

    record = change_record(store, release, lambda _: Change(body, edit), actor=actor, at=at)
    backfill(store, release, actor=actor, at=at)
    return record.gpu[family]
