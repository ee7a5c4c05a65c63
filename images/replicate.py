"""Copies a published image to other regions, and shares it: steps of our own, after the build.

Each region is on its own: one that fails is recorded with its reason, takes nothing back, and is tried again
by the same command. A copy that was begun and interrupted is finished, not begun again.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from images import release as releases
from images.clouds import Cloud
from images.clouds.model import Context, Image, Note
from images.errors import ExitCode, UserError
from images.manifest import regions as manifest
from images.manifest.documents import Release
from images.manifest.resolve import read_release
from images.manifest.store import Store, open_store
from images.settings import Settings
from images.spec import Loaded


@dataclass
class Replicated:
    """Where the image is now: ``images`` by region, and ``failed`` regions with the reason."""

    release: str
    images: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def require_all(self) -> None:
        """Raises ``UserError`` when a region failed."""
        if self.failed:
            lines = [f"{region}: {reason}" for region, reason in sorted(self.failed.items())]
            raise UserError(
                "the image is published, but not in all regions:\n  " + "\n  ".join(lines),
                hint=f"./inv replicate {self.release} tries these again",
                code=ExitCode.FAILED,
            )


def replicate(
    cloud: Cloud,
    loaded: Loaded,
    digest: str,
    *,
    settings: Settings,
    note: Note,
    wanted: Sequence[str] = (),
) -> Replicated:
    """Copies the image of the release ``digest`` to the regions of the spec (or ``wanted``) side by side.

    Verified by id in each region, tagged there, recorded in the manifest; what the image was shared with
    before is done for new copies too. Never raises for a region that failed: see ``Replicated``.
    """
    store = open_store(settings.manifest)
    release = read_release(store, digest)
    home, image = next(iter(release.image.regions.items()))
    source = Image(id=image.id, region=home, name=release.image.name)
    if (state := cloud.image_state(source.id, home, settings)) != "available":
        raise UserError(f"{source.id} in {home} is {state}: nothing to copy from", code=ExitCode.FAILED)
    regions = [region for region in (wanted or cloud.regions(loaded)) if region != home]
    expires = time.time() + settings.build_hours * 3600
    context = Context(release.build.id, loaded, release.arch, settings, expires=expires)
    done = Replicated(digest, {home: source.id})
    if not regions:
        return done
    with ThreadPoolExecutor(max_workers=len(regions)) as pool:
        jobs: dict[str, Future[str]] = {}
        for region in regions:
            work = partial(_one, cloud, store, release, digest, source, region, context, note)
            jobs[region] = pool.submit(contextvars.copy_context().run, work)
        for region, job in jobs.items():
            try:
                done.images[region] = job.result()
            except UserError as error:
                done.failed[region] = error.message
                manifest.failed(store, digest, region=region, reason=error.message, actor=releases.actor())
    return done


def _one(
    cloud: Cloud,
    store: Store,
    release: Release,
    digest: str,
    source: Image,
    region: str,
    context: Context,
    note: Note,
) -> str:
    """One region: what is there already is verified and kept, what is missing is copied."""
    settings = context.settings
    known = manifest.regions(store, digest).get(region)
    gone = None
    if known and known.state == "available" and known.id:
        if cloud.image_state(known.id, region, settings) == "available":
            return known.id
        gone = known.id
    note(f"{region}: copying {source.id}")
    before = known.id if known and known.state == "pending" else None

    def begun(identifier: str) -> None:
        nonlocal before
        if before not in (None, identifier):  # that one failed; the cloud has taken it away
            reason = f"{before} did not become available"
            manifest.failed(store, digest, region=region, reason=reason, actor=releases.actor())
        before = identifier
        manifest.pending(store, digest, region=region, id=identifier, replaces=gone)

    copied = cloud.copy(source, region, context, note=note, begun=begun)
    for grantee in manifest.shares(store, digest):
        cloud.share(copied.id, region, [grantee], settings)
        manifest.shared(store, digest, images={region: copied.id}, with_=[grantee], actor=releases.actor())
    cloud.published(copied.id, region, digest, settings)
    manifest.replicated(store, digest, region=region, id=copied.id, actor=releases.actor(), replaces=gone)
    note(f"{region}: {copied.id} is there")
    return copied.id


def share(
    cloud: Cloud, digest: str, accounts: Sequence[str], *, settings: Settings, note: Note
) -> dict[str, str]:
    """Lets ``accounts`` launch the image in every region where it is; returns the images by region.

    Recorded, so that later copies are shared too. Raises ``UserError`` at the first region that refuses;
    those before it stay shared, and doing it again changes nothing there.
    """
    store = open_store(settings.manifest)
    images = {
        region: state.id
        for region, state in manifest.regions(store, digest).items()
        if state.state == "available" and state.id
    }
    for region, identifier in sorted(images.items()):
        note(f"{region}: {identifier}")
        cloud.share(identifier, region, accounts, settings)
        manifest.shared(store, digest, images={region: identifier}, with_=accounts, actor=releases.actor())
    return images
