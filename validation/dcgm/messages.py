"""What dcgmi prints instead of a document, and what to do about it.

Wording: dcgmi/Diag.cpp, dcgmi/Health.cpp, dcgmi/Command.cpp and nvvs/src/NvidiaValidationSuite.cpp of
https://github.com/NVIDIA/DCGM (v3.3.9, v4.6.0).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from validation.dcgm.exit_status import ExitStatus, exit_status

WINDOW = 100_000  # characters at either end of a text in which a message is looked for


class Message(NamedTuple):
    """``broken``: the message itself says that a GPU or the driver is broken."""

    reason: str
    broken: bool


#: Nobody watches this machine by DCGM: the beginnings of two reasons.
NOT_WATCHED = "the health watches are not set: run dcgmi health -s a first"
NO_ENGINE = "no host engine answers: start nvidia-dcgm.service, or give --host"
# In this order: a message may hold more than one of them, and the first says most.
_KNOWN = (
    (r"^\s*[|+].*(?:Diagnostic|Health Monitor|Overall Health)|^\|-----  |^\+===",
     "a table for people: run it with -j", False),
    (r"GPU is lost|fallen off the bus", "a GPU is lost", True),
    (r"(?i:requires reset|reset (?:is )?required)", "a GPU must be reset", True),
    (r"\(-39\)|(?i:diag(?:nostic)? is already running)",
     "another diagnostic is running: wait for it, then ask again", False),
    (r"MIG mode|MIG is enabled|MIG configuration", "MIG is on, and the diagnostic needs whole GPUs", False),
    (r"NVML doesn't exist|NVML_NOT_LOADED|libnvidia-ml|NVML (?:library )?not (?:found|loaded)",
     "DCGM finds no NVML library: the driver is not installed, or its module is not loaded", False),
    (r"[Uu]nable to start an embedded host engine", "no host engine, and none can be started", False),
    (r"[Uu]nable to establish a connection|[Uu]nable to connect to host ?engine|"
     r"[Hh]ost engine connection invalid|[Cc]onnection to the host ?engine", NO_ENGINE, False),
    (r"[Hh]ealth watches not enabled", NOT_WATCHED, False),
    (r"[Uu]nable to (?:get|set|check) health watches", "the host engine refused the health watches", False),
    (r"not found among possible test choices|NO_AVAILABLE_TEST",
     "the test does not exist here: its plugin package is missing, or the GPU has level 1 only", False),
    (r"version mismatch|VER_MISMATCH|API version",
     "dcgmi and the host engine are of different versions", False),
    (r"homogeneous|non-homogeneous",
     "the GPUs are of different models: run the diagnostic on each model alone", False),
    (r"recommended driver is not being used", "DCGM does not support this driver", False),
    (r"while DCGM is paused", "the host engine is paused: run dcgmi modules --resume", False),
    (r"No supported devices|Unable to match GPU set|No GPUs were found|[Gg]roup is empty|unsupported GPU",
     "DCGM sees no GPU that it supports", False),
    (r"[Rr]equires root|[Nn]o permission|Permission denied|must be root", "not permitted: run it as root",
     False),
    (r"[Tt]imed? ?out", "it did not end in its time", False),
    (r"command not found|No such file or directory", "dcgmi is not installed", False),
    (r"PARSE ERROR|[Ii]nvalid argument|Unrecognized|Usage:|USAGE:", "dcgmi does not know these arguments",
     False),
    (r"Successfully ran diagnostic", "the diagnostic ran without -j, and its results are not here", False),
    (r"[Hh]ealth monitor systems? (?:set|report)", "the watches were set or listed, and nothing was checked",
     False),
)  # fmt: skip
_PATTERNS = [(re.compile(pattern, re.MULTILINE), reason, broken) for pattern, reason, broken in _KNOWN]
_RETURN = re.compile(r"Return: \((-\d{1,3})\)")


def explain(text: str) -> Message | None:
    """What a message of dcgmi means; None when it is none that is known."""
    if len(text) > 2 * WINDOW:
        text = text[:WINDOW] + "\n" + text[-WINDOW:]
    status = returned(text)
    for pattern, reason, broken in _PATTERNS:
        if pattern.search(text):
            return Message(reason, broken or _says_broken(status))
    if status:
        return Message(str(status), _says_broken(status))
    return None


def returned(text: str) -> ExitStatus | None:
    """DCGM's code in ``Return: (-39) : ...``."""
    match = _RETURN.search(text)
    return exit_status(int(match[1])) if match else None


def _says_broken(status: ExitStatus | None) -> bool:
    """Codes that name a broken GPU or a driver that hangs. -30 and -51 say only that a test failed."""
    return status is not None and status.hardware and status.code not in (226, 205)
