"""Publishing: order, idempotence, races decided by lot in advance, and kill -9 at every step."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from images.errors import ExitCode, UserError
from images.manifest import FolderStore, codec, keys
from images.manifest.documents import Channel, Release
from images.manifest.publish import Published, order, publish
from images.manifest.resolve import read_channel, resolve
from images.manifest.writing import ATTEMPTS

from . import walk
from .examples import BLOBS, DATA, EVIDENCE_DIGEST, NOT_RUN, WHERE, ZERO, changed, release
from .stores import LosesReplies, Recording, Rivalled

FORK = multiprocessing.get_context("fork")
OLD, MIDDLE, NEW = (f"2026.1130.{seconds}" for seconds in (9, 10, 100000))
CHANNEL_KEY = "channels/gpu-debian/local/amd64/candidate.json"
pytestmark = pytest.mark.usefixtures("no_fsync")


def put(store: FolderStore, document: Release) -> Published:
    return publish(store, document, BLOBS, actor="ci", reason="build")


def current(store: FolderStore) -> Channel:
    return read_channel(store, **WHERE, channel="candidate")


def test_the_pointer_comes_last(tmp_path: Path) -> None:
    store = Recording(tmp_path)
    put(store, release())
    kinds = [key.split("/")[0] for key in store.written]
    assert kinds == ["blobs", "releases", "records", "pointers", "channels"]


def test_first_publication(store: FolderStore) -> None:
    published = put(store, release())
    assert (published.serial, published.moved, published.channel) == (1, True, "candidate")
    channels = walk.verify(store.folder)
    assert list(channels) == [CHANNEL_KEY]
    pointer = channels[CHANNEL_KEY]
    assert pointer["target"] == {
        "release": published.digest,
        "version": "2026.1130.54712",
        "regions": {
            "local": {
                "id": "/images/gpu-debian.qcow2",
                "release": published.digest,
                "statement": None,
                "lagging": None,
            }
        },
        "gpu": {"h100": "not_validated"},
        "bundle_digest": DATA["boot_checks"]["bundle_digest"],
    }
    assert (pointer["action"], pointer["parent"], pointer["fallback"]) == ("create", None, None)
    assert store.get(keys.blob(EVIDENCE_DIGEST))[0] == BLOBS[EVIDENCE_DIGEST]


def test_a_newer_build_moves_the_channel_and_keeps_the_way_back(store: FolderStore) -> None:
    first = put(store, release(OLD))
    before, _ = store.get(CHANNEL_KEY)
    second = put(store, release(NEW))
    pointer = current(store)
    assert (second.serial, pointer.serial, pointer.action) == (2, 2, "promote")
    assert pointer.parent == codec.digest_of(before)
    assert pointer.fallback and pointer.fallback.release == first.digest
    walk.verify(store.folder)


def test_an_older_build_is_published_but_does_not_move_the_channel(store: FolderStore) -> None:
    put(store, release(NEW))
    late = put(store, release(MIDDLE))
    assert (late.moved, late.serial) == (False, 1)
    assert NEW in late.why
    assert current(store).target.version == NEW
    assert store.get(keys.record("gpu-debian", MIDDLE, "local", "amd64"))
    walk.verify(store.folder)


def test_publishing_again_changes_nothing(store: FolderStore) -> None:
    first = put(store, release())
    before = {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}
    assert put(store, release()) == first
    assert {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()} == before


def test_the_same_version_with_another_content(store: FolderStore) -> None:
    put(store, release())
    before = store.get(CHANNEL_KEY)
    with pytest.raises(UserError, match="published already"):
        put(store, release(created="2026-11-30T07:00:00Z"))
    assert store.get(CHANNEL_KEY) == before


@pytest.mark.parametrize("result", ["fail", "unknown"])
def test_what_did_not_pass_is_not_published(store: FolderStore, result: str) -> None:
    data = changed(DATA, "gates.1", {**NOT_RUN, "result": result})
    with pytest.raises(UserError, match="not passed driver-loads") as caught:
        put(store, codec.make(Release, data))
    assert caught.value.code == ExitCode.FAILED
    assert not store.folder.exists()


@pytest.mark.parametrize(
    "blobs",
    [{}, {**BLOBS, ZERO: b""}, {EVIDENCE_DIGEST: b"other"}, {ZERO: BLOBS[EVIDENCE_DIGEST]}],
    ids=["missing", "not linked", "other bytes", "other digest"],
)
def test_evidence_that_does_not_fit_the_links(store: FolderStore, blobs: dict[str, bytes]) -> None:
    with pytest.raises(UserError, match="not published"):
        publish(store, release(), blobs, actor="ci", reason="build")
    assert not store.folder.exists()


def test_a_build_cannot_publish_to_stable(store: FolderStore) -> None:
    with pytest.raises(UserError, match="not to stable"):
        publish(store, release(), BLOBS, channel="stable", actor="ci", reason="build")
    assert not store.folder.exists()


def test_a_damaged_object_in_the_way(store: FolderStore) -> None:
    store.create(keys.blob(EVIDENCE_DIGEST), b"other")
    with pytest.raises(UserError, match="damaged"):
        put(store, release())


def test_a_damaged_channel_is_not_overwritten(store: FolderStore) -> None:
    put(store, release(OLD))
    (store.folder / CHANNEL_KEY).write_bytes(b"{")
    with pytest.raises(UserError, match="not valid JSON"):
        put(store, release(NEW))
    assert store.get(CHANNEL_KEY)[0] == b"{"


@pytest.mark.parametrize("there", [None, OLD])
def test_lost_to_a_newer_build(store: FolderStore, there: str | None) -> None:
    if there:
        put(store, release(there))
    rivalled = Rivalled(store.folder, CHANNEL_KEY, [lambda: put(store, release(NEW))])
    published = put(rivalled, release(MIDDLE))
    assert not published.moved
    assert published.serial == (2 if there else 1)
    assert current(store).target.version == NEW
    walk.verify(store.folder)


@pytest.mark.parametrize("there", [None, OLD])
def test_lost_to_an_older_build(store: FolderStore, there: str | None) -> None:
    if there:
        put(store, release(there))
    rivalled = Rivalled(store.folder, CHANNEL_KEY, [lambda: put(store, release(MIDDLE))])
    published = put(rivalled, release(NEW))
    assert published.moved
    assert published.serial == (3 if there else 2)
    pointer = current(store)
    assert pointer.target.version == NEW
    assert pointer.fallback and pointer.fallback.version == MIDDLE
    walk.verify(store.folder)


def test_a_race_that_never_ends_is_given_up(store: FolderStore) -> None:
    versions = (release(f"2026.1130.{number}") for number in range(ATTEMPTS))
    rivalled = Rivalled(store.folder, CHANNEL_KEY, [lambda: put(store, next(versions))] * ATTEMPTS)
    with pytest.raises(UserError, match=f"changed {ATTEMPTS} times"):
        put(rivalled, release(NEW))
    assert current(store).serial == ATTEMPTS


def test_our_own_write_reported_as_a_conflict(store: FolderStore) -> None:
    lossy = LosesReplies(store.folder)
    assert put(lossy, release(OLD)).serial == 1
    assert put(lossy, release(NEW)) == Published(
        codec.digest_of(codec.dump(release(NEW))), "candidate", 2, moved=True
    )
    assert current(store).serial == 2
    walk.verify(store.folder)


def test_eight_builds_at_once_all_land(store: FolderStore) -> None:
    versions = [f"2026.1130.{number}" for number in (3, 1, 4, 15, 9, 2, 6, 5)]
    processes = [FORK.Process(target=put, args=(store, release(version))) for version in versions]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 8
    assert walk.verify(store.folder)[CHANNEL_KEY]["target"]["version"] == "2026.1130.15"
    assert len(store.list("records/")) == 8


def _killed_at(step: int, store: FolderStore, document: Release) -> bool:
    """Publishes in a process that is killed just before its ``step``-th system call that changes the store.

    Returns whether it got that far.
    """

    def run() -> None:
        left = step

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **named)

            return wrapped

        for name in ("fsync", "link", "mkdir", "replace"):
            setattr(os, name, counted(getattr(os, name)))
        put(store, document)

    process = FORK.Process(target=run)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def test_kill_at_every_step_leaves_a_whole_store_and_the_next_run_finishes(tmp_path: Path) -> None:
    step, steps = 0, 0
    store = FolderStore(tmp_path / "first")
    while _killed_at(step := step + 1, store, release(OLD)):
        assert set(walk.verify(store.folder)) <= {CHANNEL_KEY}
        assert put(store, release(OLD)).moved
        assert put(store, release(NEW)).serial == 2
        walk.verify(store.folder)
        store = FolderStore(tmp_path / f"first-{step}")
    steps += step
    step = 0
    put(store := FolderStore(tmp_path / "second"), release(OLD))
    while _killed_at(step := step + 1, store, release(MIDDLE)):
        version = walk.verify(store.folder)[CHANNEL_KEY]["target"]["version"]
        assert version in (OLD, MIDDLE)
        assert resolve(store, **WHERE).version == version
        assert put(store, release(NEW)).serial == (2 if version == OLD else 3)
        assert put(store, release(MIDDLE)).moved is False
        walk.verify(store.folder)
        put(store := FolderStore(tmp_path / f"second-{step}"), release(OLD))
    assert steps > 20
    assert step > 15


def test_versions_are_compared_as_numbers() -> None:
    versions = ["2026.1130.100000", "2026.1130.9", "2027.101.0", "2026.102.235959", "2026.1130.10"]
    assert sorted(versions, key=order) == [
        "2026.102.235959",
        "2026.1130.9",
        "2026.1130.10",
        "2026.1130.100000",
        "2027.101.0",
    ]
