"""What a check is, and the words for its result."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import pytest


class Result(enum.StrEnum):
    """The result of a check; there are no others. The order is that of a report."""

    FAIL = "fail"
    UNKNOWN = "unknown"  # it ran and cannot tell, hung, or was never reached
    NOT_RUN = "not_run"  # not applicable, with the reason
    PASS = "pass"


class Tier(enum.StrEnum):
    """The least that a machine must have for a check to make sense."""

    ANY_VM = "any_vm"
    GPU = "gpu"
    NVSWITCH = "nvswitch"


class Level(enum.StrEnum):
    """What a result was obtained on."""

    STATIC = "static"
    VM_NO_GPU = "vm_no_gpu"
    GPU_SIMULATED = "gpu_simulated"
    GPU_HARDWARE = "gpu_hardware"


class Phase(enum.StrEnum):
    """When the gate runs."""

    BUILD = "build"  # inside the build, before generalise
    FIRST_BOOT = "first_boot"  # the first boot of a machine made from the capture
    REBOOT = "reboot"  # its second boot
    HOST = "host"  # a machine that exists, with or without our image
    CAPTURE = "capture"  # no machine: the captured disk and what its boots left behind


class Unknown(Exception):
    """Raised in a check that cannot tell; the message says why."""


class NotRun(Exception):
    """Raised in a check that does not apply here; the message says why. It never counts as a pass."""


@dataclass(frozen=True)
class Check:
    """``id`` is ``subject.what``; ``probes`` are the names of what it reads from the machine."""

    id: str
    tier: Tier
    level: Level
    probes: tuple[str, ...]


def check(
    id: str, *probes: str, tier: Tier = Tier.ANY_VM, level: Level = Level.VM_NO_GPU
) -> pytest.MarkDecorator:
    """Makes a test function (or a parameter set) the check ``id``, which reads ``probes``."""
    return pytest.mark.gate_check(Check(id, tier, level, probes))


def check_of(item: pytest.Item) -> Check | None:
    """The check behind a collected test, if it is one."""
    mark = item.get_closest_marker("gate_check")
    found: Any = mark.args[0] if mark else None
    return found if isinstance(found, Check) else None


def verdict(results: list[Result]) -> int:
    """The gate's exit code: 0 all passed, 1 one failed, 2 one is unknown, 3 nothing was there to decide.

    A check that was not run decides nothing: neither way.
    """
    for wanted, code in ((Result.FAIL, 1), (Result.UNKNOWN, 2), (Result.PASS, 0)):
        if wanted in results:
            return code
    return 3
