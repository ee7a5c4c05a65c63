"""What nvidia-smi writes in the place of a value, and the statuses of NVML in its messages.

Sources: nvmlReturn_t and nvmlErrorString in nvml.h (driver 580), and captures of nvidia-smi on machines
with broken GPUs. The same status appears in brackets in a cell (``[GPU is lost]``), bare in old drivers, and
at the end of a message.
"""

from __future__ import annotations

from typing import NamedTuple

# What a status says. NOT_APPLICABLE: the model or the driver has no such value; neutral. BROKEN: the GPU or
# the driver is broken. UNCLEAR: nothing about the GPU, as when the caller has no permission to look.
NOT_APPLICABLE, BROKEN, UNCLEAR = "not_applicable", "broken", "unclear"


class Status(NamedTuple):
    """``action`` is what to do about a broken GPU."""

    kind: str
    meaning: str
    action: str = ""


_RESET, _REPLACE, _POWER = (
    "reset the GPU",
    "take the machine out and inspect the GPU",
    "check the power cables",
)

STATUSES = {
    "n/a": Status(NOT_APPLICABLE, "not available"),
    "not supported": Status(NOT_APPLICABLE, "not supported"),
    "not available": Status(NOT_APPLICABLE, "not available"),
    "requested functionality has been deprecated": Status(NOT_APPLICABLE, "deprecated"),
    "deprecated": Status(NOT_APPLICABLE, "deprecated"),
    "err!": Status(BROKEN, "the value cannot be read", _REPLACE),
    "unknown error": Status(BROKEN, "the GPU does not answer", _REPLACE),
    "gpu is lost": Status(BROKEN, "the GPU is lost", _REPLACE),
    "gpu requires reset": Status(BROKEN, "the GPU must be reset", _RESET),
    "requires reset": Status(BROKEN, "the GPU must be reset", _RESET),
    "reset required": Status(BROKEN, "the GPU must be reset", _RESET),
    "insufficient external power": Status(BROKEN, "the GPU has too little power", _POWER),
    "insufficient power": Status(BROKEN, "the GPU has too little power", _POWER),
    "interrupt request issue": Status(BROKEN, "the kernel found a problem with its interrupts", _REPLACE),
    "timeout": Status(BROKEN, "the driver gave no answer in time", _REPLACE),
    "corrupted inforom": Status(BROKEN, "the infoROM is corrupted", _REPLACE),
    "memory error": Status(BROKEN, "memory error", _REPLACE),
    "driver not loaded": Status(BROKEN, "the kernel module is not loaded", "load the nvidia module"),
    "driver/library version mismatch": Status(
        BROKEN, "the driver's libraries and the loaded module are of different versions", "reboot"
    ),
    "nvml shared library not found": Status(BROKEN, "NVML is not installed", "install the driver"),
    "library not found": Status(BROKEN, "NVML is not installed", "install the driver"),
    "insufficient permissions": Status(UNCLEAR, "not permitted"),
    "gpu access blocked by the operating system": Status(
        UNCLEAR, "access is blocked by the operating system (a container's cgroup, WSL)"
    ),
    "in use by another client": Status(UNCLEAR, "another program has it for itself"),
    "function not found": Status(UNCLEAR, "this NVML has no such function"),
    "not found": Status(UNCLEAR, "not found"),
    "uninitialized": Status(UNCLEAR, "NVML is not initialized"),
    "invalid argument": Status(UNCLEAR, "invalid argument"),
    "insufficient size": Status(UNCLEAR, "insufficient size"),
    "insufficient memory": Status(UNCLEAR, "insufficient memory"),
    "insufficient resources": Status(UNCLEAR, "insufficient resources"),
    "no data": Status(UNCLEAR, "no data"),
    "argument version mismatch": Status(UNCLEAR, "nvidia-smi and NVML are of different versions"),
}
# Long ones first: "gpu requires reset" before "requires reset".
_IN_TEXT = sorted((word for word in STATUSES if word not in ("n/a", "deprecated")), key=len, reverse=True)


def of_cell(value: str) -> Status | None:
    """The status that stands in the place of a value; None for a value.

    Brackets hold a status and nothing else, so a known one is found in a longer text too, as in ``[GPU is
    lost. Reboot the system]``; what is not known is UNCLEAR.
    """
    plain = value.strip()
    status = STATUSES.get(plain.strip("[]").strip().lower())
    if status is None and plain.startswith("[") and plain.endswith("]"):
        unknown = Status(UNCLEAR, f"nvidia-smi says {plain[:60]}, which is not known here")
        return in_text(plain[:200]) or unknown
    return status


def in_text(text: str) -> Status | None:
    """The status in a message; None if it has none that is known."""
    lower = text.lower()
    for word in _IN_TEXT:
        if word in lower:
            return STATUSES[word]
    return None
