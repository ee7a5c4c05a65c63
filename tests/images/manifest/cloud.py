"""A release of a cloud with its home region, and shorthands for what happens to it later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from images.errors import ExitCode, UserError
from images.manifest import FolderStore, codec, keys
from images.manifest import regions as manifest
from images.manifest.documents import Channel, Record, Release
from images.manifest.publish import publish
from images.manifest.resolve import read_channel, read_record
from images.manifest.store import Store

from .examples import BLOBS, DATA

HOME, AWAY, FAR = "us-east-1", "eu-west-1", "ap-south-1"
CLOUD = {"family": "gpu-debian", "cloud": "aws", "arch": "amd64"}
OLD, NEW, NEWEST = "2026.1129.5", "2026.1130.5", "2026.1201.5"
AT = "2026-11-30T08:00:00Z"
ACCOUNT = "111122223333"
CHANNEL_KEY = "channels/gpu-debian/aws/amd64/candidate.json"


def record_key(version: str) -> str:
    return f"records/gpu-debian/{version}/aws-amd64.json"


def build(version: str = OLD, **changes: Any) -> Release:
    """A release that is in ``HOME`` alone. Its bundle and its GPU states are its own."""
    image = {
        **DATA["image"],
        "disk": {"format": "none"},
        "regions": {HOME: {"id": f"ami-home-{version}"}},
    }
    return codec.make(Release, {**DATA, **CLOUD, "version": version, "image": image, **changes})


def put(store: Store, version: str = OLD, **options: Any) -> str:
    """Publishes a build; returns the release's digest."""
    return publish(store, build(version), BLOBS, actor="ci", reason="build", **options).digest


def copied(store: Store, digest: str, region: str = AWAY, id: str = "ami-away", **options: Any) -> None:
    manifest.replicated(store, digest, region=region, id=id, actor="replicator", **options)


def channel(store: Store, name: str = "candidate") -> Channel:
    return read_channel(store, **CLOUD, channel=name)


def record(store: Store, version: str = OLD) -> Record:
    return read_record(store, **CLOUD, version=version)


def content(store: FolderStore) -> dict[str, bytes]:
    return {key: store.get(key)[0] for key in store.list("")}


def promote_to_stable(store: Store, content: bytes | None = None) -> None:
    """What promotion will write: the same target in another channel."""
    pointer = channel(store).model_copy(
        update={"channel": "stable", "serial": 1, "parent": None, "fallback": None, "action": "create"}
    )
    content = content or codec.dump(pointer)
    store.create(keys.pointer(codec.digest_of(content)), content)
    store.create(keys.channel(**CLOUD, name="stable"), content)


def refused(call: Callable[[], object], words: str, code: ExitCode = ExitCode.FAILED) -> UserError:
    with pytest.raises(UserError, match=words) as caught:
        call()
    assert caught.value.code == code
    return caught.value
