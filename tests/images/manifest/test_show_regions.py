"""What people see of regions: where the image is, where an older one is still served, and why."""

from __future__ import annotations

import json

import pytest
from invoke.context import Context

from images.manifest import FolderStore, tasks
from images.manifest import regions as manifest

from .cloud import (
    ACCOUNT,
    AT,
    AWAY,
    CHANNEL_KEY,
    FAR,
    HOME,
    NEW,
    OLD,
    channel,
    copied,
    put,
)

pytestmark = pytest.mark.usefixtures("no_fsync")


def shown(store: FolderStore, capsys: pytest.CaptureFixture[str], release: str | None = None) -> list[str]:
    """The lines of ``manifest.show``, without the space between columns."""
    tasks.show(Context(), release=release, cloud="aws", family="gpu-debian", manifest=store.name)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_regions_and_shares(store: FolderStore, digest: str, capsys: pytest.CaptureFixture[str]) -> None:
    copied(store, digest)
    manifest.pending(store, digest, region="ca-central-1", id="ami-ca")
    manifest.pending(store, digest, region="us-west-2")
    manifest.failed(store, digest, region=FAR, reason="[quota] of 5", actor="x", at=AT)
    manifest.shared(store, digest, images={AWAY: "ami-away"}, with_=[ACCOUNT], actor="x")
    for release in (None, OLD, digest):
        lines = shown(store, capsys, release)
        start = lines.index("region state id")
        assert lines[start + 1 : start + 6] == [
            f"{FAR} failed - {AT}: [quota] of 5",
            "ca-central-1 pending ami-ca",
            f"{AWAY} available ami-away",
            f"{HOME} available ami-home-{OLD}",
            "us-west-2 pending -",
        ]
        assert f"{ACCOUNT} {AWAY} ami-away" in lines


def test_regions_that_lag_behind(
    store: FolderStore, digest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(store, digest)
    copied(store, digest, FAR, "ami-far")
    newer = put(store, NEW)
    manifest.failed(store, newer, region=FAR, reason="quota", actor="x", at=AT)
    lines = shown(store, capsys)
    assert f"{AWAY} lagging - the channel has ami-away of {OLD} here" in lines
    assert f"{FAR} failed - {AT}: quota; the channel has ami-far of {OLD} here" in lines
    assert f"{HOME} available ami-home-{NEW}" in lines
    assert not any("lagging" in line or "the channel" in line for line in shown(store, capsys, NEW))


def test_a_long_id_stays_whole(store: FolderStore, digest: str, capsys: pytest.CaptureFixture[str]) -> None:
    copied(store, digest, id="/images/" + "x" * 300)
    assert f"{AWAY} available /images/{'x' * 300}" in shown(store, capsys)


def test_a_copy_that_its_channel_does_not_have(
    store: FolderStore, digest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = store.get(CHANNEL_KEY)[0]
    copied(store, digest)
    (store.folder / CHANNEL_KEY).write_bytes(before)  # as if killed before the channel was written
    assert f"{AWAY} available ami-away not in the channel yet: replicate again" in shown(store, capsys)


def test_a_share_of_a_copy_that_was_replaced(
    store: FolderStore, digest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(store, digest)
    manifest.shared(store, digest, images={AWAY: "ami-away"}, with_=[ACCOUNT], actor="x")
    copied(store, digest, id="ami-second", replaces="ami-away")
    assert f"{ACCOUNT} {AWAY} ami-away (not the image there now)" in shown(store, capsys)


def test_resolve_says_on_stderr_that_a_region_lags(
    store: FolderStore, digest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(store, digest)
    put(store, NEW)
    where = {"cloud": "aws", "family": "gpu-debian", "manifest": store.name}
    tasks.resolve(Context(), **where, region=AWAY)
    out, err = capsys.readouterr()
    assert out == "ami-away\n"
    assert err == f"{AWAY} still has {OLD}; the channel is at {NEW}\n"
    tasks.resolve(Context(), **where, region=AWAY, format="json")
    answer = json.loads(capsys.readouterr().out)
    assert (answer["version"], answer["lags_behind"]) == (OLD, NEW)
    tasks.resolve(Context(), **where, region=HOME)
    assert capsys.readouterr().err == ""
    assert channel(store).target.version == NEW
