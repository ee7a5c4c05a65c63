"""Every fault of ``verdicts.py`` as ``gpu-boot-check`` sees it, on a machine laid out in a folder."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from images import bundle
from tests.gpu_sim.fixtures import GpuMachine
from tests.gpu_sim.verdicts import FINE, HEALTHY, MACHINE, ROWS, Row

CODES = {"healthy": 0, "degraded": 0, "unhealthy": 1, "unknown": 2}


@pytest.fixture(scope="session")
def files() -> tuple[bundle.BundleFile, ...]:
    return bundle.collect()


def cases() -> list[object]:
    """Those that the boot checks have nothing to do with, or that take a minute, only with ``--full``."""
    rows = [HEALTHY, *(row for row in ROWS if not row.kernel)]
    long = [row.slow or (row is not HEALTHY and row.boot == FINE) for row in rows]
    return [
        pytest.param(row, id=row.name, marks=[pytest.mark.full] if late else [])
        for row, late in zip(rows, long, strict=True)
    ]


@pytest.mark.parametrize("row", cases())
def test_boot_check(
    row: Row, gpu_machine: Callable[..., GpuMachine], files: tuple[bundle.BundleFile, ...]
) -> None:
    machine = gpu_machine(*row.faults, **MACHINE)
    mine = [file for file in files if not file.path.endswith("/10-services")]  # it would ask our own systemd
    bundle.write(mine, machine.root)
    image = {
        "schema": "gpu-image/image/v1",
        "family": "gpu-base",
        "version": "2026.1130.1",
        "build_id": "gpu-base-2026.1130.1-0000",
        "bundle_digest": bundle.digest(mine),
        "services": [],
        "driver": machine.scenario.driver,
    }
    library = machine.root / "usr/lib/gpu-image"
    Path(library, "image.json").write_text(json.dumps(image))
    words = [library / "bin/gpu-boot-check", f"--root={machine.root}", "--json", "--check-only"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=200)
    assert done.stderr == ""
    verdict, says = row.boot
    report = json.loads(done.stdout)
    assert (report["verdict"], done.returncode) == (verdict, CODES[verdict]), report["reason"]
    assert says in report["reason"], report["reason"]
