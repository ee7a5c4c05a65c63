"""Regions that come after a release, and sharing: statements, the record's summary, the channels.

Always in this order: the statement, the record that lists it, the channels. Whoever is killed in between
does the same again; what is done already stays as it is. Writers may meet: each decides again after a lost
race, and a region that is available does not go back to pending or failed, unless its copy is gone and the
caller says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from images.errors import ExitCode, UserError
from images.lock import now
from images.manifest.changes import Change, change_record
from images.manifest.later import AvailableRegion, FailedRegion, PendingRegion, Record, RecordRegion, Shared
from images.manifest.resolve import read_release, read_statement, record_of
from images.manifest.store import Store
from images.manifest.targets import backfill, copies

MAX_REASON = 4000


@dataclass(frozen=True)
class RegionState:
    """An image in one region. ``home``: the release itself names it; the others came later.

    ``state`` is available, pending or failed. A pending region has an id once its copy has begun, a failed
    one has a reason. ``updated`` is a UTC time as in the documents.
    """

    state: str
    id: str | None
    reason: str | None
    updated: str
    home: bool


def regions(store: Store, release: str) -> dict[str, RegionState]:
    """Every region that the release has or is to have, by name, from the release and its record.

    A region that nobody has asked for yet is not in it. Raises ``UserError`` when a document is damaged, or
    when the record and a statement contradict each other.
    """
    document = read_release(store, release)
    found = {
        name: RegionState("available", item.id, None, document.created, home=True)
        for name, item in document.image.regions.items()
    }
    record = record_of(store, document, release)
    copies(store, record)
    return {name: _state(item) for name, item in record.regions.items()} | found


def pending(
    store: Store,
    release: str,
    *,
    region: str,
    id: str | None = None,
    replaces: str | None = None,
    at: str | None = None,
) -> RegionState:
    """Notes that the image is wanted in ``region``, and with ``id`` that this copy is on its way.

    Call it with the id as soon as the cloud has given one: from then on the manifest names the copy, so
    that nobody takes it for a leftover. A region that is available stays so, except when its image is
    ``replaces``: a copy that is gone. Raises ``UserError`` (1) when another copy is on its way.
    """
    at = at or now()

    def decide(record: Record) -> Change | None:
        there = record.regions.get(region)
        if isinstance(there, AvailableRegion) and (there.id == id or there.id != replaces):
            return None
        if isinstance(there, PendingRegion):
            if id in (None, there.id):
                return None
            if there.id:
                raise UserError(
                    f"{region}: the copy {there.id} is on its way since {there.updated}, {id} is another",
                    hint=f"delete {id}; if it is {there.id} that is gone, record first that it failed",
                    code=ExitCode.FAILED,
                )
        return _change(region, {"state": "pending", "id": id}, at=at)

    return _record_region(store, release, region, decide, at=at)


def replicated(
    store: Store,
    release: str,
    *,
    region: str,
    id: str,
    actor: str,
    snapshots: Sequence[str] = (),
    replaces: str | None = None,
    at: str | None = None,
) -> RegionState:
    """Records that the image is available in ``region`` as ``id``, and adds the region to the channels.

    The channels are those whose target or fallback is this release. ``replaces`` is the id of an earlier
    copy that is gone; without it a region that has another image is an error (exit code 1): two have made
    a copy, and one of them is to be deleted.
    """
    at = at or now()
    body = {
        "kind": "replicated",
        "region": region,
        "id": id,
        "snapshots": sorted(snapshots),
        "replaces": replaces,
    }

    def decide(record: Record) -> Change | None:
        there = record.regions.get(region)
        if isinstance(there, AvailableRegion):
            if there.id == id:
                return None
            if there.id != replaces:
                raise _taken(region, there.id, id)
        return _change(region, {"state": "available", "id": id}, at=at, body=body)

    state = _record_region(store, release, region, decide, actor=actor, at=at)
    if state.id != id:
        raise _taken(region, state.id, id)
    backfill(store, release, actor=actor, at=at)
    return state


def failed(
    store: Store, release: str, *, region: str, reason: str, actor: str, at: str | None = None
) -> RegionState:
    """Records that bringing the image to ``region`` has failed; returns what is true of the region now.

    A region that is available by now stays so: someone else has succeeded.
    """
    at = at or now()
    reason = reason[:MAX_REASON]

    def decide(record: Record) -> Change | None:
        there = record.regions.get(region)
        if isinstance(there, AvailableRegion) or (
            isinstance(there, FailedRegion) and there.reason == reason
        ):
            return None
        body = {"kind": "replication_failed", "region": region, "reason": reason}
        return _change(region, {"state": "failed", "reason": reason}, at=at, body=body)

    return _record_region(store, release, region, decide, actor=actor, at=at)


def shared(
    store: Store,
    release: str,
    *,
    images: Mapping[str, str],
    with_: Sequence[str],
    actor: str,
    at: str | None = None,
) -> None:
    """Records that the ``images`` (region -> id) are shared ``with_`` others.

    These are account ids, or ARNs of organisations and their units, as the cloud was given them. A copy
    may be shared as soon as it is pending. Raises ``UserError`` for an image that is not this release's.
    """
    at = at or now()
    known = regions(store, release)
    for region, image in images.items():
        if region not in known or known[region].id != image:
            raise UserError(f"{image} in {region} is not an image of {release}", code=ExitCode.FAILED)
    body = {"kind": "shared", "images": dict(images), "grantees": sorted(set(with_))}

    def decide(record: Record) -> Change | None:
        there = _shares(store, record)
        new = any(
            there.get(grantee, {}).get(region) != image
            for grantee in with_
            for region, image in images.items()
        )
        return Change(body) if new or not images or not with_ else None

    change_record(store, release, decide, actor=actor, at=at)


def shares(store: Store, release: str) -> dict[str, dict[str, str]]:
    """Who may use the release: grantee -> region -> the image id that was shared last."""
    return _shares(store, record_of(store, read_release(store, release), release))


def _shares(store: Store, record: Record) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for digest in record.statements:
        statement = read_statement(store, digest, release=record.release)
        if statement and isinstance(statement.body, Shared):
            for grantee in statement.body.grantees:
                found.setdefault(grantee, {}).update(statement.body.images)
    return found


def _record_region(
    store: Store,
    release: str,
    region: str,
    decide: Callable[[Record], Change | None],
    *,
    at: str,
    actor: str = "",
) -> RegionState:
    """Changes one region of the record; returns it. The release's own regions are as they are."""
    document = read_release(store, release)
    if region in document.image.regions:
        return RegionState("available", document.image.regions[region].id, None, document.created, home=True)
    return _state(change_record(store, release, decide, actor=actor, at=at).regions[region])


def _change(
    region: str, summary: Mapping[str, Any], *, at: str, body: Mapping[str, Any] | None = None
) -> Change:
    """A statement with ``body``, if there is one, and the record's ``summary`` of the region."""

    def edit(data: dict[str, Any], statement: str | None) -> None:
        told = {"statement": statement} if statement else {}
        data["regions"] = {**data.get("regions", {}), region: {**summary, **told, "updated": at}}

    return Change(body, edit)


def _state(region: RecordRegion) -> RegionState:
    return RegionState(
        state=region.state,
        id=None if isinstance(region, FailedRegion) else region.id,
        reason=region.reason if isinstance(region, FailedRegion) else None,
        updated=region.updated,
        home=False,
    )


def _taken(region: str, there: str | None, id: str) -> UserError:
    return UserError(
        f"{region} has the image {there} already; {id} is not recorded",
        hint=f"delete {id}, or say that it replaces {there} if that one is gone",
        code=ExitCode.FAILED,
    )
