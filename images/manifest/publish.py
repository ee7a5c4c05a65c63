"""Publishing: evidence first, the pointer last.

Blobs, release, record, then the channel by compare-and-swap. Whoever is killed in between leaves objects
that nothing points to; publishing again finishes the job. Signatures go where ``put`` has returned and
the next write has not begun: over the release, and over the pointer before the swap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from images.errors import ExitCode, UserError
from images.lock import now
from images.manifest import codec, keys
from images.manifest.documents import Channel, Record, Release
from images.manifest.resolve import check_identity
from images.manifest.store import Conflict, NotFound, Store
from images.manifest.targets import backfill, next_target
from images.manifest.writing import put, until_written

#: The channel that a build may move by itself. The others are reached by promotion, which has rules.
CANDIDATE = "candidate"


@dataclass(frozen=True)
class Published:
    """What a publication did. ``moved``: the channel points to the release now; else ``why`` says why not.

    ``serial`` is the channel's now.
    """

    digest: str
    channel: str
    serial: int
    moved: bool
    why: str = ""


def publish(
    store: Store,
    release: Release,
    blobs: Mapping[str, bytes],
    *,
    channel: str = CANDIDATE,
    actor: str,
    reason: str,
    expires: str | None = None,
    wanted: Collection[str] | None = None,
) -> Published:
    """Publishes ``release`` and points ``channel`` to it; doing it again changes nothing.

    ``blobs`` are the evidence by digest: exactly what the release links to. An older build never takes a
    channel from a newer one: then the release is published and the channel stays. A region that only the
    channel's last target has keeps that image until there is one of this release, if it is among
    ``wanted`` (None: any region), and unless the old image is revoked. Raises ``UserError`` when something
    is wrong with the input or the store; then the channel has not moved.
    """
    if channel != CANDIDATE:
        raise UserError(f"a build is published to {CANDIDATE}, not to {channel}")
    _check(release, blobs)
    content = codec.dump(release)
    digest = codec.digest_of(content)
    for name, blob in blobs.items():
        put(store, keys.blob(name), blob)
    put(store, keys.release(digest), content)
    _record(store, release, digest)
    published = until_written(
        lambda: _point(
            store,
            release,
            digest,
            channel=channel,
            actor=actor,
            reason=reason,
            expires=expires,
            wanted=wanted,
        ),
        what=f"channel {channel}",
        hint="publish again; the release itself is there",
    )
    # A copy recorded between our look at the record and the swap has not seen this channel.
    serials = backfill(store, digest, actor=actor)
    return replace(published, serial=serials.get(channel, published.serial))


def _check(release: Release, blobs: Mapping[str, bytes]) -> None:
    """Nothing that failed is published, and the evidence is all there."""
    bad = [gate.id for gate in release.gates if gate.result in ("fail", "unknown")]
    if bad:
        raise UserError(f"not published: the gate has not passed {', '.join(bad)}", code=ExitCode.FAILED)
    linked = {link.digest: link.size for link in release.links}
    if odd := set(linked) ^ set(blobs):
        raise UserError(
            f"not published: the release's links and the given blobs differ in {min(odd)}",
            code=ExitCode.FAILED,
        )
    for digest, blob in blobs.items():
        if codec.digest_of(blob) != digest or len(blob) != linked[digest]:
            raise UserError(f"not published: the blob {digest} is something else", code=ExitCode.FAILED)


def _record(store: Store, release: Release, digest: str) -> None:
    key = keys.record(release.family, release.version, release.cloud, release.arch)
    record = Record(
        family=release.family,
        version=release.version,
        cloud=release.cloud,
        arch=release.arch,
        release=digest,
        lifecycle="candidate",
        updated=release.created,
    )
    try:
        store.create(key, codec.dump(record))
    except Conflict:
        there = codec.load(Record, store.get(key)[0], name=key)
        if there.release != digest:
            raise UserError(
                f"{release.family} {release.version} on {release.cloud} {release.arch} is published already",
                hint="with another content; build again: a new build gets a new version",
                code=ExitCode.FAILED,
            ) from None


def _point(
    store: Store,
    release: Release,
    digest: str,
    *,
    channel: str,
    actor: str,
    reason: str,
    expires: str | None,
    wanted: Collection[str] | None,
) -> Published:
    """One decision about the channel and one try to write it. Raises ``Conflict`` when a race is lost.

    A store whose answer got lost may report our own write as a conflict: the next try finds the channel
    where it should be.
    """
    key = keys.channel(release.family, release.cloud, release.arch, channel)
    before, tag, current = b"", "", None
    with contextlib.suppress(NotFound):
        before, tag = store.get(key)
        current = codec.load(Channel, before, name=key)
        check_identity(
            current, key, family=release.family, cloud=release.cloud, arch=release.arch, channel=channel
        )
    if current and current.target.release == digest:
        return Published(digest, channel, current.serial, moved=True)
    if current and order(current.target.version) > order(release.version):
        why = f"it has the newer {current.target.version}"
        return Published(digest, channel, current.serial, moved=False, why=why)
    pointer = Channel(
        family=release.family,
        cloud=release.cloud,
        arch=release.arch,
        channel=channel,
        serial=current.serial + 1 if current else 1,
        parent=codec.digest_of(before) if current else None,
        updated=now(),
        expires=expires,
        action="promote" if current else "create",
        actor=actor,
        reason=reason,
        target=next_target(store, release, digest, current, wanted=wanted),
        fallback=current.target if current else None,
    )
    content = codec.dump(pointer)
    put(store, keys.pointer(codec.digest_of(content)), content)
    if current:
        store.replace(key, content, tag)
    else:
        store.create(key, content)
    return Published(digest, channel, pointer.serial, moved=True)


def order(version: str) -> tuple[int, ...]:
    """A version as numbers, to compare: 2026.102.0 is older than 2026.1130.5."""
    return tuple(int(part) for part in version.split("."))
