"""What a check script is written with: the four statuses, and the way from a function to a process.

A check is a function that takes nothing and returns a ``Result``. ``main`` runs it, prints the result
as one JSON object and exits with the status's code.
"""

from __future__ import annotations

import enum
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn


class Status(str, enum.Enum):
    """The status of a check; there are no others. Not StrEnum: the machine may have Python 3.10."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"  # it ran and cannot tell, or it hung
    NOT_RUN = "not_run"  # it does not apply here; the reason says why

    @property
    def exit_code(self) -> int:
        """The exit code that goes with the status: 0, 1, 2 or 3."""
        return list(Status).index(self)


class Result(NamedTuple):
    """What a check found. ``reason`` is one line for people, ``data`` is JSON for programs.

    A check that passes although the machine gives less than it should (a slower link, a GPU held back)
    says so in ``data["degraded"]``, a list of reasons.
    """

    status: Status
    reason: str
    data: dict[str, Any]


def passed(reason: str, **data: Any) -> Result:
    """The machine is as it should be."""
    return Result(Status.PASS, reason, data)


def failed(reason: str, **data: Any) -> Result:
    """The machine is broken; ``reason`` says what is."""
    return Result(Status.FAIL, reason, data)


def unknown(reason: str, **data: Any) -> Result:
    """The check cannot tell."""
    return Result(Status.UNKNOWN, reason, data)


def not_run(reason: str, **data: Any) -> Result:
    """The check does not apply to this machine."""
    return Result(Status.NOT_RUN, reason, data)


def name_of(script: str) -> str:
    """The name of the check in a script: the file name without its number, ``10-services``: ``services``."""
    return re.sub(r"^\d+-", "", os.path.basename(script))


def main(check: Callable[[], Result]) -> NoReturn:
    """Runs ``check``, prints one JSON object and exits by its status.

    An exception is a check that cannot tell: the reason names it, and the traceback goes to stderr.
    """
    try:
        result = check()
    except Exception as error:
        import traceback  # here: a check that works need not pay for it

        traceback.print_exc()
        result = unknown(f"{type(error).__name__}: {error}")
    document = {"check": name_of(sys.argv[0]), **result._asdict()}
    print(json.dumps(document, allow_nan=False), flush=True)
    sys.stderr.flush()
    # Not sys.exit: tidying up the interpreter is a tenth of a check's CPU time, and a driver's library that
    # tidies up at exit may hang.
    os._exit(result.status.exit_code)
