"""What a check is, and the words for its result."""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass, field
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


@dataclass
class Remarks:
    """What a check says beside its result. ``degraded`` are reasons why the machine gives less than it
    should although nothing is broken; ``data`` are figures and facts for the results. JSON both."""

    degraded: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


#: Of the check that runs now; the plugin of ``results`` takes them when it ends.
_remarks: ContextVar[Remarks | None] = ContextVar("remarks", default=None)


def new_remarks() -> Remarks:
    """Begins the remarks of another check."""
    found = Remarks()
    _remarks.set(found)
    return found


def degraded(*reasons: str) -> None:
    """Said by a check that passes although the machine gives less than it should."""
    if found := _remarks.get():
        found.degraded += reasons


def record(**data: Any) -> None:
    """Adds figures or facts to the check's result, whatever the result will be."""
    if found := _remarks.get():
        found.data |= data


@dataclass(frozen=True)
class Check:
    """``id`` is ``subject.what``; ``probes`` are the names of what it reads from the machine.

    The level of a check of the GPU tiers is known only when it has seen the GPUs: real or simulated.
    """

    id: str
    tier: Tier
    level: Level
    probes: tuple[str, ...]
    anywhere: bool = False  # not about our image: it makes sense on every machine

    def applies(self, expected: Any, phase: Phase) -> bool:
        """Whether it makes sense on this machine: most checks are about our image; it may have another."""
        foreign = phase is Phase.HOST and expected.foreign
        return self.anywhere or self.tier is not Tier.ANY_VM or not foreign


def check(
    id: str,
    *probes: str,
    tier: Tier = Tier.ANY_VM,
    level: Level = Level.VM_NO_GPU,
    anywhere: bool = False,
) -> pytest.MarkDecorator:
    """Makes a test function (or a parameter set) the check ``id``, which reads ``probes``."""
    return pytest.mark.gate_check(Check(id, tier, level, probes, anywhere))


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
