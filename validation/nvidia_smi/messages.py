"""The lines that nvidia-smi prints instead of, or between, the rows of a query.

Sources: nvidia-smi(1); the error reports of https://forums.developer.nvidia.com and of the repositories
named in tests/fixtures/nvidia_smi/README.md. A GPU that does not answer has been spelt in three ways:
``GPU 0000:0B:00.0:``, ``GPU0000:65:00.0:`` and ``GPU1: 0000:41:00.0:``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from validation.judgement import quote
from validation.nvidia_smi import words

LOST, BROKEN, ABSENT, UNCLEAR, DEGRADED, NOTE = "lost", "broken", "absent", "unclear", "degraded", "note"


class Message(NamedTuple):
    """One line. ``kind``:

    LOST: one GPU does not answer. BROKEN: the driver is. ABSENT: the driver works and has no GPU.
    UNCLEAR: nothing about the GPUs. DEGRADED: a warning about one GPU. NOTE: nothing to judge.
    ``driver``: it says that the driver is not there, which a machine without GPUs need not have.
    """

    kind: str
    line: str
    reason: str
    pci: str | None = None
    action: str = ""
    driver: bool = False


_BUS = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]"
_HANDLE = (
    rf"Unable to determine the device handle for gpu[ ]*"
    rf"(?:(?P<index>\d{{1,3}})(?::[ ]*|$))?(?P<bus>{_BUS})?:?[ ]*(?P<status>.*)"
)
_NVML = r"Failed to (?P<what>initialize|properly shut down) NVML: ?(?P<status>.*)"
_INFOROM = rf"infoROM is corrupted(?: at gpu (?P<bus>{_BUS}))?"
_PERSISTENCE = r"persistence mode is disabled"
_FIELD = r'Field "(?P<field>[^"]{0,200})" is not a valid field to query'

# Whole messages; in this order, the first that is found counts.
_OTHER: tuple[tuple[str, str, str, str, bool], ...] = (
    (r"couldn't communicate with the NVIDIA driver|could not communicate with the NVIDIA driver", BROKEN,
     "the kernel module is not loaded", "load the nvidia module: built for this kernel? signed? nouveau?",
     True),
    (r"couldn't find libnvidia-ml\.so|could not find libnvidia-ml", BROKEN,
     "NVML (libnvidia-ml.so) is not installed", "install the driver's libraries", True),
    (r"No devices were found|No devices found", ABSENT, "the driver has no GPU", "", False),
    (r"GPU is lost|fallen off the bus", LOST, "a GPU is lost",
     "take the machine out and inspect the GPU", False),
    (r"requires (?:a )?reset|reset (?:is )?required", LOST, "a GPU must be reset", "reset the GPU", False),
    (r"power cables? (?:is|are)? ?not|external power", LOST, "a GPU's power cable is not attached",
     "check the power cables", False),
    (r"Insufficient Permissions|permission denied|not permitted", UNCLEAR, "not permitted: run it as root",
     "", False),
    (r"command not found|No such file or directory", UNCLEAR, "nvidia-smi is not installed", "", False),
    (r"Invalid combination of input arguments|is not recognized|is missing its value|"
     r"not a valid (?:option|property|format)", UNCLEAR, "nvidia-smi does not know these arguments", "",
     False),
    (r"^Killed$|^Terminated$|timed? ?out|timeout: ", UNCLEAR, "nvidia-smi was ended before it answered", "",
     False),
    (r"Segmentation fault|core dumped|Aborted", UNCLEAR, "nvidia-smi crashed", "", False),
    (r"^NVML library version:", NOTE, "", "", False),
)  # fmt: skip
# What this status leaves open at the start: a container without access to the device, or a GPU that is gone.
_OPEN = "unknown error"


def explain(line: str) -> Message | None:
    """What a line means; None when it is no message that is known."""
    said = quote(line)
    if match := _search(_HANDLE, line):
        return _handle(said, match)
    if match := _search(_NVML, line):
        return _nvml(said, match["what"].lower() == "initialize", match["status"])
    if match := _search(_INFOROM, line):
        return Message(DEGRADED, said, f"the infoROM is corrupted: {said}", bus(match["bus"]))
    if _search(_PERSISTENCE, line):
        return Message(DEGRADED, said, said)
    if match := _search(_FIELD, line):
        reason = f"this nvidia-smi has no field {quote(match['field'], 60)!r}: ask only for fields it offers"
        return Message(UNCLEAR, said, reason)
    for pattern, kind, reason, action, driver in _OTHER:
        if _search(pattern, line):
            return Message(kind, said, f"{reason}: {said}" if reason else said, None, action, driver)
    return None


def _search(pattern: str, line: str) -> re.Match[str] | None:
    """Compiled on first use, and kept by ``re``: on a healthy machine no line needs any of them."""
    return re.search(pattern, line, re.IGNORECASE)


def _handle(said: str, match: re.Match[str]) -> Message:
    status = words.in_text(match["status"])
    unclear = status is not None and status.kind == words.UNCLEAR and status.meaning == "not permitted"
    if unclear:
        return Message(UNCLEAR, said, f"not permitted: {said}", bus(match["bus"]))
    action = status.action if status and status.action else "take the machine out and inspect the GPU"
    return Message(LOST, said, f"a GPU does not answer: {said}", bus(match["bus"]), action)


def _nvml(said: str, initialize: bool, text: str) -> Message:
    if not initialize:  # it follows the message that says why
        return Message(NOTE, said, said)
    status = words.in_text(text)
    if status is None or status.kind != words.BROKEN or text.strip().lower().startswith(_OPEN):
        reason = status.meaning if status and status.kind == words.UNCLEAR else "NVML cannot be initialized"
        return Message(UNCLEAR, said, f"{reason}: {said}")
    driver = status.meaning == words.STATUSES["driver not loaded"].meaning
    return Message(BROKEN, said, f"{status.meaning}: {said}", None, status.action, driver)


def bus(address: str | None) -> str | None:
    """A PCI address as nvidia-smi writes it, ``00000000:3B:00.0``, as ``0000:3b:00``; None for none.

    Four digits of the domain as in the kernel's log, more only if it has more; without the function.
    """
    match = re.fullmatch(
        r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.[0-9a-f])?",
        (address or "").strip(),
        re.IGNORECASE,
    )
    if not match:
        return None
    return f"{int(match['domain'] or '0', 16):04x}:{match['bus']}:{match['device']}".lower()
