"""What both GPU checks start from: the GPUs on the bus, how many there should be, what the image promises.

Whether there is anything to check is decided here, so that the two checks agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from validation import expect, pci
from validation.boot_checks import image
from validation.boot_checks.check import Result, failed, not_run, unknown
from validation.expect import Expectation
from validation.pci import Device


class Machine(NamedTuple):
    """This machine's GPUs as the bus has them, and what should be there."""

    gpus: Sequence[Device]
    nvswitches: Sequence[Device]
    expected: Expectation
    driver: str | None  # what image.json promises; None: nothing, or there is no readable image.json

    @property
    def data(self) -> dict[str, Any]:
        """For the data of a result."""
        return {
            "expected": {"gpus": self.expected.count, "gpu": self.expected.gpu, "by": self.expected.source},
            "on_bus": [gpu.address for gpu in self.gpus],
        }


def look() -> Machine:
    """Looks at this machine. Raises ``OSError`` when sysfs cannot be read."""
    root = image.root()
    try:
        driver = image.read().driver
    except image.BadImage:  # the runner's own check says so
        driver = None
    return Machine(pci.nvidia_gpus(root), pci.nvswitches(root), expect.expected_gpus(root), driver)


def look_again(machine: Machine) -> Machine:
    """The same machine with its bus as it is now: the drivers may have changed. Raises ``OSError``."""
    return machine._replace(gpus=pci.nvidia_gpus(image.root()))


def nothing_to_check(machine: Machine) -> Result | None:
    """The result for a machine without GPUs to check; None: there are some.

    GPUs that are expected and not there are the worst fault, not a machine without GPUs.
    """
    expected, found = machine.expected, len(machine.gpus)
    if expected.error and not found:
        return unknown(expected.error, **machine.data)
    if not found and expected.count:
        promised = f"the {counted(expected.count)} that {expected.source} promises"
        reason = f"none of {promised} is on the PCI bus"
        return failed(reason, **machine.data)
    if not found:
        number = "none is expected" if expected.count == 0 else "how many there should be is unknown"
        return not_run(f"no NVIDIA GPU on the PCI bus, and {number}: {expected.source}", **machine.data)
    if expected.count == 0 and expected.by_owner:
        reason = f"{expected.source} expects none; {counted(found)} on the PCI bus not looked at"
        return not_run(reason, **machine.data)
    return None


def without(what: str, machine: Machine) -> Result:
    """The result when a part of the driver is missing: ``what`` says which, and why."""
    if machine.driver:
        return failed(f"{what}; image.json promises driver {machine.driver}", **machine.data)
    reason = f"{counted(len(machine.gpus))} on the PCI bus, and this image promises no driver: {what}"
    return unknown(reason, **machine.data)


def counted(number: int) -> str:
    """``1 GPU``, ``8 GPUs``."""
    return f"{number} GPU{'' if number == 1 else 's'}"


def named(addresses: Sequence[str], limit: int = 8) -> str:
    """Addresses for a reason: ``0000:3b:00.0, 0000:86:00.0``, and how many more."""
    return _cut(addresses, ", ", limit)


def sentence(reasons: Sequence[str], limit: int = 4) -> str:
    """Several reasons as one; what is said of several GPUs is said once, and of many reasons the first."""
    return _cut(merged(reasons), "; ", limit)


def merged(reasons: Sequence[str]) -> list[str]:
    """``GPU 0: hot``, ``GPU 1: hot`` -> ``GPUs 0, 1: hot``; all else as it is, in order."""
    found: dict[str, list[str]] = {}
    for reason in reasons:
        gpu, colon, what = reason.partition(": ")
        if colon and gpu.startswith("GPU ") and gpu[4:].isdigit():
            found.setdefault(what, []).append(gpu[4:])
        else:
            found.setdefault(reason, [])
    return [
        what if not numbers else f"GPU{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {what}"
        for what, numbers in found.items()
    ]


def _cut(texts: Sequence[str], between: str, limit: int) -> str:
    more = f"{between}and {len(texts) - limit} more" if len(texts) > limit else ""
    return between.join(texts[:limit]) + more
