"""The way an image takes: spec, lock, base, render, Packer build with its gate, capture, gate on machines
booted from the capture, publish.

Nothing is published before the last stage; whatever goes wrong, nothing is left running and the evidence
stays in the build's folder.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from images import builds, clouds, doctor, gate, lock, progress, replicate, spec, sweep
from images import release as releases
from images.errors import Interrupted, UserError
from images.inputs import Options, gather
from images.job import Job, Made
from images.manifest.named import named_images
from images.manifest.store import open_store
from images.release import Outcome
from images.settings import Settings


def build(options: Options, settings: Settings) -> Outcome:
    """Builds, gates and publishes one image. Raises ``UserError``; the failed stage comes first in it."""
    stages = progress.Stages()
    for line in sweep.dead(settings):
        progress.say(f"  cleaned up after a dead build: {line}")
    inputs = gather(options, settings, stages)
    if not options.force:
        published = releases.unchanged(settings, inputs)
        if published:
            return published
    doctor.require_space(settings.build_dir, settings.cache)
    with builds.new(settings.build_dir, inputs.loaded.spec.family, inputs.cloud.name) as folder:
        folder.record(arch=inputs.lock.arch, inputs_digest=inputs.digest)
        progress.say(f"build {folder.id}")
        job = Job(options, settings, inputs, folder, stages)
        try:
            outcome = _publish(job, job.run())
        except (UserError, Interrupted, KeyboardInterrupt) as error:
            raise _failed(error, job) from None
        except BaseException as error:
            _failed(error, job)
            raise
        _replicate(job, outcome)
        return outcome


def _publish(job: Job, made: Made) -> Outcome:
    """The last stage."""
    with job.stage("publish", "publish to the manifest") as stage:
        outcome = releases.publish(job, made)
        cloud = job.inputs.cloud
        cloud.published(made.image.id, made.image.region, outcome.release, job.settings)
        stage.outcome = f"{outcome.channel}, serial {outcome.serial}"
    job.discard_in_cloud(keep={made.image.id})
    builds.discard_disks(job.build.folder, keep={made.image.id})
    outcome.stages = {name: round(seconds, 1) for name, seconds in job.stages.seconds.items()}
    job.build.record(status="done", release=outcome.release, stages=outcome.stages)
    return outcome


def _replicate(job: Job, outcome: Outcome) -> None:
    """Copies the published image to the spec's other regions. One that fails is recorded and takes nothing
    back: the release is published. Raises ``UserError`` when not all are there."""
    cloud = job.inputs.cloud
    if len(cloud.regions(job.inputs.loaded)) < 2:
        return
    with job.stages.stage("replicate", "copies in other regions") as stage:
        done = replicate.replicate(
            cloud,
            job.inputs.loaded,
            outcome.release,
            settings=job.settings,
            note=stage.note,
        )
        outcome.regions = done.images
        stage.outcome = ", ".join(sorted(done.images))
        done.require_all()
    outcome.stages = {name: round(seconds, 1) for name, seconds in job.stages.seconds.items()}


def _failed(error: BaseException, job: Job) -> BaseException:
    """Cleans up after a failed build and returns the error to show."""
    options, settings, folder = job.options, job.settings, job.build
    cloud = job.inputs.cloud
    stage = job.stages.current or "start"
    interrupted = isinstance(error, Interrupted | KeyboardInterrupt)
    kept = options.keep and not interrupted and _runs(job)
    left = None
    if kept:
        expires = time.time() + settings.keep_hours * 3600
        folder.record(status="kept", stage=stage, reason=str(error), expires=expires)
    else:
        builds.end_processes(folder.id)
        folder.record(status="interrupted" if interrupted else "failed", stage=stage, reason=str(error))
        left = _discard(job)
    with contextlib.suppress(OSError, ValueError):  # the gate was killed while it wrote
        gate.merge(folder.folder, folder.id)
    if left:
        progress.say(f"  could not be cleaned up now: {left}")
        progress.say(f"  ./inv sweep --cloud={cloud.name} --yes does it; machines end by themselves")
    if interrupted or not isinstance(error, UserError):
        return error
    hints = [error.hint] if error.hint else []
    hints.append(f"logs and evidence: {folder.folder}")
    if kept:
        hints.append(f"the machine runs for {settings.keep_hours} h: ./inv ssh {folder.id}")
    elif stage in ("build", "gate") and not options.keep:
        hints.append("--on-error=keep leaves the machine running, so that ./inv ssh can look")
    return UserError(f"{stage}: {error.message}", hint="\n       ".join(hints), code=error.code)


def _runs(job: Job) -> bool:
    """Whether a machine of the build runs that somebody could enter."""
    try:
        return job.inputs.cloud.running(job.scope())
    except UserError:
        return False


def _discard(job: Job) -> str | None:
    """Takes away disks, image and whatever a failed build has in the cloud, but not an image that the
    manifest names by now. Returns why something had to stay."""
    folder, image = job.build, job.image
    try:
        published = set(named_images(open_store(job.settings.manifest), [job.record_key]))
    except UserError as error:
        # Whether the image is published is not known: then it stays.
        return f"{image.id if image else 'the image'}, since {error.message}"
    builds.discard_disks(folder.folder, keep=published)
    try:
        if image and image.id not in published:
            job.inputs.cloud.delete(image.id, image.region, job.settings)
        job.discard_in_cloud(keep=published)
    except UserError as error:
        return error.message
    return None


def plan(options: Options, settings: Settings) -> Sequence[str]:
    """What ``--dry`` prints: the stages and commands of a build, without starting anything."""
    cloud = clouds.load(options.cloud)
    loaded = spec.load(options.image, overrides=options.overrides)
    loaded.section(cloud.name, cloud.section)
    path = options.lock_file or lock.path_for(loaded.spec.family, cloud.name, options.arch, settings.locks)
    return [
        f"lock     {path if path.exists() else 'resolve the versions into ' + str(path)}",
        f"base     {settings.cache}",
        f"render   {loaded.source.name} -> {settings.build_dir}/<build-id>/template/",
        "build    packer build -machine-readable -var-file=runtime.pkrvars.json template/",
        f"capture  {settings.build_dir}/<build-id>/",
        f"gate     {', '.join(cloud.first_boots())}, reboot, the disk from outside",
        f"publish  {settings.manifest}: release, record, channel candidate",
        *(f"copy     {region}" for region in cloud.regions(loaded)[1:]),
    ]
