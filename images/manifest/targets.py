"""What a channel says about a release, and adding what came later: regions, and validation on GPUs."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from images.lock import now
from images.manifest import codec, keys
from images.manifest.codec import BadDocument
from images.manifest.documents import Release
from images.manifest.later import AvailableRegion, Channel, Lagging, Record, Target, TargetRegion
from images.manifest.resolve import (
    check_identity,
    gpu_states,
    read_release,
    read_revocations,
    record_of,
    replica,
)
from images.manifest.store import Store
from images.manifest.writing import put, until_written


def copies(store: Store, record: Record) -> dict[str, TargetRegion]:
    """The regions that came after the release, as a channel names them; every statement is read.

    Raises ``BadDocument`` when a statement is missing or damaged, or does not say what the record says.
    """
    found = {}
    for name, region in record.regions.items():
        if not isinstance(region, AvailableRegion):
            continue
        if replica(store, region.statement, release=record.release, region=name) != region.id:
            key = keys.record(record.family, record.version, record.cloud, record.arch)
            raise BadDocument(key, f"has another image in {name} than the statement {region.statement}")
        found[name] = TargetRegion(id=region.id, release=record.release, statement=region.statement)
    return found


def next_target(
    store: Store,
    release: Release,
    digest: str,
    current: Channel | None,
    *,
    wanted: Collection[str] | None = None,
) -> Target:
    """The target of a channel that is ``current`` now and moves to ``release``.

    All regions of the release and its record, and those of the last target that these lack, which keep
    their older image: a provisioner there rather gets the older one than none. Not kept are regions
    outside ``wanted`` (None: all are wanted), and revoked images.
    """
    regions = {
        name: TargetRegion(id=item.id, release=digest) for name, item in release.image.regions.items()
    }
    record = record_of(store, release, digest)
    regions |= copies(store, record)
    if current:
        revoked = _revoked(store, release.family)
        for name, region in current.target.regions.items():
            kept = wanted is None or name in wanted
            if kept and name not in regions and not revoked & {region.id, region.release}:
                regions[name] = _lagging(region, current.target, digest)
    return Target(
        release=digest,
        version=release.version,
        regions=regions,
        gpu=gpu_states(store, release, record),
        bundle_digest=release.boot_checks.bundle_digest,
    )


def _revoked(store: Store, family: str) -> set[str]:
    """The releases and image ids that are revoked by now."""
    entries = [entry for entry in read_revocations(store, family) if entry.effective <= now()]
    return {name for entry in entries for name in (entry.release, *entry.images)}


def _lagging(region: TargetRegion, target: Target, digest: str) -> TargetRegion:
    """``region`` of ``target``, as a target of the release ``digest`` has it."""
    facts = region.lagging or Lagging(
        version=target.version, gpu=target.gpu, bundle_digest=target.bundle_digest
    )
    return region.model_copy(update={"lagging": facts if region.release != digest else None})


def backfill(store: Store, digest: str, *, actor: str, at: str | None = None) -> dict[str, int]:
    """Adds the regions and the GPU validation in the release's record to the channels that name the release.

    That is each channel with this release as target or fallback. A channel that has moved on is left alone,
    and so is one that has all of it already. Returns channel -> serial of those that were written.
    """
    release = read_release(store, digest)
    written = {}
    for key in store.list(keys.channels(release.family, release.cloud, release.arch)):
        name = key.rpartition("/")[2].removesuffix(".json")
        extend = partial(_extend, store, key, name, release, digest, actor=actor, at=at)
        hint = "do it again; what is done already stays done"
        serial = until_written(extend, what=f"channel {name}", hint=hint)
        if serial:
            written[name] = serial
    return written


def _extend(
    store: Store, key: str, name: str, release: Release, digest: str, *, actor: str, at: str | None
) -> int | None:
    """One decision about one channel and one try to write it; its new serial. Raises ``Conflict``.

    The record is read after the channel. So whoever recorded something later than we looked writes the
    channel after we have looked, and one of the two writers sees the other.
    """
    content, tag = store.get(key)
    channel = codec.load(Channel, content, name=key)
    check_identity(channel, key, family=release.family, cloud=release.cloud, arch=release.arch, channel=name)
    targets = {place: getattr(channel, place) for place in ("target", "fallback")}
    targets = {place: target for place, target in targets.items() if target and target.release == digest}
    if not targets:
        return None
    record = record_of(store, release, digest)
    found, gpu = copies(store, record), gpu_states(store, release, record)
    missing = {
        place: {region: item for region, item in found.items() if target.regions.get(region) != item}
        for place, target in targets.items()
    }
    names = sorted({region for regions in missing.values() for region in regions})
    families = sorted(
        {name for target in targets.values() for name in gpu if target.gpu.get(name) != gpu[name]}
    )
    if not names and not families:
        return None
    news = [f"available in {', '.join(names)}"] if names else []
    news += [f"validated on {', '.join(families)}"] if families else []

    def edit(data: dict[str, Any]) -> None:
        for place, regions in missing.items():
            data[place]["regions"] |= {region: item.model_dump() for region, item in regions.items()}
            data[place]["gpu"] |= gpu
        data["serial"] = channel.serial + 1
        data["parent"] = codec.digest_of(content)
        data["updated"] = at or now()
        data["action"] = "backfill"
        data["actor"] = actor
        data["reason"] = f"{release.version} is {' and '.join(news)}"

    changed = codec.revise(Channel, content, edit)
    put(store, keys.pointer(codec.digest_of(changed)), changed)
    store.replace(key, changed, tag)
    return channel.serial + 1
