"""``inv sim``: a person's session in the box, with real virtual machines."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from images import clouds, inputs, progress, spec
from images.errors import Interrupted, UserError
from images.settings import CHECKOUT, Settings
from tests.cloud_sim.box import Box
from tests.cloud_sim.qemu import Hardware
from tests.cloud_sim.vm import VmTarget, source_image

IMAGE = "gpu-debian"


@dataclass(frozen=True)
class Session:
    """A running box and the folder of what is built in it."""

    box: Box
    folder: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """Of the commands in the box. The account ends with it, so manifest and locks are its own."""
        kept = {name: os.environ[name] for name in ("http_proxy",) if name in os.environ}  # apt's
        return {
            **self.box.environment(),
            **kept,
            "INVOKE_GPU_IMAGE_MANIFEST": str(self.folder / "manifest"),
            "INVOKE_GPU_IMAGE_BUILD_DIR": str(self.folder / "build"),
            "INVOKE_GPU_IMAGE_LOCKS": str(self.folder / "locks"),
            "INVOKE_GPU_IMAGE_CLOUDS_AWS_SOURCE_CIDR": "127.0.0.0/8",
            "INVOKE_GPU_IMAGE_CLOUDS_AWS_POLL_SECONDS": "1",
        }


@contextlib.contextmanager
def start(
    settings: Settings, *, accelerator: str | None = None, isolated: bool = False
) -> Iterator[Session]:
    """A box whose source AMIs are the local cloud's base disk; gone with the context.

    Raises ``UserError`` without root: an instance's SSH server listens on port 22 of its own address.
    """
    if os.geteuid():
        raise UserError("the box needs root: machines listen on port 22", hint="sudo ./inv sim")
    base = _base_disk(settings)
    accelerator, why = clouds.load("local").choose_accelerator(accelerator)
    progress.say(f"  accelerator {why}")
    settings.build_dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="sim-", dir=settings.build_dir))
    try:
        source = folder / "source"
        source_image(base, source)
        target = VmTarget(folder / "machines", Hardware(accelerator=accelerator))
        with Box(target=target, source=source, folder=folder / "box", isolated=isolated) as box:
            yield Session(box, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _base_disk(settings: Settings) -> Path:
    """The base disk of the local cloud, from the cache or bootstrapped now."""
    cloud, loaded = clouds.load("local"), spec.load(IMAGE)
    stages = progress.Stages()
    with stages.stage("base", "disk of the account's source images") as stage:
        lock = inputs.lock_for(
            cloud,
            loaded,
            inputs.Options(cloud="local", image=IMAGE),
            settings=settings,
            note=stage.note,
        )
        base = cloud.prepare_base(loaded, lock, settings=settings, note=stage.note)
        stage.outcome = base.name
    return Path(base.artifact)


def run(settings: Settings, *, command: str | None, accelerator: str | None) -> int:
    """A shell in the box, or ``command``; returns its exit code."""
    with start(settings, accelerator=accelerator) as session:
        shell = os.environ.get("SHELL", "/bin/sh")
        words = ["/bin/sh", "-c", command] if command else [shell]
        if not command:
            progress.say("You are in the box: a simulated AWS account, real machines. `exit` ends it all.")
            progress.say("  ./inv build --cloud=aws      some 10 minutes without KVM")
            progress.say("  ./inv manifest.resolve --cloud=aws --region=us-west-2")
            progress.say("  ./inv sweep --cloud=aws      aws-cli and boto3 work here, too")
        with subprocess.Popen(words, cwd=CHECKOUT, env=session.environment) as process:
            while True:
                # Ctrl-C is for what runs in the shell; it must not end the box.
                with contextlib.suppress(Interrupted, KeyboardInterrupt):
                    return process.wait()
