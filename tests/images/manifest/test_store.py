"""The folder store: atomic, conditional, and it survives kill -9."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from images.errors import ExitCode, UserError
from images.manifest import Conflict, FolderStore, NotFound, open_store, store

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "manifest")


def test_create_then_get(folder: FolderStore) -> None:
    tag = folder.create("a/b.json", b"one")
    assert folder.get("a/b.json") == (b"one", tag)


def test_create_never_overwrites(folder: FolderStore) -> None:
    folder.create("a", b"one")
    with pytest.raises(Conflict):
        folder.create("a", b"two")
    assert folder.get("a")[0] == b"one"


def test_replace_only_what_was_read(folder: FolderStore) -> None:
    first = folder.create("a", b"one")
    second = folder.replace("a", b"two", first)
    with pytest.raises(Conflict):
        folder.replace("a", b"three", first)
    assert folder.get("a") == (b"two", second)


def test_replace_does_not_create(folder: FolderStore) -> None:
    with pytest.raises(NotFound):
        folder.replace("a", b"one", "tag")
    assert folder.list("") == []


@pytest.mark.parametrize("key", ["a", "a/b", "a/b/c"])
def test_not_found(folder: FolderStore, key: str) -> None:
    folder.create("a/b/c/d", b"")
    with pytest.raises(NotFound) as caught:
        folder.get(key)
    assert caught.value.code == ExitCode.NOTHING
    assert key in caught.value.message


def test_list_is_by_prefix_and_shows_no_internals(folder: FolderStore) -> None:
    tag = folder.create("channels/a/stable.json", b"1")
    folder.replace("channels/a/stable.json", b"2", tag)
    folder.create("channels/a/candidate.json", b"1")
    folder.create("channels/ab/candidate.json", b"1")
    folder.create("blobs/x", b"1")
    assert folder.list("channels/a/") == ["channels/a/candidate.json", "channels/a/stable.json"]
    assert folder.list("channels/a") == [*folder.list("channels/a/"), "channels/ab/candidate.json"]
    assert len(folder.list("")) == 4
    assert folder.list("nothing/") == []


@pytest.mark.parametrize(
    "key",
    ["", "/etc/passwd", "../x", "a/../../x", "a/./b", "a//b", "a/", ".lock", "a/.tmp", "a\0b", "a\nb", "ä",
     "a" * 300, "/".join("a" * 40)],
)  # fmt: skip
def test_a_key_cannot_leave_the_store(folder: FolderStore, key: str) -> None:
    (folder.folder.parent / "x").write_text("outside")
    for call in (
        lambda: folder.get(key),
        lambda: folder.create(key, b""),
        lambda: folder.replace(key, b"", ""),
    ):
        with pytest.raises(UserError, match="cannot be a key"):
            call()


def test_objects_can_be_read_by_other_users(folder: FolderStore) -> None:
    tag = folder.create("a/b", b"1")
    folder.replace("a/b", b"2", tag)
    assert (folder.folder / "a/b").stat().st_mode & 0o777 == 0o644


def test_what_dead_writers_left_goes_but_not_what_live_ones_write(folder: FolderStore) -> None:
    folder.create("a", b"1")
    dead, live = folder.folder / ".tmp/dead", folder.folder / ".tmp/live"
    for path in (dead, live):
        path.write_bytes(b"half")
    old = time.time() - store.STALE_SECONDS - 1
    os.utime(dead, (old, old))
    FolderStore(folder.folder).create("b", b"1")
    assert (dead.exists(), live.exists()) == (False, True)


def test_reading_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        FolderStore(tmp_path / "none").get("a")
    assert list(tmp_path.iterdir()) == []


def test_oversized_object(folder: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.create("a", b"12345")
    monkeypatch.setattr(store, "MAX_BYTES", 4)
    with pytest.raises(UserError, match="larger than"):
        folder.create("b", b"12345")
    with pytest.raises(UserError, match="larger than"):
        folder.get("a")
    assert folder.list("") == ["a"]


def test_a_disk_error_is_explained_and_leaves_nothing(
    folder: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.create("a", b"1")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="cannot write b: No space left on device") as caught:
        folder.create("b", b"1")
    assert caught.value.code == ExitCode.FAILED
    assert {path.name for path in folder.folder.rglob("*")} == {".tmp", "a"}


def test_a_file_in_the_way_is_explained(tmp_path: Path) -> None:
    (tmp_path / "manifest").write_text("")
    with pytest.raises(UserError, match="cannot write a/b"):
        FolderStore(tmp_path / "manifest").create("a/b", b"1")


@pytest.mark.parametrize("url", ["s3://bucket/x", "gs://bucket", "https://host/x"])
def test_other_stores_are_not_there_yet(url: str) -> None:
    with pytest.raises(UserError, match="not supported yet"):
        open_store(url)


def test_open_store_of_a_path(tmp_path: Path) -> None:
    open_store(tmp_path).create("a", b"1")
    assert open_store(str(tmp_path)).get("a")[0] == b"1"


def _in_processes(count: int, body: Callable[[int], None]) -> None:
    """Runs ``body(number)`` in that many processes at once; each must end well."""
    barrier = FORK.Barrier(count)

    def start(number: int) -> None:
        barrier.wait()
        body(number)

    processes = [FORK.Process(target=start, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * count


def _increment(path: Path, times: int) -> None:
    mine = FolderStore(path)
    while times:
        content, tag = mine.get("counter")
        try:
            mine.replace("counter", b"%d" % (int(content) + 1), tag)
        except Conflict:
            continue
        times -= 1


def test_eight_processes_lose_no_update(folder: FolderStore) -> None:
    folder.create("counter", b"0")
    _in_processes(8, lambda number: _increment(folder.folder, 25))
    assert folder.get("counter")[0] == b"200"


def test_a_create_race_has_one_winner(folder: FolderStore) -> None:
    won = FORK.Queue()

    def create(number: int) -> None:
        try:
            FolderStore(folder.folder).create("deep/er/key", b"%d" % number)
        except Conflict:
            return
        won.put(number)

    _in_processes(16, create)
    assert folder.get("deep/er/key")[0] == b"%d" % won.get(timeout=5)
    assert won.empty()


def test_kill_at_any_time_leaves_a_whole_number_that_only_grows(folder: FolderStore) -> None:
    folder.create("counter", b"0")
    seen, chance = 0, random.Random(7)
    for _ in range(15):
        victim = FORK.Process(target=_increment, args=(folder.folder, 10**9))
        victim.start()
        start = int(folder.get("counter")[0])
        deadline = time.monotonic() + 10
        while int(folder.get("counter")[0]) < start + 2 and time.monotonic() < deadline:
            pass
        until = time.monotonic() + chance.uniform(0, 0.02)
        while time.monotonic() < until:
            assert int(folder.get("counter")[0]) >= seen
        assert victim.pid
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        now = int(folder.get("counter")[0])
        assert now > seen
        seen = now
    _increment(folder.folder, 1)
    assert int(folder.get("counter")[0]) == seen + 1
