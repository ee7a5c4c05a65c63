"""The check scripts of this machine: which there are, and how long each may take."""

from __future__ import annotations

import hashlib
import os
import re
from typing import NamedTuple

from validation.boot_checks import image

DEADLINE = 60.0  # seconds, for a script that names none


class Script(NamedTuple):
    """One file in ``boot-checks.d``. ``problem`` says why it cannot be run, None when it can."""

    path: str  # on the machine
    sha256: str | None
    deadline: float
    problem: str | None


def find() -> list[Script]:
    """All scripts by name. Every file is one, only hidden files are not: none is left out in silence."""
    try:
        names = sorted(os.listdir(image.at(image.CHECKS)))
    except OSError:
        return []
    return [_script(f"{image.CHECKS}/{name}") for name in names if not name.startswith(".")]


def _script(path: str) -> Script:
    file = image.at(path)
    if not os.path.isfile(file):
        return Script(path, None, DEADLINE, "it is not a file")
    try:
        with open(file, "rb") as stream:
            content = stream.read()
    except OSError as error:
        return Script(path, None, DEADLINE, f"it cannot be read: {error.strerror}")
    sha256 = hashlib.sha256(content).hexdigest()
    try:
        deadline = deadline_in(content)
    except ValueError as error:
        return Script(path, sha256, DEADLINE, str(error))
    return Script(path, sha256, deadline, None if os.access(file, os.X_OK) else "it is not executable")


def deadline_in(content: bytes) -> float:
    """The seconds in a script's line ``# boot-check: deadline=20`` near its beginning, or ``DEADLINE``.

    Raises ``ValueError`` when there is such a line and it says something else.
    """
    header = re.search(rb"^# boot-check:(.*)$", content[:4096], re.MULTILINE)
    if not header:
        return DEADLINE
    value = re.fullmatch(rb"\s*deadline=([1-9]\d{0,3})\s*", header[1])
    if not value:
        raise ValueError(f"its header is not '# boot-check: deadline=SECONDS': {header[0]!r}")
    return float(value[1])
