"""Reading the manifest: which image, here, now; and the documents behind the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from images.errors import ExitCode, UserError
from images.lock import now as current_time
from images.manifest import codec, keys
from images.manifest.codec import BadDocument
from images.manifest.documents import Release
from images.manifest.later import (
    STATEMENT_KINDS,
    Channel,
    Record,
    Replicated,
    Revocation,
    Revocations,
    Statement,
    StatementHead,
    TargetRegion,
    Validated,
    ValidationState,
)
from images.manifest.parts import Document
from images.manifest.store import NotFound, Store


@dataclass(frozen=True)
class Resolved:
    """The answer to "which image?".

    ``id`` is what a provisioner passes to the cloud, ``bundle_digest`` what a machine booted from it
    reports, ``gpu`` the validation state by GPU family. Where the region still has an older release, all
    of that is the older one's, and ``lags_behind`` is the version that the channel has elsewhere.
    """

    id: str
    release_digest: str
    family: str
    version: str
    build_id: str
    cloud: str
    arch: str
    region: str
    channel: str
    serial: int
    bundle_digest: str
    gpu: dict[str, str]
    lags_behind: str | None


def resolve(
    store: Store,
    *,
    family: str,
    cloud: str,
    arch: str = "amd64",
    channel: str = "candidate",
    region: str | None = None,
    now: str | None = None,
) -> Resolved:
    """The image that ``channel`` names, by three reads: channel, revocations, release.

    More are read where the image came to the region, or was validated on GPUs, after the release.
    ``region`` may be left out where there is only one; ``now`` is a UTC time as in the documents. Without
    signatures the digests of release and statements are what notices a damaged answer, so they are read,
    too. Raises ``UserError`` with exit code 3 that says what is there instead: no such channel, region not
    ready, expired, revoked; with exit code 1 when a document is damaged.
    """
    pointer = read_channel(store, family=family, cloud=cloud, arch=arch, channel=channel)
    now = now or current_time()
    what = f"channel {channel} of {family} on {cloud} {arch}"
    if pointer.expires and pointer.expires <= now:
        raise _nothing(f"{what} expired at {pointer.expires}", "publish a new build")
    regions = pointer.target.regions
    if region is None and len(regions) > 1:
        raise UserError(f"{what} has several regions", hint=f"give one of {_listed(regions)}")
    region = region or next(iter(regions))
    if region not in regions:
        raise _nothing(f"{what} is not ready in {region}", f"ready: {_listed(regions)}")
    found = regions[region]
    for entry in read_revocations(store, family):
        if entry.effective <= now and (entry.release == found.release or found.id in entry.images):
            raise _nothing(
                f"{what} points to {entry.version}, which is revoked ({entry.severity}): {entry.reason}",
                f"replacement: {entry.replacement}" if entry.replacement else None,
            )
    release = read_release(store, found.release)
    key = keys.channel(family, cloud, arch, channel)
    check_identity(release, key, family=family, cloud=cloud, arch=arch)
    _check_region(store, key, region, found, release)
    said = found.lagging or pointer.target
    if (said.version, said.bundle_digest) != (release.version, release.boot_checks.bundle_digest):
        raise BadDocument(key, f"has another version or bundle in {region} than the release {found.release}")
    gpu = {name: item.validation.state for name, item in release.gpu.families.items()}
    if said.gpu != gpu:
        # What came after the release is believed only with its statement.
        gpu = gpu_states(store, release, record_of(store, release, found.release))
        for name, state in said.gpu.items():
            if gpu.get(name) != state:
                raise BadDocument(key, f"says that {name} is {state}, and no document does")
    return Resolved(
        id=found.id,
        release_digest=found.release,
        family=family,
        version=release.version,
        build_id=release.build.id,
        cloud=cloud,
        arch=arch,
        region=region,
        channel=channel,
        serial=pointer.serial,
        bundle_digest=release.boot_checks.bundle_digest,
        gpu=dict(gpu),
        lags_behind=pointer.target.version if found.lagging else None,
    )


def _check_region(store: Store, key: str, region: str, found: TargetRegion, release: Release) -> None:
    """Raises ``BadDocument`` unless the release, or a statement about it, has this image in this region."""
    there = release.image.regions[region].id if region in release.image.regions else None
    if found.statement:
        there = replica(store, found.statement, release=found.release, region=region)
    if there != found.id:
        raise BadDocument(key, f"has another image in {region} than the release {found.release}")


def read_channel(store: Store, *, family: str, cloud: str, arch: str, channel: str) -> Channel:
    """A channel. Raises ``UserError`` (3) that lists the channels there are."""
    key = keys.channel(family, cloud, arch, channel)
    try:
        content, _ = store.get(key)
    except NotFound:
        there = [name.removeprefix("channels/").removesuffix(".json") for name in store.list("channels/")]
        raise _nothing(
            f"no channel {channel} of {family} on {cloud} {arch}",
            f"there are: {_listed(there)}" if there else f"nothing is published yet at {store.name}",
        ) from None
    pointer = codec.load(Channel, content, name=key)
    check_identity(pointer, key, family=family, cloud=cloud, arch=arch, channel=channel)
    return pointer


def read_release(store: Store, digest: str) -> Release:
    """The release whose bytes have this digest. Raises ``UserError``: 3 not there, 1 damaged."""
    key = keys.release(digest)
    return codec.load(Release, _verified(store, key, digest), name=key)


def read_statement(store: Store, digest: str, *, release: str) -> Statement | None:
    """The statement with this digest, which something names; None: of a kind this program does not know.

    Raises ``BadDocument`` when it is missing, damaged, or about another release than ``release``.
    """
    key = keys.statement(digest)
    try:
        content = _verified(store, key, digest)
    except NotFound:
        raise BadDocument(key, f"is missing, and the manifest at {store.name} names it") from None
    head = codec.load(StatementHead, content, name=key)
    if head.release != release:
        raise BadDocument(key, f"is about {head.release}, expected {release}")
    if head.body.kind not in STATEMENT_KINDS:
        return None
    return codec.load(Statement, content, name=key)


def replica(store: Store, digest: str, *, release: str, region: str) -> str:
    """The image id in ``region`` by the statement with this digest. Raises ``BadDocument``."""
    statement = read_statement(store, digest, release=release)
    if not statement or not isinstance(statement.body, Replicated) or statement.body.region != region:
        raise BadDocument(keys.statement(digest), f"does not say that the image is in {region}")
    return statement.body.id


def validations(store: Store, record: Record) -> dict[str, tuple[str, Validated]]:
    """The last validation of each GPU family: when, and what the statement says; every statement is read.

    Raises ``BadDocument`` when one is missing or damaged, or does not say what the record says.
    """
    found = {}
    for family, digest in record.gpu.items():
        statement = read_statement(store, digest, release=record.release)
        if not statement or not isinstance(statement.body, Validated) or statement.body.family != family:
            raise BadDocument(keys.statement(digest), f"does not say that {family} was validated")
        found[family] = statement.made, statement.body
    return found


def gpu_states(store: Store, release: Release, record: Record) -> dict[str, ValidationState]:
    """The validation state of every GPU family by now: what the release says, and what came after it."""
    found: dict[str, ValidationState] = {
        name: family.validation.state for name, family in release.gpu.families.items()
    }
    return found | dict.fromkeys(validations(store, record), "validated")


def _verified(store: Store, key: str, digest: str) -> bytes:
    content, _ = store.get(key)
    if codec.digest_of(content) != digest:
        raise BadDocument(key, "is damaged: its bytes do not have the digest in its name")
    return content


def read_record(store: Store, *, family: str, version: str, cloud: str, arch: str) -> Record:
    """The record of one build. Raises ``UserError`` (3) when there is none."""
    key = keys.record(family, version, cloud, arch)
    try:
        content, _ = store.get(key)
    except NotFound:
        raise _nothing(f"no {family} {version} on {cloud} {arch}", f"looked in {store.name}") from None
    record = codec.load(Record, content, name=key)
    check_identity(record, key, family=family, version=version, cloud=cloud, arch=arch)
    return record


def record_of(store: Store, release: Release, digest: str) -> Record:
    """The record of a release. Raises ``UserError``: 3 when there is none, 1 when it has another release."""
    build = {
        "family": release.family,
        "version": release.version,
        "cloud": release.cloud,
        "arch": release.arch,
    }
    record = read_record(store, **build)
    check_identity(record, keys.record(**build), release=digest)
    return record


def read_revocations(store: Store, family: str) -> list[Revocation]:
    """The revoked releases of a family; none when nothing was ever revoked."""
    key = keys.revocations(family)
    try:
        content, _ = store.get(key)
    except NotFound:
        return []
    found = codec.load(Revocations, content, name=key)
    check_identity(found, key, family=family)
    return found.entries


def check_identity(document: Document, key: str, **expected: str) -> None:
    """Raises ``BadDocument`` for a document that stands where another one belongs."""
    for name, value in expected.items():
        if (found := getattr(document, name)) != value:
            raise BadDocument(key, f"{name} is {found!r}, expected {value!r}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _nothing(message: str, hint: str | None) -> UserError:
    return UserError(message, hint=hint, code=ExitCode.NOTHING)
