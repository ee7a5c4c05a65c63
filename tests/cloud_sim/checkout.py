"""A checkout for quick builds: the production code, with roles and checks that a chroot can run.

Everything in ``images/`` and the template are copies, byte for byte; ``roles/`` and the gate's ``test_*.py``
are replaced by the stand-ins in ``quick/``, because a chroot has no kernel, no systemd and, in the box, no
network to install packages from.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from images.settings import CHECKOUT

QUICK = Path(__file__).parent / "quick"
KEPT = ("images", "validation", "benchmarks")
FILES = ("ansible.cfg", "invoke.yaml", "tasks.py")
UNWANTED = shutil.ignore_patterns("__pycache__", "*.lock", "locks")


def make(folder: Path) -> Path:
    """Makes the checkout in ``folder``, which does not exist yet; returns it."""
    folder.mkdir(parents=True)
    for name in KEPT:
        shutil.copytree(CHECKOUT / name, folder / name, ignore=UNWANTED)
    for name in FILES:
        shutil.copy(CHECKOUT / name, folder / name)
    shutil.copytree(CHECKOUT / "roles" / "strategy_plugins", folder / "roles" / "strategy_plugins")
    shutil.copytree(QUICK / "roles", folder / "roles", dirs_exist_ok=True)
    gate = folder / "validation" / "gate"
    (gate / "test_capture.py").rename(gate / "capture_checks.py")
    for path in gate.glob("test_*.py"):
        path.unlink()
    shutil.copy(QUICK / "gate" / "quick.py", gate / "test_quick.py")
    # The tasks of the tests, not the tests.
    shutil.copytree(
        CHECKOUT / "tests",
        folder / "tests",
        ignore=lambda _, names: [name for name in names if name not in ("tasks.py", "__init__.py")],
    )
    return folder


def lock(folder: Path, base_id: str, *, image: str = "gpu-debian", arch: str = "amd64") -> Path:
    """A lock for the quick checkout: the fixture's, with the base image of the box."""
    fixture = CHECKOUT / "tests" / "fixtures" / "locks" / f"{image}.aws.{arch}.json"
    document: dict[str, Any] = json.loads(fixture.read_bytes())
    document["base"]["id"] = base_id
    path = folder / f"{image}.aws.{arch}.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path
