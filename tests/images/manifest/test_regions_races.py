"""Regions that come later: races decided in advance, and death before every write."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.errors import ExitCode
from images.manifest import FolderStore, codec, keys
from images.manifest import regions as manifest
from images.manifest.resolve import resolve
from images.manifest.store import Store
from images.manifest.writing import ATTEMPTS

from . import walk
from .cloud import (
    ACCOUNT,
    AT,
    AWAY,
    CHANNEL_KEY,
    CLOUD,
    FAR,
    HOME,
    NEW,
    NEWEST,
    OLD,
    build,
    channel,
    content,
    copied,
    promote_to_stable,
    put,
    record,
    record_key,
    refused,
)
from .stores import Killed, Killing, LosesReplies, Rivalled

pytestmark = pytest.mark.usefixtures("no_fsync")


# --- races, decided in advance ------------------------------------------------------------------------


def test_the_channel_moves_on_meanwhile(store: FolderStore, digest: str) -> None:
    rivalled = Rivalled(store.folder, CHANNEL_KEY, [lambda: put(store, NEW)])
    copied(rivalled, digest)
    pointer = channel(store)
    assert (pointer.serial, pointer.target.version) == (3, NEW)
    assert pointer.fallback and pointer.fallback.regions[AWAY].id == "ami-away"
    walk.verify(store.folder)


@pytest.mark.parametrize("key", [CHANNEL_KEY, record_key(OLD)], ids=["channel", "record"])
def test_two_regions_at_once(store: FolderStore, digest: str, key: str) -> None:
    rivalled = Rivalled(store.folder, key, [lambda: copied(store, digest, FAR, "ami-far")])
    copied(rivalled, digest)
    assert set(channel(store).target.regions) == set(manifest.regions(store, digest)) == {HOME, AWAY, FAR}
    walk.verify(store.folder)


def test_success_and_failure_at_once(store: FolderStore, digest: str) -> None:
    rivalled = Rivalled(store.folder, record_key(OLD), [lambda: copied(store, digest)])
    assert manifest.failed(rivalled, digest, region=AWAY, reason="late", actor="x").state == "available"
    fail = {"region": FAR, "reason": "early", "actor": "x"}
    rivalled = Rivalled(store.folder, record_key(OLD), [lambda: manifest.failed(store, digest, **fail)])
    copied(rivalled, digest, FAR, "ami-far")
    assert {item.state for item in manifest.regions(store, digest).values()} == {"available"}
    walk.verify(store.folder)


def test_the_same_region_twice_at_once(store: FolderStore, digest: str) -> None:
    rivalled = Rivalled(store.folder, record_key(OLD), [lambda: copied(store, digest)])
    refused(lambda: copied(rivalled, digest, id="ami-second"), "has the image ami-away already")
    assert resolve(store, **CLOUD, region=AWAY).id == "ami-away"
    start = {"region": FAR, "id": "ami-far"}
    rivalled = Rivalled(store.folder, record_key(OLD), [lambda: manifest.pending(store, digest, **start)])
    refused(lambda: manifest.pending(rivalled, digest, region=FAR, id="ami-late"), "is on its way")
    assert manifest.regions(store, digest)[FAR].id == "ami-far"


def test_a_copy_recorded_while_a_publication_has_not_reached_the_channel(store: FolderStore) -> None:
    """The copier finds no channel to fill, the publisher has looked at the record before it."""
    digest = codec.digest_of(codec.dump(build()))
    put(Rivalled(store.folder, CHANNEL_KEY, [lambda: copied(store, digest)]))
    assert resolve(store, **CLOUD, region=AWAY).id == "ami-away"
    walk.verify(store.folder)


def test_an_old_copy_does_not_come_back(store: FolderStore, digest: str) -> None:
    """Somebody late, who still has the old copy in mind, meets its replacement at the channel."""
    promote_to_stable(store)
    stable = keys.channel(**CLOUD, name="stable")
    second = {"id": "ami-second", "replaces": "ami-away"}
    copied(Rivalled(store.folder, stable, [lambda: copied(store, digest, **second)]), digest)
    for name in ("candidate", "stable"):
        assert resolve(store, **CLOUD, region=AWAY, channel=name).id == "ami-second"
    walk.verify(store.folder)


def test_our_own_write_reported_as_a_conflict(store: FolderStore, digest: str) -> None:
    lossy = LosesReplies(store.folder)
    copied(lossy, digest)
    manifest.pending(lossy, digest, region=FAR, id="ami-far")
    manifest.failed(lossy, digest, region="us-west-2", reason="quota", actor="x")
    manifest.shared(lossy, digest, images={AWAY: "ami-away"}, with_=[ACCOUNT], actor="x")
    assert channel(store).serial == 2
    assert len(record(store).statements) == 3
    walk.verify(store.folder)


def test_a_race_that_never_ends_is_given_up(store: FolderStore, digest: str) -> None:
    numbers = iter(range(ATTEMPTS))

    def another() -> None:
        manifest.failed(store, digest, region=FAR, reason=f"try {next(numbers)}", actor="x")

    rivalled = Rivalled(store.folder, record_key(OLD), [another] * ATTEMPTS)
    refused(lambda: copied(rivalled, digest), f"changed {ATTEMPTS} times")
    assert AWAY not in manifest.regions(store, digest)


# --- killed -------------------------------------------------------------------------------------------


def _everything(store: Store, digest: str) -> None:
    manifest.pending(store, digest, region=AWAY, id="ami-away")
    manifest.failed(store, digest, region=FAR, reason="quota", actor="replicator", at=AT)
    copied(store, digest, at=AT)
    manifest.shared(store, digest, images={AWAY: "ami-away"}, with_=[ACCOUNT], actor="sharer", at=AT)


def test_killed_before_any_write_and_done_again(tmp_path: Path) -> None:
    def prepared(step: int) -> tuple[FolderStore, str]:
        store = FolderStore(tmp_path / str(step))
        digest = put(store, OLD)
        promote_to_stable(store)
        put(store, NEW)  # so that candidate has the release as its fallback
        return store, digest

    steps = 0
    while True:
        store, digest = prepared(steps)
        try:
            _everything(Killing(store.folder, steps + 1), digest)
        except Killed:
            walk.verify(store.folder)
            found = channel(store, "stable").target.regions
            assert set(found) in ({HOME}, {HOME, AWAY})
            for region in found:
                assert resolve(store, **CLOUD, region=region, channel="stable").release_digest == digest
            _everything(store, digest)
            steps += 1
        else:
            break
        finally:
            walk.verify(store.folder)
        pointer = channel(store)
        assert pointer.fallback and set(pointer.fallback.regions) == {HOME, AWAY}
        assert set(channel(store, "stable").target.regions) == {HOME, AWAY}
        assert {name: item.state for name, item in manifest.regions(store, digest).items()} == {
            HOME: "available", AWAY: "available", FAR: "failed"
        }  # fmt: skip
        assert manifest.shares(store, digest) == {ACCOUNT: {AWAY: "ami-away"}}
        assert len(record(store).statements) == 3
        before = content(store)
        _everything(store, digest)
        assert content(store) == before
    assert steps == 11  # pending 1, failed 2, replicated 2 and 2 for each channel, shared 2


OPERATIONS = st.tuples(
    st.sampled_from(["publish", "replicated", "failed", "pending"]),
    st.sampled_from([OLD, NEW, NEWEST]),
    st.sampled_from([AWAY, FAR]),
    st.integers(1, 6),
)


@settings(max_examples=30, deadline=None)
@given(operations=st.lists(OPERATIONS, max_size=10))
def test_any_order_of_things_with_a_kill_in_each(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, str, str, int]]
) -> None:
    """Against a model of a few lines: where a copy is, and what each region serves."""
    store = FolderStore(tmp_path_factory.mktemp("any") / "manifest")
    digests: dict[str, str] = {}
    there: set[tuple[str, str]] = set()
    served: dict[str, str] = {}
    newest = ""
    for what, version, region, step in operations:
        if what != "publish" and version not in digests:
            continue
        id = f"ami-{region}-{version}"

        def act(
            on: Store, what: str = what, version: str = version, region: str = region, id: str = id
        ) -> None:
            if what == "publish":
                digests[version] = put(on, version)
            elif what == "replicated":
                copied(on, digests[version], region, id, at=AT)
            elif what == "failed":
                manifest.failed(on, digests[version], region=region, reason="quota", actor="x", at=AT)
            else:
                manifest.pending(on, digests[version], region=region, id=id, at=AT)

        try:
            act(Killing(store.folder, step))
        except Killed:
            walk.verify(store.folder)
            act(store)
        walk.verify(store.folder)
        if what == "publish" and version > newest:
            newest = version
            served |= {HOME: version} | {place: at for at, place in there if at == version}
        if what == "replicated":
            there.add((version, region))
            if version == newest:
                served[region] = version
        for place in (HOME, AWAY, FAR) if newest else ():
            if place in served:
                found = resolve(store, **CLOUD, region=place)
                assert found.version == served[place]
                assert found.lags_behind == (None if served[place] == newest else newest)
                assert found.id.endswith(served[place])
            else:
                refused(
                    lambda place=place: resolve(store, **CLOUD, region=place), "not ready", ExitCode.NOTHING
                )  # type: ignore[misc]
