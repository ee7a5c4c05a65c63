"""What the exit code of nvidia-smi means, from nvidia-smi(1).

Extra information: the text says more, and only 9 and 18 are well attested
(https://github.com/anderskm/gputil/issues/55). Code 10 is an interrupt problem by the manual and a timeout
by NVML; 124 is what timeout(1) returns for a program that it ended.
"""

from __future__ import annotations

from typing import NamedTuple


class ExitStatus(NamedTuple):
    """``broken``: the code itself says that a GPU or the driver is broken."""

    code: int
    meaning: str
    broken: bool

    def __str__(self) -> str:
        return f"exit code {self.code}, {self.meaning}"


_CODES = {
    0: ("success", False),
    2: ("wrong arguments", False),
    3: ("not supported on this device", False),
    4: ("not permitted", False),
    6: ("not found", False),
    8: ("a power cable is not attached", True),
    9: ("the driver is not loaded", True),
    10: ("a problem with a GPU's interrupts, or a timeout", False),
    12: ("NVML is not installed", True),
    13: ("this NVML has no such function", False),
    14: ("the infoROM is corrupted", False),
    15: ("a GPU is lost", True),
    16: ("a GPU must be reset", True),
    17: ("access is blocked by the operating system", False),
    18: ("libraries and kernel module are of different versions", True),
    124: ("ended because it gave no answer", False),
    126: ("it cannot be run", False),
    127: ("it is not installed", False),
    255: ("an unknown error", False),
}


def exit_status(code: int) -> ExitStatus:
    """The meaning of an exit code; a negative one is the signal that ended it."""
    if code < 0:
        return ExitStatus(code, f"ended by signal {-code}", False)
    meaning, broken = _CODES.get(code, ("not documented", False))
    return ExitStatus(code, meaning, broken)
