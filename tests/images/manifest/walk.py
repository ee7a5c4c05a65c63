"""Walks a store in a folder and checks all that is reachable; uses none of the code under test."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def verify(folder: Path) -> dict[str, Any]:
    """Raises ``AssertionError`` for a store that is not whole. Returns the channels by key."""
    for kind in ("releases", "blobs", "pointers"):
        for path in (folder / kind).rglob("*"):
            if path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                assert path.name.removesuffix(".json") == digest, f"{path} is damaged"
                assert path.parent.name == digest[:2]
    for path in (folder / "records").rglob("*.json"):
        _release(folder, json.loads(path.read_bytes())["release"])
    channels = {}
    for path in (folder / "channels").rglob("*.json"):
        content = path.read_bytes()
        pointer = channels[path.relative_to(folder).as_posix()] = json.loads(content)
        _chain(folder, content)
        release = _release(folder, pointer["target"]["release"])
        name = f"{release['version']}/{release['cloud']}-{release['arch']}.json"
        record = json.loads((folder / "records" / release["family"] / name).read_bytes())
        assert record["release"] == pointer["target"]["release"]
        for link in release["links"]:
            assert _at(folder, "blobs", link["digest"]).stat().st_size == link["size"]
    return channels


def _chain(folder: Path, content: bytes) -> None:
    """Every version of the channel is kept, serials have no gap, each fallback is the target before."""
    pointer = json.loads(content)
    assert _at(folder, "pointers", "sha256:" + hashlib.sha256(content).hexdigest(), ".json").is_file()
    while pointer["parent"]:
        parent = json.loads(_at(folder, "pointers", pointer["parent"], ".json").read_bytes())
        assert parent["serial"] == pointer["serial"] - 1
        assert parent["target"] == pointer["fallback"]
        pointer = parent
    assert pointer["serial"] == 1


def _release(folder: Path, digest: str) -> dict[str, Any]:
    document = json.loads(_at(folder, "releases", digest, ".json").read_bytes())
    assert document["schema"] == "gpu-image/release/v1"
    return dict(document)


def _at(folder: Path, kind: str, digest: str, suffix: str = "") -> Path:
    value = digest.removeprefix("sha256:")
    return folder / kind / "sha256" / value[:2] / (value + suffix)
