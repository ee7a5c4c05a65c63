"""``check.py`` on simulated GPUs and on a machine without any, by a Python without packages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.gpu_sim.fixtures import GpuMachine, gpu_libraries, gpu_machine
from validation.gate import dcgm_figures, gpu_readers

__all__ = ["gpu_libraries", "gpu_machine"]

Make = Callable[..., GpuMachine]
CHECK = Path(__file__).with_name("check.py")


def run(machine: GpuMachine | None, *options: str) -> subprocess.CompletedProcess[str]:
    """-S: no site-packages, so neither pytest nor testinfra."""
    env = {**os.environ}
    if machine:
        env |= {"PATH": f"{machine.root}/usr/bin:{env['PATH']}", "GPU_IMAGE_ROOT": str(machine.root)}
    words = [sys.executable, "-S", str(CHECK), *options]
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=300)


def test_a_healthy_machine(gpu_machine: Make, tmp_path: Path) -> None:
    machine = gpu_machine(gpus=2, model="l4", root=tmp_path / "m")
    done = run(machine, f"--out={tmp_path}/out")
    rows = {row["check"]: row for row in json.loads((tmp_path / "out/check.json").read_bytes())}
    # The kernel's log and the units are this machine's own.
    ours = {
        name: row["result"]
        for name, row in rows.items()
        if name not in ("gpu.kernel_log", "nvswitch.fabric")
    }
    assert set(ours.values()) <= {"pass", "not_run"}, done.stdout
    assert ours["boot check 20-gpus"] == ours["boot check 30-gpu-memory"] == ours["gpu.memory"] == "pass"
    assert {"gpu-facts.json", "gpu-memory.json"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_every_check_of_the_gpu_tiers_is_there(gpu_machine: Make, tmp_path: Path) -> None:
    machine = gpu_machine(gpus=1, model="l4", root=tmp_path / "m")
    done = run(machine, "--diag-level=0")
    listed = {line.split()[1] for line in done.stdout.splitlines()}
    gate = Path(dcgm_figures.__file__).parent
    text = "".join((gate / f"test_{name}.py").read_text() for name in ("gpu", "dcgm", "nvswitch"))
    named = set(re.findall(r'check\("([a-z0-9_]+\.[a-z0-9_]+)"', text))
    wanted = named | gpu_readers.FIELDS.keys() | {f"dcgm.{metric}" for metric in dcgm_figures.METRICS}
    assert wanted <= listed
    assert len(wanted) > 15


def test_a_fault(gpu_machine: Make, tmp_path: Path) -> None:
    machine = gpu_machine({"kind": "memory_miscompare", "gpu": 0}, gpus=1, model="l4", root=tmp_path / "m")
    done = run(machine, "--diag-level=0")
    assert done.returncode == 1
    assert done.stdout.startswith("fail ")
    assert "came back wrong" in done.stdout


def test_a_machine_without_gpus() -> None:
    done = run(None)
    assert done.returncode == 3, done.stdout + done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"not_run"}
