"""Runs the late stages of a build (capture, gate, publish) on the image of a build that is there already.

Not a stand-in: only the Packer stage, which the shared build has been through, is left out, so that killing
a build in a late stage need not take another five minutes. Usage: python -m tests.late_stages BUILD-FOLDER
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from invoke.config import Config

from images import cli, pipeline, settings
from images.clouds import Base
from images.pipeline import Job, Options
from images.progress import Stage


def main(source: Path) -> None:
    """Builds as ``inv build`` does, with the captured image of ``source`` as Packer's artifact."""

    def packer(job: Job, base: Base, stage: Stage) -> list[str]:
        output = job.build.folder / "packer"
        output.mkdir()
        shutil.copyfile(next(source.glob("*.qcow2")), output / "disk.qcow2")
        for name in ("gate-build.json", "expected.json"):
            shutil.copyfile(source / name, job.build.folder / name)
        return [str(output / "disk.qcow2")]

    Job._packer = packer  # type: ignore[method-assign]
    config = Config(project_location=str(settings.CHECKOUT))
    config.load_project()
    config.load_shell_env()
    from invoke.context import Context

    with cli.guard(Context(config)):
        pipeline.build(Options(cloud="local", image="gpu-debian", force=True), settings.load(config))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
