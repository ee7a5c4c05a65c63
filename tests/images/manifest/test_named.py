"""What must not be deleted: every id in every region, and nothing less when something cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from images.manifest import FolderStore, codec, keys
from images.manifest import regions as manifest
from images.manifest.named import channel_images, named_images

from .cloud import (
    AWAY,
    CHANNEL_KEY,
    FAR,
    HOME,
    NEW,
    NEWEST,
    OLD,
    build,
    copied,
    put,
    record_key,
    refused,
)
from .examples import ZERO

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_nothing_is_published(store: FolderStore) -> None:
    assert named_images(store) == channel_images(store) == {}


def test_all_ids_of_all_releases(store: FolderStore, digest: str) -> None:
    copied(store, digest)
    manifest.pending(store, digest, region=FAR, id="ami-far")
    manifest.pending(store, digest, region="us-west-2")
    newer = put(store, NEW)
    manifest.failed(store, newer, region=FAR, reason="quota", actor="x")
    assert named_images(store) == {
        f"ami-home-{OLD}": digest,
        "ami-away": digest,
        "ami-far": digest,
        f"ami-home-{NEW}": newer,
    }


def test_a_copy_that_was_replaced_stays_named(store: FolderStore, digest: str) -> None:
    copied(store, digest)
    copied(store, digest, id="ami-second", replaces="ami-away")
    assert set(named_images(store)) == {f"ami-home-{OLD}", "ami-away", "ami-second"}


def test_a_copy_is_named_from_its_beginning_to_its_end(store: FolderStore, digest: str) -> None:
    manifest.pending(store, digest, region=AWAY, id="ami-away")
    assert "ami-away" in named_images(store)
    manifest.failed(store, digest, region=AWAY, reason="quota", actor="x")
    assert "ami-away" not in named_images(store), "a failed copy may be deleted"


def test_only_these_builds(store: FolderStore, digest: str) -> None:
    put(store, NEW)
    builds = [("gpu-debian", version, "aws", "amd64") for version in (OLD, NEWEST)]
    assert named_images(store, builds) == {f"ami-home-{OLD}": digest}
    assert named_images(store, []) == {}


def test_channels_name_all_regions_of_their_releases(store: FolderStore, digest: str) -> None:
    copied(store, digest)
    newer = put(store, NEW)
    newest = put(store, NEWEST)
    manifest.pending(store, newest, region=AWAY, id="ami-newest")
    copied(store, newer, FAR, "ami-far")
    assert channel_images(store) == {
        f"ami-home-{OLD}": digest,  # AWAY lags behind on this release
        "ami-away": digest,
        f"ami-home-{NEW}": newer,  # the fallback
        "ami-far": newer,
        f"ami-home-{NEWEST}": newest,
        "ami-newest": newest,
    }
    copied(store, newest, AWAY, "ami-newest")
    put(store, "2026.1202.5", wanted=[HOME])
    assert "ami-away" not in channel_images(store)
    assert "ami-away" in named_images(store)


def _only(store: FolderStore, folder: str) -> str:
    (key,) = store.list(folder)
    return key


def _spoil(folder: str) -> Callable[[FolderStore], object]:
    def spoil(store: FolderStore) -> None:
        path = store.folder / _only(store, folder)
        path.write_bytes(path.read_bytes()[:-2])

    return spoil


def _remove(folder: str) -> Callable[[FolderStore], object]:
    return lambda store: (store.folder / _only(store, folder)).unlink()


def _move_record(store: FolderStore) -> None:
    path = store.folder / record_key(OLD)
    (path.parent / "aws-arm64.json").write_bytes(path.read_bytes())


def _newer_kind(store: FolderStore) -> None:
    data = json.loads(store.get(_only(store, "statements/"))[0])
    made = json.dumps({**data, "body": {"kind": "moved", "image": "ami-1"}}).encode()
    store.create(keys.statement(codec.digest_of(made)), made)
    path = store.folder / record_key(OLD)
    record = json.loads(path.read_bytes())
    record["statements"].append(codec.digest_of(made))
    path.write_text(json.dumps(record))


def _no_folder(store: FolderStore) -> None:
    """As a disk does that cannot be read any more: there is something, but not a folder to list."""
    (store.folder / record_key(OLD)).unlink()
    for folder in ("records/gpu-debian/" + OLD, "records/gpu-debian", "records"):
        (store.folder / folder).rmdir()
    (store.folder / "records").write_text("")


DAMAGE: dict[str, tuple[Callable[[FolderStore], object], str]] = {
    "record": (_spoil("records/"), "is not valid JSON"),
    "release": (_spoil("releases/"), "is damaged"),
    "statement": (_spoil("statements/"), "is damaged"),
    "release missing": (_remove("releases/"), "which is missing"),
    "statement missing": (_remove("statements/"), "is missing"),
    "record of another build": (_move_record, "is about gpu-debian"),
    "statement of a kind to come": (_newer_kind, "of a kind that this program does not know"),
    "no folder": (_no_folder, "cannot list records/"),
}


@pytest.mark.parametrize(("damage", "problem"), DAMAGE.values(), ids=DAMAGE)
def test_what_cannot_be_read_is_an_error(
    store: FolderStore, digest: str, damage: Callable[[FolderStore], object], problem: str
) -> None:
    copied(store, digest)
    damage(store)
    refused(lambda: named_images(store), problem)


def _move_channel(store: FolderStore) -> None:
    (store.folder / CHANNEL_KEY.replace("candidate", "stable")).write_bytes(store.get(CHANNEL_KEY)[0])


def _other_record(store: FolderStore) -> None:
    path = store.folder / record_key(OLD)
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "release": ZERO}))


CHANNEL_DAMAGE: dict[str, tuple[Callable[[FolderStore], object], str]] = {
    "channel": (_spoil("channels/"), "is not valid JSON"),
    "channel of another name": (_move_channel, "is the channel"),
    "release": (_spoil("releases/"), "is damaged"),
    "release missing": (_remove("releases/"), "names the release"),
    "record missing": (_remove("records/"), "names the release .* no gpu-debian"),
    "record of another release": (_other_record, "release is"),
    "statement missing": (_remove("statements/"), "is missing"),
}


@pytest.mark.parametrize(("damage", "problem"), CHANNEL_DAMAGE.values(), ids=CHANNEL_DAMAGE)
def test_a_channel_that_cannot_be_followed_is_an_error(
    store: FolderStore, digest: str, damage: Callable[[FolderStore], object], problem: str
) -> None:
    copied(store, digest)
    damage(store)
    refused(lambda: channel_images(store), problem)


def test_a_release_that_was_never_recorded_names_nothing(store: FolderStore, digest: str) -> None:
    """Its publisher was killed; no build folder and no channel will ever lead to it."""
    made = codec.dump(build(NEW))
    store.create(keys.release(codec.digest_of(made)), made)
    assert set(named_images(store)) == {f"ami-home-{OLD}"}
    put(store, NEW)
    assert set(named_images(store)) == {f"ami-home-{OLD}", f"ami-home-{NEW}"}
