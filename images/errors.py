"""The one error type shown to users, and the exit codes (documented in ``docs/exit-codes.md``)."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILED = 1  # a build, gate or check failed
    USAGE = 2  # wrong input or a missing prerequisite
    NOTHING = 3  # nothing to decide: not ready, not found
    INTERRUPTED = 130


class UserError(Exception):
    """Something the user can act on.

    ``message`` says what is wrong and where; ``hint`` says what to do next. It is printed without a
    traceback and ends the command with ``code``.
    """

    def __init__(self, message: str, *, hint: str | None = None, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code


class Interrupted(Exception):
    """The user or the system asked us to stop (SIGINT, SIGTERM, SIGHUP)."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by signal {signum}")
        self.signum = signum
