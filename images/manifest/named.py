"""Which images the manifest names: what must not be deleted.

An image that is missing here will be taken for a leftover. So whatever cannot be read is an error, never
an image less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from images.errors import ExitCode, UserError
from images.manifest import codec, keys
from images.manifest.codec import BadDocument
from images.manifest.later import Channel, PendingRegion, Record, Replicated, Target
from images.manifest.resolve import read_release, read_statement, record_of
from images.manifest.store import NotFound, Store


def named_images(store: Store, builds: Iterable[tuple[str, str, str, str]] | None = None) -> dict[str, str]:
    """Every image id in any region of all builds that have a record, and the release it belongs to.

    Those of the release, of its statements, and of copies that are on their way. ``builds`` (family,
    version, cloud, arch) asks for these only; one without a record was not published and names nothing.
    Raises ``UserError`` with exit code 1 when anything of that is damaged, missing, or of a kind that this
    program does not know.
    """
    wanted = store.list("records/") if builds is None else [keys.record(*build) for build in builds]
    found: dict[str, str] = {}
    for key in wanted:
        try:
            content, _ = store.get(key)
        except NotFound:
            continue
        record = codec.load(Record, content, name=key)
        if keys.record(record.family, record.version, record.cloud, record.arch) != key:
            raise BadDocument(key, f"is about {record.family} {record.version} {record.cloud} {record.arch}")
        found |= dict.fromkeys(_images(store, record, key), record.release)
    return found


def channel_images(store: Store) -> dict[str, str]:
    """Every image id, in any region, of each release that a channel names, and that release.

    As target, as fallback, or in a region that lags behind: also copies that no channel has yet. Raises
    ``UserError`` as ``named_images`` does.
    """
    found: dict[str, str] = {}
    for key in store.list("channels/"):
        channel = codec.load(Channel, store.get(key)[0], name=key)
        parts = (channel.family, channel.cloud, channel.arch, channel.channel)
        if keys.channel(*parts) != key:
            raise BadDocument(key, f"is the channel {' '.join(parts)}")
        for digest in {release for target in _targets(channel) for release in _releases(target)}:
            found |= dict.fromkeys(_images_of(store, digest, key), digest)
        for target in _targets(channel):
            found |= {region.id: region.release for region in target.regions.values()}
    return found


def _targets(channel: Channel) -> list[Target]:
    return [channel.target, *([channel.fallback] if channel.fallback else [])]


def _releases(target: Target) -> set[str]:
    return {target.release, *(region.release for region in target.regions.values())}


def _images_of(store: Store, digest: str, key: str) -> list[str]:
    try:
        release = read_release(store, digest)
        record = record_of(store, release, digest)
    except UserError as error:
        if error.code != ExitCode.NOTHING:
            raise
        raise BadDocument(key, f"names the release {digest}, but {error.message}") from None
    return list(_images(store, record, key))


def _images(store: Store, record: Record, key: str) -> Iterator[str]:
    """The ids of a record's release, statements and unfinished copies. Raises ``BadDocument``."""
    try:
        release = read_release(store, record.release)
    except NotFound:
        raise BadDocument(key, f"names the release {record.release}, which is missing") from None
    yield from (region.id for region in release.image.regions.values())
    for region in record.regions.values():
        if isinstance(region, PendingRegion) and region.id:
            yield region.id
    for digest in record.statements:
        statement = read_statement(store, digest, release=record.release)
        if statement is None:
            raise BadDocument(
                keys.statement(digest),
                "is of a kind that this program does not know: which images it names is not known",
                hint="use a newer version of this program",
            )
        if isinstance(statement.body, Replicated):
            yield statement.body.id
