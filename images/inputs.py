"""What a build is made from: read, resolved and rendered before any machine starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from images import bundle, clouds, fingerprint, lock, packer, progress, render, simulation, spec
from images.clouds import Cloud
from images.clouds.model import Note
from images.errors import UserError
from images.lock import Lock
from images.settings import Settings
from images.spec import Loaded


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    cloud: str
    image: str
    arch: str = "amd64"
    overrides: tuple[str, ...] = ()
    lock_file: Path | None = None
    accelerator: str | None = None
    keep: bool = False
    force: bool = False
    verbose: bool = False


@dataclass
class Inputs:
    """What a build is made from, all known before anything starts."""

    cloud: Cloud
    loaded: Loaded
    lock: Lock
    rendered: dict[str, str]
    bundle: tuple[bundle.BundleFile, ...]
    packer_version: render.Version
    accelerator: str
    digest: str


def require_arch(cloud: Cloud, loaded: Loaded, arch: str) -> None:
    """Raises ``UserError`` when the image is not made for ``arch`` on this cloud."""
    known = cloud.architectures(loaded)
    if arch not in known:
        raise UserError(
            f"{loaded.source.place(('arch',))}: {loaded.spec.family} is not made for {arch} on {cloud.name}",
            hint=f"it is made for: {', '.join(known)}",
        )


def lock_for(
    cloud: Cloud,
    loaded: Loaded,
    options: Options,
    *,
    settings: Settings,
    note: Note,
    again: bool = False,
) -> Lock:
    """The lock to build from: ``--lock=FILE``, else the one of this checkout when it fits the spec, else a
    new one. A lock that ``--set`` made necessary is not written: it is this build's alone."""
    require_arch(cloud, loaded, options.arch)
    if options.lock_file:
        return lock.read(options.lock_file)
    path = lock.path_for(loaded.spec.family, cloud.name, options.arch, settings.locks)
    wanted = lock.inputs_digest(loaded, cloud.name, options.arch)
    if path.exists() and not again:
        found = lock.read(path)
        if found.inputs == wanted:
            return found
        note("the spec's kernel, OS or base changed: resolving again")
    resolved = cloud.resolve(loaded, options.arch, settings=settings, note=note)
    if not loaded.overrides:
        lock.write(resolved, path)
    return resolved


def gather(options: Options, settings: Settings, stages: progress.Stages) -> Inputs:
    """Reads and resolves everything a build depends on; starts no machine."""
    cloud = clouds.load(options.cloud)
    loaded = spec.load(options.image, overrides=options.overrides)
    loaded.section(cloud.name, cloud.section)
    require_arch(cloud, loaded, options.arch)
    if lines := cloud.missing_credentials(settings):
        raise UserError(
            f"the cloud {cloud.name} cannot be used yet:\n  " + "\n  ".join(lines), hint="docs/operators.md"
        )
    with stages.stage("lock", "versions from the lock") as stage:
        the_lock = lock_for(cloud, loaded, options, settings=settings, note=stage.note)
        stage.outcome = f"kernel {the_lock.kernel.release}, resolved {the_lock.resolved}"
    if the_lock.origin == "fixture" and not simulation.name():
        raise UserError(
            "this lock is a test fixture and cannot be built from", hint="./inv lock resolves a real one"
        )
    version = packer.version()
    rendered = render.render(cloud, loaded, the_lock, packer_version=version)
    files = bundle.collect()
    digest = fingerprint.of(
        spec_digest=loaded.digest,
        lock_digest=the_lock.digest,
        rendered=rendered,
        bundle_digest=bundle.digest(files),
        base_id=cloud.base_id(loaded, the_lock),
        site=settings.site,
    )
    accelerator, why = cloud.choose_accelerator(options.accelerator)
    progress.say(f"  accelerator {why}")
    return Inputs(cloud, loaded, the_lock, rendered, files, version, accelerator, digest)
