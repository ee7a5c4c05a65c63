"""Regions that come later: what is written, in which order, and that doing it again changes nothing."""

from __future__ import annotations

import json

import pytest

from images.errors import ExitCode
from images.manifest import FolderStore, codec
from images.manifest import regions as manifest
from images.manifest.regions import RegionState
from images.manifest.resolve import read_statement, resolve

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
    channel,
    content,
    copied,
    promote_to_stable,
    put,
    record,
    record_key,
    refused,
)
from .examples import DATA, ZERO
from .stores import Recording

ORGANISATION = "arn:aws:organizations::111122223333:organization/o-abc"
pytestmark = pytest.mark.usefixtures("no_fsync")


# --- a copy is there ----------------------------------------------------------------------------------


def test_statement_record_pointer_channel(store: FolderStore, digest: str) -> None:
    recording = Recording(store.folder)
    copied(recording, digest)
    assert [key.split("/")[0] for key in recording.written] == [
        "statements", "records", "pointers", "channels"
    ]  # fmt: skip


def test_a_copy_can_be_launched(store: FolderStore, digest: str) -> None:
    before, _ = store.get(CHANNEL_KEY)
    copied(store, digest, snapshots=["snap-b", "snap-a"], at=AT)
    found = resolve(store, **CLOUD, region=AWAY)
    assert (found.id, found.release_digest, found.serial) == ("ami-away", digest, 2)
    assert found.lags_behind is None
    assert resolve(store, **CLOUD, region=HOME).id == f"ami-home-{OLD}"
    pointer = channel(store)
    assert (pointer.action, pointer.actor, pointer.updated) == ("backfill", "replicator", AT)
    assert pointer.parent == codec.digest_of(before)
    entry = record(store)
    statement = read_statement(store, entry.statements[0], release=digest)
    assert statement and statement.model_dump(mode="json")["body"] == {
        "kind": "replicated",
        "region": AWAY,
        "id": "ami-away",
        "snapshots": ["snap-a", "snap-b"],
        "replaces": None,
    }
    assert (statement.made, statement.actor, entry.updated) == (AT, "replicator", AT)
    walk.verify(store.folder)


def test_regions_say_what_a_retry_has_to_do(store: FolderStore, digest: str) -> None:
    copied(store, digest, at=AT)
    manifest.pending(store, digest, region=FAR, id="ami-far", at=AT)
    manifest.failed(store, digest, region="us-west-2", reason="quota", actor="replicator", at=AT)
    assert manifest.regions(store, digest) == {
        HOME: RegionState("available", f"ami-home-{OLD}", None, DATA["created"], home=True),
        AWAY: RegionState("available", "ami-away", None, AT, home=False),
        FAR: RegionState("pending", "ami-far", None, AT, home=False),
        "us-west-2": RegionState("failed", None, "quota", AT, home=False),
    }


def test_doing_it_again_changes_nothing(store: FolderStore, digest: str) -> None:
    def all_of_it() -> None:
        manifest.pending(store, digest, region=FAR)
        manifest.pending(store, digest, region=FAR, id="ami-far")
        copied(store, digest)
        manifest.failed(store, digest, region="us-west-2", reason="quota", actor="replicator")
        manifest.shared(store, digest, images={AWAY: "ami-away"}, with_=[ACCOUNT], actor="sharer")

    all_of_it()
    before = content(store)
    all_of_it()
    copied(store, digest, HOME, f"ami-home-{OLD}")
    put(store)
    assert content(store) == before


def test_every_channel_that_names_the_release_gets_the_region(store: FolderStore, digest: str) -> None:
    promote_to_stable(store)
    copied(store, digest)
    for name in ("candidate", "stable"):
        assert channel(store, name).target.regions[AWAY].id == "ami-away"
    walk.verify(store.folder)


def test_only_channels_of_this_cloud_and_architecture_are_touched(store: FolderStore, digest: str) -> None:
    other = channel(store).model_copy(update={"arch": "arm64"})
    store.create("channels/gpu-debian/aws/arm64/candidate.json", codec.dump(other))
    copied(store, digest)
    assert "eu-west-1" not in store.get("channels/gpu-debian/aws/arm64/candidate.json")[0].decode()


def test_a_channel_that_has_moved_on_keeps_its_target(store: FolderStore, digest: str) -> None:
    put(store, NEW)
    target = channel(store).target
    copied(store, digest)
    pointer = channel(store)
    assert pointer.target == target
    assert pointer.fallback and pointer.fallback.regions[AWAY].id == "ami-away"
    put(store, NEWEST)
    before = store.get(CHANNEL_KEY)
    copied(store, digest, FAR, "ami-far")
    assert store.get(CHANNEL_KEY) == before, "neither target nor fallback any more"
    walk.verify(store.folder)


def test_copies_made_before_a_channel_points_to_the_release(store: FolderStore) -> None:
    """A build that was published, but never took the channel, takes it after all."""
    newer = put(store, NEW)
    older = put(store, OLD)
    copied(store, older)
    copied(store, newer, FAR, "ami-far")
    (store.folder / CHANNEL_KEY).unlink()
    put(store, OLD)
    assert set(channel(store).target.regions) == {HOME, AWAY}
    assert channel(store).serial == 1, "at once, not by a backfill after it"
    put(store, NEW)
    assert channel(store).target.regions[FAR].lagging is None
    walk.verify(store.folder)


def test_the_home_region_has_its_image(store: FolderStore, digest: str) -> None:
    before = content(store)
    refused(lambda: copied(store, digest, HOME, "ami-other"), f"{HOME} has the image ami-home")
    assert manifest.pending(store, digest, region=HOME, id="ami-x").id == f"ami-home-{OLD}"
    assert manifest.failed(store, digest, region=HOME, reason="x", actor="x").state == "available"
    assert content(store) == before


def test_two_copies_for_one_region(store: FolderStore, digest: str) -> None:
    copied(store, digest)
    before = content(store)
    error = refused(lambda: copied(store, digest, id="ami-second"), "has the image ami-away already")
    assert error.hint and "delete ami-second" in error.hint
    assert content(store) == before


def test_a_copy_that_is_gone_is_replaced(store: FolderStore, digest: str) -> None:
    copied(store, digest)
    manifest.shared(store, digest, images={AWAY: "ami-away"}, with_=[ACCOUNT], actor="sharer")
    manifest.pending(store, digest, region=AWAY, id="ami-second", replaces="ami-away")
    assert resolve(store, **CLOUD, region=AWAY).id == "ami-away", "the channel is as it was"
    copied(store, digest, id="ami-second", replaces="ami-away")
    assert resolve(store, **CLOUD, region=AWAY).id == "ami-second"
    assert manifest.shares(store, digest) == {ACCOUNT: {AWAY: "ami-away"}}
    walk.verify(store.folder)
    before = content(store)
    copied(store, digest, id="ami-second", replaces="ami-away")
    refused(lambda: copied(store, digest, id="ami-third", replaces="ami-away"), "image ami-second already")
    assert content(store) == before


# --- pending and failed -------------------------------------------------------------------------------


def test_pending_says_which_copy_is_on_its_way(store: FolderStore, digest: str) -> None:
    assert manifest.pending(store, digest, region=AWAY).id is None
    assert manifest.pending(store, digest, region=AWAY, id="ami-away").id == "ami-away"
    assert manifest.pending(store, digest, region=AWAY).id == "ami-away"
    refused(
        lambda: manifest.pending(store, digest, region=AWAY, id="ami-second"),
        "the copy ami-away is on its way since",
    )
    assert channel(store).serial == 1, "nobody can launch it yet"
    copied(store, digest)
    assert manifest.pending(store, digest, region=AWAY, id="ami-second").state == "available"
    assert record(store).statements == [record(store).regions[AWAY].statement]  # type: ignore[union-attr]


def test_failed_and_tried_again(store: FolderStore, digest: str) -> None:
    manifest.pending(store, digest, region=AWAY, id="ami-broken")
    manifest.failed(store, digest, region=AWAY, reason="quota", actor="replicator")
    state = manifest.regions(store, digest)[AWAY]
    assert (state.state, state.reason, state.id) == ("failed", "quota", None)
    manifest.failed(store, digest, region=AWAY, reason="throttled", actor="replicator")
    manifest.pending(store, digest, region=AWAY, id="ami-away")
    copied(store, digest)
    assert manifest.failed(store, digest, region=AWAY, reason="late", actor="x").state == "available"
    bodies = [read_statement(store, item, release=digest) for item in record(store).statements]
    assert [body and body.body.kind for body in bodies] == ["replication_failed"] * 2 + ["replicated"]
    walk.verify(store.folder)


def test_a_long_reason_is_cut_and_an_empty_one_refused(store: FolderStore, digest: str) -> None:
    state = manifest.failed(store, digest, region=AWAY, reason="x" * 5000, actor="replicator")
    assert state.reason == "x" * 4000
    before = content(store)
    refused(lambda: manifest.failed(store, digest, region=FAR, reason=" ", actor="x"), "reason")
    assert content(store) == before


@pytest.mark.parametrize(
    ("region", "id", "actor"), [("EU West", "ami-1", "ci"), (AWAY, " ", "ci"), (AWAY, "ami-1", "")]
)
def test_what_the_documents_refuse_is_not_written(
    store: FolderStore, digest: str, region: str, id: str, actor: str
) -> None:
    before = content(store)
    refused(lambda: manifest.replicated(store, digest, region=region, id=id, actor=actor), "the new")
    if actor:
        refused(lambda: manifest.pending(store, digest, region=region, id=id), "the new record document")
    assert content(store) == before


def test_no_such_release(store: FolderStore) -> None:
    refused(lambda: copied(store, ZERO), "has no releases/", ExitCode.NOTHING)
    refused(lambda: manifest.regions(store, ZERO), "has no releases/", ExitCode.NOTHING)


def test_a_record_of_another_release(store: FolderStore, digest: str) -> None:
    path = store.folder / record_key(OLD)
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "release": ZERO}))
    before = content(store)
    refused(lambda: copied(store, digest), "release is")
    refused(lambda: manifest.regions(store, digest), "release is")
    assert set(content(store)) == set(before), "no statement is made for a record that is not ours"
    assert content(store) == before


def test_a_record_from_before_there_were_regions(store: FolderStore, digest: str) -> None:
    path = store.folder / record_key(OLD)
    old = json.loads(path.read_bytes())
    del old["regions"], old["statements"]
    path.write_text(json.dumps(old))
    assert set(manifest.regions(store, digest)) == {HOME}
    copied(store, digest)
    assert set(manifest.regions(store, digest)) == {HOME, AWAY}


def test_what_a_newer_program_wrote_stays(store: FolderStore, digest: str) -> None:
    """In the record, in the channel, and in a region that is not touched."""
    newer = {"rollout": {"fraction": 0.5}}
    for key, place in ((record_key(OLD), ()), (CHANNEL_KEY, ()), (CHANNEL_KEY, ("target", "regions", HOME))):
        document = part = json.loads(store.get(key)[0])
        for name in place:
            part = part[name]
        part |= newer
        (store.folder / key).write_text(json.dumps(document))
    copied(store, digest)
    assert json.loads(store.get(record_key(OLD))[0])["rollout"] == newer["rollout"]
    pointer = json.loads(store.get(CHANNEL_KEY)[0])
    assert pointer["rollout"] == pointer["target"]["regions"][HOME]["rollout"] == newer["rollout"]


# --- sharing ------------------------------------------------------------------------------------------


def test_shares(store: FolderStore, digest: str) -> None:
    home = f"ami-home-{OLD}"
    manifest.shared(store, digest, images={HOME: home}, with_=[ORGANISATION, ACCOUNT], actor="sharer")
    manifest.pending(store, digest, region=AWAY, id="ami-away")
    manifest.shared(store, digest, images={AWAY: "ami-away"}, with_=[ACCOUNT], actor="sharer")
    assert manifest.shares(store, digest) == {
        ACCOUNT: {HOME: home, AWAY: "ami-away"},
        ORGANISATION: {HOME: home},
    }
    before = content(store)
    manifest.shared(store, digest, images={HOME: home}, with_=[ACCOUNT], actor="another")
    assert content(store) == before
    assert channel(store).serial == 1
    walk.verify(store.folder)


@pytest.mark.parametrize(
    ("images", "with_", "words"),
    [
        ({AWAY: "ami-away"}, [ACCOUNT], "ami-away in eu-west-1 is not an image of"),
        ({HOME: "ami-other"}, [ACCOUNT], "ami-other in us-east-1 is not an image of"),
        ({FAR: "ami-far"}, [ACCOUNT], "ami-far in ap-south-1 is not an image of"),
        ({}, [ACCOUNT], "images"),
        ({HOME: f"ami-home-{OLD}"}, [], "grantees"),
        ({HOME: f"ami-home-{OLD}"}, [" "], "grantees"),
    ],
)
def test_what_cannot_be_shared(
    store: FolderStore, digest: str, images: dict[str, str], with_: list[str], words: str
) -> None:
    manifest.failed(store, digest, region=FAR, reason="quota", actor="replicator")
    before = content(store)
    refused(lambda: manifest.shared(store, digest, images=images, with_=with_, actor="x"), words)
    assert content(store) == before
