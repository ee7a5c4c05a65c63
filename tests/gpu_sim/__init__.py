"""A simulator of machines with NVIDIA GPUs, for tests: README.md says what is real about it and what is not.

``scenario``    the machine and its faults, one JSON file
``state``       what each GPU of a scenario is like
``tables``      GPU models and nvidia-smi's fields
``machine``     the files of the machine, made of what each part says:
                ``smi`` nvidia-smi, ``dcgm`` ``health`` ``errors`` DCGM, ``cuda`` the libraries,
                ``kernel`` /sys and /proc, ``kernel_log`` the kernel's log
``build``       compiles the libraries
``vm``          what only a real machine can do
``guest/``      the programs on the machine
``native/``     libcuda.so.1 and libnvidia-ml.so.1
``fixtures``    pytest fixtures
"""

from tests.gpu_sim.build import NoCompiler, compile_libraries
from tests.gpu_sim.kernel import File
from tests.gpu_sim.machine import MARKER, files, lay_out
from tests.gpu_sim.scenario import KINDS, BadScenario, Scenario
from tests.gpu_sim.state import UUID_PREFIX

__all__ = [
    "KINDS",
    "MARKER",
    "UUID_PREFIX",
    "BadScenario",
    "File",
    "NoCompiler",
    "Scenario",
    "compile_libraries",
    "files",
    "lay_out",
]
