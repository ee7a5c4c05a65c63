"""The way an image takes: spec, lock, base, render, Packer build with its gate, capture, gate on machines
booted from the capture, publish.

Nothing is published before the last stage; whatever goes wrong, nothing is left running and the evidence
stays in the build's folder.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from images import builds, clouds, doctor, gate, lock, progress, spec, sweep
from images import release as releases
from images.errors import Interrupted, UserError
from images.inputs import Options, gather
from images.job import Job, Made
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
            return _publish(job, job.run())
        except (UserError, Interrupted, KeyboardInterrupt) as error:
            raise _failed(error, job) from None
        except BaseException as error:
            _failed(error, job)
            raise


def _publish(job: Job, made: Made) -> Outcome:
    """The last stage."""
    with job.stage("publish", "publish to the manifest") as stage:
        outcome = releases.publish(job, made)
        stage.outcome = f"{outcome.channel}, serial {outcome.serial}"
    builds.discard_disks(job.build.folder, keep={made.image.id})
    outcome.stages = {name: round(seconds, 1) for name, seconds in job.stages.seconds.items()}
    job.build.record(status="done", release=outcome.release, stages=outcome.stages)
    return outcome


def _failed(error: BaseException, job: Job) -> BaseException:
    """Cleans up after a failed build and returns the error to show."""
    options, settings, folder = job.options, job.settings, job.build
    stage = job.stages.current or "start"
    interrupted = isinstance(error, Interrupted | KeyboardInterrupt)
    kept = options.keep and not interrupted and bool(builds.processes(folder.id))
    if kept:
        expires = time.time() + settings.keep_hours * 3600
        folder.record(status="kept", stage=stage, reason=str(error), expires=expires)
    else:
        builds.end_processes(folder.id)
        folder.record(status="interrupted" if interrupted else "failed", stage=stage, reason=str(error))
        _discard(job)
    with contextlib.suppress(OSError, ValueError):  # the gate was killed while it wrote
        gate.merge(folder.folder, folder.id)
    if interrupted or not isinstance(error, UserError):
        return error
    hints = [error.hint] if error.hint else []
    hints.append(f"logs and evidence: {folder.folder}")
    if kept:
        hints.append(f"the machine runs for {settings.keep_hours} h: ./inv ssh {folder.id}")
    elif stage in ("build", "gate") and not options.keep:
        hints.append("--on-error=keep leaves the machine running, so that ./inv ssh can look")
    return UserError(f"{stage}: {error.message}", hint="\n       ".join(hints), code=error.code)


def _discard(job: Job) -> None:
    """Takes away disks and image of a failed build, but not an image that the manifest names by now."""
    image, folder = job.image, job.build.folder
    published: set[str] = set()
    if image and job.stages.current in ("publish", None):
        try:
            published = releases.published_images(
                job.settings, [builds.Past(folder, job.build.state, alive=True)]
            )
        except UserError:  # not to be known: then it stays
            published = {image.id}
    if image and image.id not in published:
        job.inputs.cloud.delete(image.id, image.region)
    builds.discard_disks(folder, keep=published)


def plan(options: Options, settings: Settings) -> Sequence[str]:
    """What ``--dry`` prints: the stages and commands of a build, without starting anything."""
    cloud = clouds.load(options.cloud)
    loaded = spec.load(options.image, overrides=options.overrides)
    loaded.section(cloud.name, cloud.section)
    path = options.lock_file or lock.path_for(loaded.spec.family, cloud.name, options.arch)
    return [
        f"lock     {path if path.exists() else 'resolve the versions into ' + str(path)}",
        f"base     {settings.cache}",
        f"render   {loaded.source.name} -> {settings.build_dir}/<build-id>/template/",
        "build    packer build -machine-readable -var-file=runtime.pkrvars.json template/",
        f"capture  {settings.build_dir}/<build-id>/",
        f"gate     {', '.join(cloud.first_boots())}, reboot, the disk from outside",
        f"publish  {settings.manifest}: release, record, channel candidate",
    ]
