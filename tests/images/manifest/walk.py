"""Walks a store in a folder and checks all that is reachable; uses none of the code under test."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def verify(folder: Path) -> dict[str, Any]:
    """Raises ``AssertionError`` for a store that is not whole. Returns the channels by key."""
    for kind in ("releases", "statements", "blobs", "pointers"):
        for path in (folder / kind).rglob("*"):
            if path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                assert path.name.removesuffix(".json") == digest, f"{path} is damaged"
                assert path.parent.name == digest[:2]
    for path in (folder / "records").rglob("*.json"):
        record = json.loads(path.read_bytes())
        _release(folder, record["release"])
        for digest in record["statements"]:
            assert _statement(folder, digest)["release"] == record["release"]
        for name, region in record["regions"].items():
            if region["state"] == "available":
                body = _statement(folder, region["statement"])["body"]
                assert (body["kind"], body["region"], body["id"]) == ("replicated", name, region["id"])
                assert region["statement"] in record["statements"]
        for family, digest in record["gpu"].items():
            body = _statement(folder, digest)["body"]
            assert (body["kind"], body["family"], body["level"]) == ("validated", family, "gpu_hardware")
            assert digest in record["statements"]
            assert all(_at(folder, "blobs", blob).is_file() for blob in body["evidence"])
    channels = {}
    for path in (folder / "channels").rglob("*.json"):
        content = path.read_bytes()
        pointer = channels[path.relative_to(folder).as_posix()] = json.loads(content)
        _chain(folder, content)
        release = _release(folder, pointer["target"]["release"])
        name = f"{release['version']}/{release['cloud']}-{release['arch']}.json"
        record = json.loads((folder / "records" / release["family"] / name).read_bytes())
        assert record["release"] == pointer["target"]["release"]
        for target in filter(None, (pointer["target"], pointer["fallback"])):
            for name, region in target["regions"].items():
                _region(folder, target, name, region)
        for link in release["links"]:
            assert _at(folder, "blobs", link["digest"]).stat().st_size == link["size"]
    return channels


def _chain(folder: Path, content: bytes) -> None:
    """Every version of the channel is kept, serials have no gap, each fallback is the target before.

    A backfill adds regions and validated GPU families, and nothing else.
    """
    pointer = json.loads(content)
    assert _at(folder, "pointers", "sha256:" + hashlib.sha256(content).hexdigest(), ".json").is_file()
    while pointer["parent"]:
        parent = json.loads(_at(folder, "pointers", pointer["parent"], ".json").read_bytes())
        assert parent["serial"] == pointer["serial"] - 1
        if pointer["action"] == "backfill":
            for place in ("target", "fallback"):
                assert _unchanging(pointer[place]) == _unchanging(parent[place])
                before, after = ((item[place] or item["target"])["gpu"] for item in (parent, pointer))
                new = {name: state for name, state in after.items() if before.get(name) != state}
                assert set(new.values()) <= {"validated"} and set(before) <= set(after)
                assert set((pointer[place] or pointer["target"])["regions"]) >= set(
                    (parent[place] or parent["target"])["regions"]
                )
            assert [pointer["target"], pointer["fallback"]] != [parent["target"], parent["fallback"]]
        else:
            assert parent["target"] == pointer["fallback"]
        pointer = parent
    assert pointer["serial"] == 1


def _unchanging(target: dict[str, Any] | None) -> dict[str, Any] | None:
    return target and {name: value for name, value in target.items() if name not in ("regions", "gpu")}


def _region(folder: Path, target: dict[str, Any], name: str, region: dict[str, Any]) -> None:
    """The id is the release's or a statement's; who lags behind says what is true there."""
    release = _release(folder, region["release"])
    if region["statement"]:
        statement = _statement(folder, region["statement"])
        assert statement["release"] == region["release"]
        assert (statement["body"]["region"], statement["body"]["id"]) == (name, region["id"])
    else:
        assert release["image"]["regions"][name]["id"] == region["id"]
    said = region["lagging"] or target
    assert (region["lagging"] is None) == (region["release"] == target["release"])
    assert said["version"] == release["version"]
    assert said["bundle_digest"] == release["boot_checks"]["bundle_digest"]


def _statement(folder: Path, digest: str) -> dict[str, Any]:
    document = json.loads(_at(folder, "statements", digest, ".json").read_bytes())
    assert document["schema"] == "gpu-image/statement/v1"
    return dict(document)


def _release(folder: Path, digest: str) -> dict[str, Any]:
    document = json.loads(_at(folder, "releases", digest, ".json").read_bytes())
    assert document["schema"] == "gpu-image/release/v1"
    return dict(document)


def _at(folder: Path, kind: str, digest: str, suffix: str = "") -> Path:
    value = digest.removeprefix("sha256:")
    return folder / kind / "sha256" / value[:2] / (value + suffix)
