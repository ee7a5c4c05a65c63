"""Which tests a level of ``dcgmi diag`` has, under one name for DCGM 3 and 4.

Sources: fillTestVectors in nvvs/src/NvidiaValidationSuite.cpp and the display names in dcgmi/Diag.cpp of
https://github.com/NVIDIA/DCGM (v3.3.9, v4.0 to v4.6.0), and
https://docs.nvidia.com/datacenter/dcgm/latest/reference/diagnostics/plugins/index.html

A test whose plugin is not installed is simply not in the document; one that was not allowed or not possible
is there as Skip. So what every installation of a version has must be there, and what only some have must
pass if it is there:

- DCGM 4 has nvbandwidth only for drivers of CUDA 12 and later, nccl_tests only where the NCCL tests are
  installed and configured, memory_bandwidth and pulse_test only with the proprietary package
  (https://github.com/NVIDIA/DCGM/issues/296). DCGM 3 has no nvbandwidth and no nccl_tests; its one package
  has memory_bandwidth.
- Skip says nothing about a GPU, so it is never a pass. ``OWN_TERMS`` are the tests that a healthy machine
  skips for want of something that is no part of the level.
"""

from __future__ import annotations

_ALIASES = {
    "gpu_memory": "memory",
    "eud_test": "eud",
    "cpu_eud_test": "cpu_eud",
    "blacklist": "denylist",  # DCGM 2
}
# What DCGM 3 lists one by one and DCGM 4 does in the test "software".
DEPLOYMENT = (
    "denylist",
    "nvml_library",
    "cuda_main_library",
    "permissions_and_os_blocks",
    "persistence_mode",
    "environment_variables",
    "page_retirement/row_remap",
    "graphics_processes",
    "inforom",
)
# By DCGM's major version: what each level adds to the one below it.
LEVELS: dict[int, dict[int, tuple[str, ...]]] = {
    3: {
        1: DEPLOYMENT,
        2: ("memory", "pcie"),
        3: ("diagnostic", "targeted_stress", "targeted_power", "memory_bandwidth"),
        4: ("memtest",),
    },
    4: {
        1: ("software",),
        2: ("memory", "pcie"),
        3: ("diagnostic", "targeted_stress", "targeted_power"),
        4: ("memtest",),
    },
}
# What only some installations have, by level.
OPTIONAL: dict[int, dict[int, tuple[str, ...]]] = {
    3: {4: ("pulse_test",)},
    4: {3: ("nvbandwidth", "nccl_tests", "memory_bandwidth"), 4: ("pulse_test",)},
}
# Fabric Manager: skipped where there is no NVSwitch. CUDA Toolkit Library: DCGM no longer needs one. EUD:
# a separate package of NVIDIA; "EUD Test: Skip" is in every healthy level 3 of DCGM 3.3 run as root.
OWN_TERMS = frozenset({"fabric_manager", "cuda_toolkit_library", "eud", "cpu_eud"})


def canonical(name: str) -> str:
    """One name for a test however its version writes it: ``GPU Memory`` and ``memory`` are ``memory``."""
    plain = "_".join(name.lower().split())
    return _ALIASES.get(plain, plain)


def required(major: int, level: int) -> list[str]:
    """The tests that a document of this level must have."""
    return [test for step in range(1, level + 1) for test in LEVELS[major][step]]


def absent(major: int, level: int, present: set[str]) -> list[str]:
    """The tests that some installations have at this level and this document does not."""
    tests = (test for step in range(1, level + 1) for test in OPTIONAL[major].get(step, ()))
    return [test for test in tests if test not in present]


def level_of(major: int, present: set[str]) -> int:
    """The highest level whose required tests are all there; 1 if not even those of level 1 are."""
    return max((level for level in LEVELS[major] if present >= set(required(major, level))), default=1)
