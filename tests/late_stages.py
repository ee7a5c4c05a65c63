"""Runs a build that starts from the image of a build that is there already.

Not a stand-in: every stage that runs is real. ``--from-disk`` takes the captured image as the base disk,
so that the kernel role has little to do; ``--from-capture`` takes it as Packer's
artifact, so that a late stage can be killed soon. With ``--min-free BYTES`` a check of its gate fails.
Usage:

    python -m tests.late_stages BUILD-FOLDER --from-disk|--from-capture [--set key=value ...] [--keep]
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from invoke.config import Config
from invoke.context import Context

from images import cli, pipeline, settings
from images.clouds.local import base as bases
from images.clouds.local.adaptor import LocalCloud
from images.clouds.model import Base
from images.inputs import Options
from images.job import Job
from images.progress import Stage


def take_as_capture(source: Path, min_free: int | None) -> None:
    """Replaces the Packer stage: its artifact is a copy of the captured image."""

    def packer(job: Job, base: Base, stage: Stage) -> list[str]:
        output = job.build.folder / "packer"
        output.mkdir()
        shutil.copyfile(next(source.glob("*.qcow2")), output / "disk.qcow2")
        for name in ("gate-build.json", "expected.json"):
            shutil.copyfile(source / name, job.build.folder / name)
        if min_free is not None:
            expected = json.loads((source / "expected.json").read_bytes())
            (job.build.folder / "expected.json").write_text(
                json.dumps({**expected, "min_free_bytes": min_free})
            )
        return [str(output / "disk.qcow2")]

    Job._packer = packer  # type: ignore[method-assign]


def take_as_base(source: Path) -> None:
    """Replaces the bootstrap: the base disk is the captured image."""

    def prepare_base(cloud: LocalCloud, *_: Any, **__: Any) -> Base:
        image = next(source.glob("*.qcow2"))
        return Base("captured", str(image), bases.sha256_of(image), "the shared build's image")

    LocalCloud.prepare_base = prepare_base  # type: ignore[method-assign]


def main() -> None:
    """Builds as ``inv build`` does, from there on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--from-disk", action="store_true")
    start.add_argument("--from-capture", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--min-free", type=int)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    if options.from_disk:
        take_as_base(options.source)
    else:
        take_as_capture(options.source, options.min_free)
    config = Config(project_location=str(settings.CHECKOUT))
    config.load_project()
    config.load_shell_env()
    with cli.guard(Context(config)):
        pipeline.build(
            Options(
                cloud="local",
                image="gpu-debian",
                force=True,
                overrides=tuple(options.set),
                keep=options.keep,
            ),
            settings.load(config),
        )


if __name__ == "__main__":
    main()
