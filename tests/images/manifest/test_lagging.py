"""A channel that moves before the copies are there, and channels or statements that lie."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from images.errors import ExitCode, UserError
from images.manifest import FolderStore, codec, keys
from images.manifest import regions as manifest
from images.manifest.documents import Revocations
from images.manifest.publish import publish
from images.manifest.resolve import read_statement, resolve

from . import walk
from .cloud import (
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
    copied,
    promote_to_stable,
    put,
    record_key,
    refused,
)
from .examples import BLOBS, DATA, REVOCATIONS, ZERO, changed

pytestmark = pytest.mark.usefixtures("no_fsync")


# --- a newer build whose copies are not there yet -----------------------------------------------------


def test_regions_lag_behind_until_they_are_filled(store: FolderStore, digest: str) -> None:
    copied(store, digest)
    script = {**DATA["boot_checks"]["items"][0], "mode": "0700"}
    line = f"0700 {script['sha256']} {script['path']}\n"
    checks = {"bundle_digest": "sha256:" + hashlib.sha256(line.encode()).hexdigest(), "items": [script]}
    gpu = {"families": {"l4": DATA["gpu"]["families"]["h100"]}}
    release = build(NEW, boot_checks=checks, gpu=gpu)
    newer = publish(store, release, BLOBS, actor="ci", reason="build").digest
    away = resolve(store, **CLOUD, region=AWAY)
    assert (away.id, away.version, away.release_digest) == ("ami-away", OLD, digest)
    assert (away.lags_behind, away.bundle_digest) == (NEW, DATA["boot_checks"]["bundle_digest"])
    assert away.gpu == {"h100": "not_validated"}
    home = resolve(store, **CLOUD, region=HOME)
    assert (home.version, home.lags_behind, home.bundle_digest) == (NEW, None, checks["bundle_digest"])
    assert home.gpu == {"l4": "not_validated"}
    region = channel(store).target.regions[AWAY]
    assert region.lagging and region.lagging.model_dump() == {
        "version": OLD,
        "gpu": {"h100": "not_validated"},
        "bundle_digest": DATA["boot_checks"]["bundle_digest"],
    }
    walk.verify(store.folder)
    put(store, NEWEST)
    assert resolve(store, **CLOUD, region=AWAY).version == OLD, "two releases behind"
    assert channel(store).target.regions[AWAY] == region
    newest = channel(store).target.release
    copied(store, newest, id="ami-newest")
    copied(store, newer, id="ami-newer")
    away = resolve(store, **CLOUD, region=AWAY)
    assert (away.id, away.version, away.lags_behind) == ("ami-newest", NEWEST, None)
    walk.verify(store.folder)


def test_a_region_that_nobody_wants_any_more_does_not_lag(store: FolderStore, digest: str) -> None:
    copied(store, digest)
    copied(store, digest, FAR, "ami-far")
    put(store, NEW, wanted=[HOME, FAR])
    assert set(channel(store).target.regions) == {HOME, FAR}
    refused(lambda: resolve(store, **CLOUD, region=AWAY), f"not ready in {AWAY}", ExitCode.NOTHING)


@pytest.mark.parametrize("by", ["release", "image"])
@pytest.mark.parametrize(
    ("effective", "lags"), [("2020-01-01T00:00:00Z", False), ("2999-01-01T00:00:00Z", True)]
)
def test_a_revoked_image_does_not_lag(
    store: FolderStore, digest: str, by: str, effective: str, lags: bool
) -> None:
    copied(store, digest)
    entry = {**REVOCATIONS["entries"][0], "effective": effective, "images": []}
    entry |= {"release": digest} if by == "release" else {"images": ["ami-away"]}
    revocations = codec.make(Revocations, {**REVOCATIONS, "entries": [entry]})
    store.create(keys.revocations("gpu-debian"), codec.dump(revocations))
    put(store, NEW)
    assert (AWAY in channel(store).target.regions) == lags


# --- a channel or a statement that lies ---------------------------------------------------------------


def _damage(store: FolderStore, key: str) -> None:
    path = store.folder / key
    path.write_bytes(path.read_bytes() + b" ")


def _statement_key(store: FolderStore) -> str:
    (key,) = store.list("statements/")
    return key


def _state(store: FolderStore, **changes: Any) -> str:
    """Stores a statement as somebody could who is careless; returns its digest."""
    data = json.loads(store.get(_statement_key(store))[0])
    made = json.dumps({**data, **changes}).encode()
    digest = codec.digest_of(made)
    store.create(keys.statement(digest), made)
    return digest


def _point_to(store: FolderStore, statement: str | None, id: str = "ami-away") -> None:
    pointer = changed(json.loads(store.get(CHANNEL_KEY)[0]), f"target.regions.{AWAY}.statement", statement)
    (store.folder / CHANNEL_KEY).write_text(json.dumps(changed(pointer, f"target.regions.{AWAY}.id", id)))


LIES: dict[str, tuple[Callable[[FolderStore], object], str]] = {
    "damaged": (lambda store: _damage(store, _statement_key(store)), "is damaged"),
    "missing": (lambda store: (store.folder / _statement_key(store)).unlink(), "is missing"),
    "of another release": (lambda store: _point_to(store, _state(store, release=ZERO)), f"is about {ZERO}"),
    "of another region": (
        lambda store: _point_to(
            store, _state(store, body={"kind": "replicated", "region": FAR, "id": "ami-away"})
        ),
        "does not say that the image is in eu-west-1",
    ),
    "of a failure": (
        lambda store: _point_to(
            store, _state(store, body={"kind": "replication_failed", "region": AWAY, "reason": "x"})
        ),
        "does not say that the image is in eu-west-1",
    ),
    "of a kind to come": (
        lambda store: _point_to(store, _state(store, body={"kind": "withdrawn", "region": AWAY})),
        "does not say that the image is in eu-west-1",
    ),
    "no statement at all": (lambda store: _point_to(store, None), "another image in eu-west-1"),
    "another image": (
        lambda store: _point_to(store, "sha256:" + Path(_statement_key(store)).stem, "ami-other"),
        "another image in eu-west-1",
    ),
}


@pytest.mark.parametrize(("lie", "problem"), LIES.values(), ids=LIES)
def test_resolve_notices(
    store: FolderStore, digest: str, lie: Callable[[FolderStore], object], problem: str
) -> None:
    copied(store, digest)
    lie(store)
    refused(lambda: resolve(store, **CLOUD, region=AWAY), problem)
    assert resolve(store, **CLOUD, region=HOME).id == f"ami-home-{OLD}"


@pytest.mark.parametrize("lie", ["damaged", "missing"])
def test_a_bad_statement_is_not_spread(store: FolderStore, digest: str, lie: str) -> None:
    copied(store, digest)
    promote_to_stable(store, codec.dump(channel(store).model_copy(update={"channel": "stable"})))
    LIES[lie][0](store)
    refused(lambda: manifest.regions(store, digest), LIES[lie][1])
    refused(lambda: copied(store, digest, FAR, "ami-far"), LIES[lie][1])
    assert FAR not in channel(store).target.regions


def test_a_record_that_contradicts_its_statement(store: FolderStore, digest: str) -> None:
    copied(store, digest)
    path = store.folder / record_key(OLD)
    path.write_text(json.dumps(changed(json.loads(path.read_bytes()), f"regions.{AWAY}.id", "ami-other")))
    refused(lambda: manifest.regions(store, digest), "has another image in eu-west-1 than the statement")


def test_a_kind_to_come_is_passed_over(store: FolderStore, digest: str) -> None:
    copied(store, digest)
    path = store.folder / record_key(OLD)
    data = json.loads(path.read_bytes())
    data["statements"].append(_state(store, body={"kind": "gpu_validation", "gpu": {"h100": True}}))
    path.write_text(json.dumps(data))
    assert read_statement(store, data["statements"][-1], release=digest) is None
    assert manifest.shares(store, digest) == {}
    copied(store, digest, FAR, "ami-far")
    assert resolve(store, **CLOUD, region=FAR).id == "ami-far"


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # the store is put back each time
@given(st.data())
def test_no_flipped_bit_gives_another_image(store: FolderStore, data: st.DataObject) -> None:
    if not store.folder.exists():
        copied(store, put(store))
    key = data.draw(st.sampled_from([CHANNEL_KEY, _statement_key(store)]))
    content = store.get(key)[0]
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    try:
        (store.folder / key).write_bytes(flipped)
        assert resolve(store, **CLOUD, region=AWAY).id == "ami-away"
    except UserError:
        pass
    finally:
        (store.folder / key).write_bytes(content)
