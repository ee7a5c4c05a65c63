"""A machine laid out in a folder: the bundle of this checkout, without its checks, and room for others."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from images import bundle


@dataclass
class Finished:
    code: int
    stdout: str
    stderr: str

    @property
    def report(self) -> dict[str, Any]:
        return json.loads(self.stdout)

    def result(self, check: str) -> dict[str, Any]:
        (found,) = [result for result in self.report["checks"] if result["check"] == check]
        return found


@dataclass
class Machine:
    root: Path
    image: dict[str, Any] = field(
        default_factory=lambda: {
            "schema": "gpu-image/image/v1",
            "family": "gpu-debian",
            "version": "2026.1130.54712",
            "build_id": "gpu-debian-2026.1130.54712-3fa9",
            "services": ["ssh.service", "cron.service"],
        }
    )

    @property
    def lib(self) -> Path:
        return self.root / "usr/lib/gpu-image"

    @property
    def checks(self) -> Path:
        return self.lib / "boot-checks.d"

    @property
    def report_file(self) -> Path:
        return self.root / "run/gpu-image/boot-check.json"

    def program(self, path: str, text: str, *, mode: int = 0o755) -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def check(self, name: str, text: str, *, mode: int = 0o755) -> Path:
        return self.program(f"usr/lib/gpu-image/boot-checks.d/{name}", text, mode=mode)

    def bash(self, name: str, body: str) -> Path:
        return self.check(name, f"#!/bin/bash\n{body}\n")

    def result(self, name: str, status: str, code: int, **more: Any) -> Path:
        """A check that prints this and exits with that code."""
        document = {"check": name, "status": status, "reason": "as told", "data": {}, **more}
        return self.bash(f"50-{name}", f"cat <<'END'\n{json.dumps(document)}\nEND\nexit {code}")

    def hook(self, name: str, body: str) -> Path:
        return self.program(f"etc/gpu-image/on-unhealthy.d/{name}", f"#!/bin/bash\n{body}\n")

    def seal(self) -> str:
        """Writes image.json as a build would that had made exactly these files. The digest is computed
        here once more, so that it does not come from the code under test.
        """
        lines = []
        for file in self.lib.rglob("*"):
            if file.is_file() and not file.is_symlink() and file != self.lib / "image.json":
                sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
                lines.append(f"{file.stat().st_mode & 0o7777:04o} {sha256} /{file.relative_to(self.root)}\n")
        digest = "sha256:" + hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
        self.image["bundle_digest"] = digest
        (self.lib / "image.json").write_text(json.dumps(self.image))
        return digest

    def run(self, *options: str, sealed: bool = True, **popen: Any) -> Finished:
        """Runs gpu-boot-check on this machine, as a process, with --json unless options are given."""
        if sealed:
            self.seal()
        command = [self.lib / "bin/gpu-boot-check", f"--root={self.root}", *(options or ("--json",))]
        # Far more than any of them needs: the runner always comes back.
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, **popen)
        return Finished(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def the_bundle() -> tuple[bundle.BundleFile, ...]:
    return bundle.collect()


@pytest.fixture
def machine(tmp_path: Path, the_bundle: tuple[bundle.BundleFile, ...]) -> Machine:
    bundle.write([file for file in the_bundle if "/boot-checks.d/" not in file.path], tmp_path)
    made = Machine(tmp_path)
    made.checks.mkdir()
    return made
