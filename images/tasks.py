"""The tasks that build: each reads its options, calls one function, and shows what came out."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from invoke.collection import Collection
from invoke.context import Context

from images.cli import task

CLOUD = "the cloud: a folder of images/clouds/"
IMAGE = "the image: a name of images/catalog/, or a spec file (default: the cloud's default image)"
SET = "spec override key=value, recorded in the release; may be given several times"
LOCK = "take the versions from this lock file"
YES = "install missing system packages without asking"
NO_INSTALL = "only print what is missing, exit 2"


@task(
    help={
        "cloud": CLOUD,
        "image": IMAGE,
        "arch": "amd64 or arm64",
        "set": SET,
        "lock": LOCK,
        "on_error": "cleanup (default), or keep: leave the machine running for ./inv ssh",
        "force": "build although nothing changed",
        "json": "print the result as JSON",
        "verbose": "show Packer's own output",
        "accel": "kvm or tcg (default: kvm where a guest really runs with it)",
        "yes": YES,
        "no_install": NO_INSTALL,
    },
    iterable=["set"],
)
def build(
    c: Context,
    cloud: str,
    image: str | None = None,
    arch: str = "amd64",
    set: Sequence[str] | None = None,
    lock: str | None = None,
    on_error: str = "cleanup",
    force: bool = False,
    json: bool = False,
    verbose: bool = False,
    accel: str | None = None,
    yes: bool = False,
    no_install: bool = False,
) -> None:
    """Build an image, gate it, boot what was captured, gate that, publish it.

    For example: ./inv build --cloud=local. When nothing that the image is made from changed since the
    published one, nothing is built (--force does). With --dry (./inv --dry build ...) only the plan is
    printed.
    """
    from images import clouds, doctor, inputs, pipeline, progress, run, settings
    from images.errors import UserError

    site = settings.load(c.config)
    _one_of("--on-error", on_error, ("cleanup", "keep"))
    options = inputs.Options(
        cloud=cloud,
        image=image or site.image_for(cloud),
        arch=arch,
        overrides=tuple(set or ()),
        lock_file=Path(lock) if lock else None,
        accelerator=accel,
        keep=on_error == "keep",
        force=force,
        verbose=verbose,
    )
    if run.dry.get():
        for line in pipeline.plan(options, site):
            print(line)
        return
    chosen = clouds.load(cloud)
    doctor.ensure({**doctor.PROGRAMS, **chosen.programs}, yes=yes, install=not no_install)
    try:
        outcome = pipeline.build(options, site)
    except UserError as error:
        if json:
            _print_json({"status": "failed", "error": error.message, "hint": error.hint})
        raise
    if json:
        _print_json(dataclasses.asdict(outcome))
    else:
        for line in summary(outcome):
            progress.say(line)


def summary(outcome: Any) -> list[str]:
    """What a person wants to know after a build, a line each; what was not tested comes last."""
    from images import progress

    took = ", ".join(f"{name} {progress.format_seconds(value)}" for name, value in outcome.stages.items())
    head = {"published": "published", "unchanged": "nothing changed; the published image is"}[outcome.status]
    size = f" ({outcome.image_bytes / 1024**2:.0f} MiB)" if outcome.image_bytes else ""
    lines = [
        "",
        f"{head} {outcome.image} {outcome.version}",
        f"  image     {outcome.image_id}{size}",
        f"  release   {outcome.release}",
        f"  channel   {outcome.channel}, serial {outcome.serial}",
        f"  evidence  {outcome.evidence}",
        *(f"  region    {region} {found}" for region, found in sorted(outcome.regions.items())),
        f"  boot it   {outcome.how_to_boot}",
    ]
    if took:
        lines.append(f"  stages    {took}")
    lines += [f"  not tested: {line}" for line in outcome.not_tested]
    return lines


@task(
    help={
        "cloud": CLOUD,
        "out": "folder to write the template to",
        "image": IMAGE,
        "arch": "amd64 or arm64",
        "set": SET,
        "lock": LOCK,
        "validate": "let packer validate check the result",
        "packer_version": "render for this Packer instead of the installed one, for example 1.14.2",
    },
    iterable=["set"],
)
def render(
    c: Context,
    cloud: str,
    out: str,
    image: str | None = None,
    arch: str = "amd64",
    set: Sequence[str] | None = None,
    lock: str | None = None,
    validate: bool = False,
    packer_version: str | None = None,
) -> None:
    """Render the Packer template of an image: a pure function of spec and lock."""
    from images import clouds, inputs, packer, progress, settings, spec
    from images import render as renderer

    site = settings.load(c.config)
    chosen = clouds.load(cloud)
    loaded = spec.load(image or site.image_for(cloud), overrides=tuple(set or ()))
    options = inputs.Options(
        cloud=cloud, image=loaded.spec.family, arch=arch, lock_file=Path(lock) if lock else None
    )
    found = inputs.lock_for(chosen, loaded, options, settings=site, note=progress.say)
    version = packer.parse_version(packer_version) if packer_version else packer.version()
    files = renderer.render(chosen, loaded, found, packer_version=version)
    renderer.write(files, Path(out))
    if validate:
        packer.validate_rendering(Path(out), chosen)
    for name in sorted(files):
        print(Path(out) / name)


@task(
    name="lock",
    help={"cloud": CLOUD, "image": IMAGE, "arch": "amd64 or arm64", "set": SET},
    iterable=["set"],
)
def lock_(
    c: Context, cloud: str, image: str | None = None, arch: str = "amd64", set: Sequence[str] | None = None
) -> None:
    """Resolve the exact versions behind a spec by asking the archives, and write the lock.

    The local lock is git-ignored and reused until this task runs again. With --set the result is only
    printed.
    """
    from images import clouds, inputs, lock, progress, settings, spec

    site = settings.load(c.config)
    chosen = clouds.load(cloud)
    loaded = spec.load(image or site.image_for(cloud), overrides=tuple(set or ()))
    options = inputs.Options(cloud=cloud, image=loaded.spec.family, arch=arch)
    resolved = inputs.lock_for(chosen, loaded, options, settings=site, note=progress.say, again=True)
    for package in resolved.kernel.packages:
        print(f"{package.name} {package.version} sha256:{package.sha256}")
    if not loaded.overrides:
        progress.say(f"written: {lock.path_for(loaded.spec.family, cloud, arch, site.locks)}")


@task(help={"cloud": CLOUD, "accel": "kvm or tcg"})
def doctor(c: Context, cloud: str = "local", accel: str | None = None) -> None:
    """Say what is missing for a build, how to get it, and whether KVM works. Exit code 2 if anything is."""
    from images import clouds, settings
    from images import doctor as doctor_
    from images.errors import ExitCode

    rows = doctor_.report(clouds.load(cloud), settings.load(c.config), accel=accel)
    for good, what, detail in rows:
        print(f"{'ok     ' if good else 'MISSING'}  {what:24} {detail}")
    if not all(good for good, _, _ in rows):
        sys.exit(ExitCode.USAGE)


@task(positional=["build"], help={"build": "the build id", "command": "run this instead of a shell"})
def ssh(c: Context, build: str, command: str | None = None) -> None:
    """Enter the machine that a failed build left with --on-error=keep."""
    from images import settings, sweep

    sweep.enter(settings.load(c.config), build, command)


@task(
    help={
        "cloud": "also in this cloud (default: only on this machine)",
        "yes": "remove what is shown",
        "packers": "also old, untagged key pairs and groups of any Packer: not in a shared account",
    }
)
def sweep(c: Context, cloud: str = "local", yes: bool = False, packers: bool = False) -> None:
    """Show what dead builds left (processes, disks; in a cloud machines, images, ...); remove it with --yes.

    Never touches a live build, a kept machine before its expiry, or what the manifest names.
    """
    from images import clouds, settings
    from images import sweep as sweep_

    found = sweep_.leftovers(settings.load(c.config), clouds.load(cloud), anybodys=packers)
    _remove(found, yes=yes, nothing="nothing is left over")


RELEASE = "the release: its digest (sha256:...), as build prints it"


@task(
    positional=["release"],
    iterable=["region"],
    help={
        "release": RELEASE,
        "region": "a region to copy to (default: those of the spec); may be given several times",
        "json": "print the result as JSON",
    },
)
def replicate(c: Context, release: str, region: Sequence[str] | None = None, json: bool = False) -> None:
    """Copy a published image to other regions; do it again for those that failed.

    What is there already is verified and kept. A region that fails is recorded, takes nothing back, and
    makes the exit code 1.
    """
    import dataclasses

    from images import clouds, progress, settings, spec
    from images import replicate as steps
    from images.manifest.resolve import read_release
    from images.manifest.store import open_store

    site = settings.load(c.config)
    found = read_release(open_store(site.manifest), release)
    stages = progress.Stages()
    with stages.stage("replicate", "copies in other regions") as stage:
        done = steps.replicate(
            clouds.load(found.cloud),
            spec.load(found.family),
            release,
            settings=site,
            note=stage.note,
            wanted=tuple(region or ()),
        )
    if json:
        _print_json(dataclasses.asdict(done))
    else:
        for name, identifier in sorted(done.images.items()):
            print(f"{name}  {identifier}")
    done.require_all()


@task(
    name="share",
    positional=["release"],
    iterable=["account"],
    help={"release": RELEASE, "account": "who may launch it, as the cloud names accounts; may be repeated"},
)
def share(c: Context, release: str, account: Sequence[str] | None = None) -> None:
    """Let other accounts launch a published image, in every region where it is.

    Copies that are made later are shared too.
    """
    from images import clouds, progress, settings
    from images import replicate as steps
    from images.errors import UserError
    from images.manifest.resolve import read_release
    from images.manifest.store import open_store

    if not account:
        raise UserError("--account is missing", hint="./inv share RELEASE --account=123456789012")
    site = settings.load(c.config)
    found = read_release(open_store(site.manifest), release)
    stages = progress.Stages()
    with stages.stage("share", f"share with {', '.join(account)}") as stage:
        images = steps.share(
            clouds.load(found.cloud), release, tuple(account), settings=site, note=stage.note
        )
    for name, identifier in sorted(images.items()):
        print(f"{name}  {identifier}")


@task(help={"yes": "remove what is shown", "all": "also the newest ones and the caches"})
def clean(c: Context, yes: bool = False, all: bool = False) -> None:
    """Apply the retention of the settings to local images, failed builds and cached base disks.

    Images that a channel of the manifest names stay. Without --yes only shows what would go.
    """
    from images import settings
    from images import sweep as sweep_

    found = sweep_.retention(settings.load(c.config), everything=all)
    _remove(found, yes=yes, nothing="nothing to clean")


def _remove(found: Sequence[Any], *, yes: bool, nothing: str) -> None:
    """Shows what may go; with ``yes`` it goes, and what refuses does not keep the rest."""
    from images.errors import ExitCode, UserError

    failed = 0
    for item in found:
        if yes:
            try:
                item.remove()
            except UserError as error:
                failed += 1
                print(f"stays    {item.kind:10} {item.name}  ({error.message})")
                continue
        print(f"{'removed' if yes else 'would remove'}  {item.kind:10} {item.name}  ({item.reason})")
    if failed:
        raise UserError(f"{failed} could not be removed", code=ExitCode.FAILED)
    if not found:
        print(nothing)
    elif not yes:
        print("run it again with --yes to remove these")


def _one_of(option: str, value: str, choices: Sequence[str]) -> None:
    from images.errors import UserError

    if value not in choices:
        raise UserError(f"{option}={value}: must be one of {', '.join(choices)}")


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, sort_keys=True))


def collection() -> Collection:
    """These tasks."""
    found = Collection()
    for item in (build, render, lock_, doctor, ssh, replicate, share, sweep, clean):
        found.add_task(item)
    return found
