"""Fixtures for tests that need a machine with GPUs; a conftest.py takes them in by importing them.

``gpu_libraries``  the compiled libraries, once a session; skips where there is no compiler
``gpu_machine``    a function that lays out a machine of a scenario in the test's folder
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import gpu_sim
from tests.gpu_sim import Scenario


@dataclass
class GpuMachine:
    """A simulated machine laid out in a folder."""

    root: Path
    scenario: Scenario

    def run(self, program: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a program of the machine's /usr/bin to its end."""
        command = [str(self.root / "usr/bin" / program), *arguments]
        settings = {"capture_output": True, "text": True, "timeout": 30, "check": False, **options}
        done: subprocess.CompletedProcess[str] = subprocess.run(command, **settings)
        return done

    @property
    def library(self) -> str:
        """The machine's libcuda.so.1."""
        return str(self.root / "usr/lib/x86_64-linux-gnu/libcuda.so.1")

    def end_holders(self) -> None:
        """Ends the processes that a hung program has left to hold its pipes."""
        with contextlib.suppress(FileNotFoundError):
            for pid in (self.root / "run/gpu-sim/holders").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


@pytest.fixture(scope="session")
def gpu_libraries(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    try:
        return gpu_sim.compile_libraries(tmp_path_factory.mktemp("gpu-sim"))
    except gpu_sim.NoCompiler as error:
        pytest.skip(str(error))


@pytest.fixture
def gpu_machine(tmp_path: Path, gpu_libraries: Mapping[str, Path]) -> Iterator[Callable[..., GpuMachine]]:
    made: list[GpuMachine] = []

    def lay_out(*faults: Mapping[str, Any], root: Path | None = None, **settings: Any) -> GpuMachine:
        scenario = Scenario(faults=faults, **settings)
        machine = GpuMachine(gpu_sim.lay_out(root or tmp_path, scenario, gpu_libraries), scenario)
        made.append(machine)
        return machine

    yield lay_out
    for machine in made:
        machine.end_holders()
