"""The manifest's tasks. Imports are inside, so that listing the tasks stays fast."""

from __future__ import annotations

from invoke.collection import Collection
from invoke.context import Context

from images.cli import task

OPTIONS = {
    "cloud": "the cloud: a folder of images/clouds/",
    "family": "the image's family (default: the cloud's default image)",
    "channel": "the channel",
    "arch": "amd64 or arm64",
    "manifest": "the manifest's folder (default: as in invoke.yaml)",
}


@task(
    help={
        **OPTIONS,
        "region": "the region; may be left out where there is only one",
        "format": "id (only the image's id) or json (also release, version, bundle digest, GPU state)",
    }
)
def resolve(
    c: Context,
    cloud: str,
    region: str | None = None,
    family: str | None = None,
    channel: str = "candidate",
    arch: str = "amd64",
    manifest: str | None = None,
    format: str = "id",
) -> None:
    """Print the id of the image to launch; on the local cloud that is the path of its disk.

    For example: qemu-system-x86_64 -drive file=$(./inv manifest.resolve --cloud=local),snapshot=on
    Exit code 3 when there is nothing to launch; stderr says why, and what is there instead.
    """
    import dataclasses
    import json

    from images import progress, settings
    from images.manifest.resolve import resolve as find
    from images.manifest.store import open_store

    _one_of("--format", format, "id", "json")
    site = settings.load(c.config)
    found = find(
        open_store(manifest or site.manifest),
        family=family or site.image_for(cloud),
        cloud=cloud,
        arch=arch,
        channel=channel,
        region=region,
    )
    if found.lags_behind:
        progress.say(f"{found.region} still has {found.version}; the channel is at {found.lags_behind}")
    print(json.dumps(dataclasses.asdict(found), indent=2, sort_keys=True) if format == "json" else found.id)


@task(
    help={
        **OPTIONS,
        "release": "show this release instead of the channel's: a version, or a digest sha256:...",
        "format": "text, or json: the release document as it is stored",
    }
)
def show(
    c: Context,
    release: str | None = None,
    cloud: str = "local",
    family: str | None = None,
    channel: str = "candidate",
    arch: str = "amd64",
    manifest: str | None = None,
    format: str = "text",
) -> None:
    """Show what is in an image and where it is, what its checks said, and what nobody looked at.

    For example: ./inv manifest.show, ./inv manifest.show --release=2026.1130.54712 --format=json
    """
    import os
    import sys

    from rich.console import Console

    from images import settings
    from images.manifest import keys, regions
    from images.manifest import resolve as manifest_
    from images.manifest.show import render
    from images.manifest.store import open_store

    _one_of("--format", format, "text", "json")
    site = settings.load(c.config)
    store = open_store(manifest or site.manifest)
    family = family or site.image_for(cloud)
    pointer = None
    if release is None:
        pointer = manifest_.read_channel(store, family=family, cloud=cloud, arch=arch, channel=channel)
        digest = pointer.target.release
    elif release.startswith("sha256:"):
        digest = release
    else:
        digest = manifest_.read_record(store, family=family, version=release, cloud=cloud, arch=arch).release
    document = manifest_.read_release(store, digest)
    if format == "json":
        sys.stdout.buffer.write(store.get(keys.release(digest))[0])
        return
    known = regions.regions(store, digest)
    record = manifest_.record_of(store, document, digest)
    text = render(
        document,
        digest,
        regions=known,
        shares=regions.shares(store, digest),
        validations=manifest_.validations(store, record),
        pointer=pointer,
    )
    # Digests and paths are for copying: a narrow terminal wraps them better than rich would.
    needed = max(80, *(len(item.id or "") for item in known.values())) + 40
    width = max(os.get_terminal_size().columns if sys.stdout.isatty() else 0, needed)
    Console(highlight=False, width=width).print(text)


def _one_of(option: str, value: str, *choices: str) -> None:
    from images.errors import UserError

    if value not in choices:
        raise UserError(f"{option}={value}: must be one of {', '.join(choices)}")


def collection() -> Collection:
    """These tasks."""
    return Collection(resolve, show)
