"""Quick builds in the box, as a user types them: ``inv`` in a quick checkout, in the box's network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images.settings import Settings
from tests.cloud_sim import checkout, seeds
from tests.cloud_sim.box import Box

#: Where the chroot's root file system is kept.
CACHE = Settings().cache


@dataclass(frozen=True)
class Quick:
    """A box and a quick checkout whose builds, manifest and locks lie in ``root``."""

    box: Box
    root: Path
    checkout: Path

    @property
    def builds(self) -> Path:
        return self.root / "build"

    @property
    def lock(self) -> Path:
        """A lock whose base image the account has."""
        seed = next(item for item in seeds.SEEDS if item.name == "debian-13-amd64-20261101-0001")
        return checkout.lock(self.root, seeds.image_id(seed, "us-east-1"))

    @property
    def environment(self) -> dict[str, str]:
        return {
            **self.box.environment(),
            "INVOKE_GPU_IMAGE_MANIFEST": str(self.root / "manifest"),
            "INVOKE_GPU_IMAGE_BUILD_DIR": str(self.builds),
            "INVOKE_GPU_IMAGE_LOCKS": str(self.root / "locks"),
            "INVOKE_GPU_IMAGE_CLOUDS_AWS_SOURCE_CIDR": "127.0.0.0/8",
            "INVOKE_GPU_IMAGE_CLOUDS_AWS_POLL_SECONDS": "0.2",
            "PATH": f"{Path(sys.executable).parent}:{self.box.environment()['PATH']}",
            "TMPDIR": str(self.root),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts ``inv``; the caller ends it."""
        return subprocess.Popen(
            self.box.command([sys.executable, "-m", "images", *arguments]),
            cwd=self.checkout,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def inv_with(self, environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs ``inv`` in another environment than the box's own."""
        return subprocess.run(
            self.box.command([sys.executable, "-m", "images", *arguments]),
            cwd=self.checkout,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def inv(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs ``inv`` to its end."""
        process = self.start(*arguments)
        out, err = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def build_words(self, *arguments: str) -> list[str]:
        """The arguments of a quick build."""
        return ["build", "--cloud=aws", "--image=gpu-debian", f"--lock={self.lock}", "--json", *arguments]

    def build(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A quick build."""
        return self.inv(*self.build_words(*arguments))

    def states(self) -> list[dict[str, Any]]:
        """The state of every build, oldest first."""
        found = [json.loads(path.read_bytes()) for path in self.builds.glob("*/state.json")]
        return sorted(found, key=lambda state: float(state["started"]))
