"""The layout of a manifest: the key of every kind of object. The same on every kind of store."""

from __future__ import annotations


def release(digest: str) -> str:
    """A release document, by the digest of its bytes."""
    return _by_digest("releases", digest, ".json")


def statement(digest: str) -> str:
    """A later fact about a release, by the digest of its bytes."""
    return _by_digest("statements", digest, ".json")


def blob(digest: str) -> str:
    """Evidence, a report, a log: any bytes that a release links to."""
    return _by_digest("blobs", digest)


def pointer(digest: str) -> str:
    """The immutable copy of one version of a channel."""
    return _by_digest("pointers", digest, ".json")


def record(family: str, version: str, cloud: str, arch: str) -> str:
    """What is known of one build: mutable."""
    return f"records/{family}/{version}/{cloud}-{arch}.json"


def channels(family: str, cloud: str, arch: str) -> str:
    """What the keys of all channels of one image start with."""
    return f"channels/{family}/{cloud}/{arch}/"


def channel(family: str, cloud: str, arch: str, name: str) -> str:
    """The pointer that provisioners read: mutable."""
    return f"{channels(family, cloud, arch)}{name}.json"


def revocations(family: str) -> str:
    """The list of revoked releases of a family: mutable; not there while nothing was revoked."""
    return f"revocations/{family}.json"


def _by_digest(folder: str, digest: str, suffix: str = "") -> str:
    algorithm, _, value = digest.partition(":")
    return f"{folder}/{algorithm}/{value[:2]}/{value}{suffix}"
