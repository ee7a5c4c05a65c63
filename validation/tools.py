"""Runs one tool of the driver or of DCGM with its arguments, and always comes back.

Like ``boot_checks.supervisor``, which runs many scripts without arguments side by side, it never waits for
a child without a limit: nvidia-smi in the kernel's D state ignores SIGKILL
(https://github.com/NVIDIA/gpu-monitoring-tools/issues/46). Unlike there, the tool stays in the process
group of its caller, so that whoever ends a check script also ends the tool that hangs in it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

LIMIT = 16 * 1024 * 1024  # bytes of stdout and of stderr, each
TERM_GRACE = 2.0  # seconds between SIGTERM and SIGKILL
KILL_GRACE = 1.0  # seconds between SIGKILL and leaving the child behind


class Output(NamedTuple):
    """What a tool printed and how it ended.

    ``text`` is its stdout: both tools print their error messages there. ``exit_code`` is None when it gave
    none (it hung, was ended by us or could not be started); ``problem`` then says so, and is None otherwise.
    """

    text: str
    exit_code: int | None
    stderr: str = ""
    problem: str | None = None
    seconds: float = 0.0

    @property
    def hung(self) -> bool:
        """It ran and gave no answer in its time."""
        return self.problem is not None and self.problem.startswith("no answer")


class _Child(NamedTuple):
    """A tool that runs: its process, and our ends of its stdout and stderr."""

    pid: int
    pipes: tuple[int, int]


def run(argv: Sequence[str], *, timeout: float, grace: float = TERM_GRACE, limit: int = LIMIT) -> Output:
    """Runs ``argv`` and returns its output, at most ``timeout + grace + KILL_GRACE`` seconds later.

    After ``timeout`` seconds it gets SIGTERM, ``grace`` seconds later SIGKILL. A tool that prints more than
    ``limit`` bytes is killed. Never raises for anything that the tool does.
    """
    started = time.monotonic()
    try:
        child = _start(argv)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Output("", None, problem=f"{argv[0]} cannot be started: {reason}")
    try:
        read, code, problem = _wait(child, timeout=timeout, grace=grace, limit=limit)
    except BaseException:
        _signal(child, signal.SIGKILL)
        raise
    finally:
        for pipe in child.pipes:
            os.close(pipe)
    out, err = (content.decode("utf-8", errors="replace") for content in read)
    return Output(out, code if problem is None else None, err, problem, round(time.monotonic() - started, 3))


def _start(argv: Sequence[str]) -> _Child:
    """Not by subprocess: importing that and selectors costs as much CPU as judging what a tool prints."""
    pipes = [os.pipe(), os.pipe()]
    try:
        pid = os.posix_spawnp(
            argv[0],
            list(argv),
            _environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, pipes[0][1], 1),
                (os.POSIX_SPAWN_DUP2, pipes[1][1], 2),
            ],
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores them
        )
    except BaseException:
        for reader, _ in pipes:
            os.close(reader)
        raise
    finally:
        for _, writer in pipes:
            os.close(writer)
    return _Child(pid, (pipes[0][0], pipes[1][0]))


def _environment() -> dict[str, str]:
    """Ours in English, and without the variable by which the caller may have hidden GPUs from himself."""
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {**kept, "LC_ALL": "C"}


def _signal(child: _Child, signum: int) -> None:
    # It may have ended, and somebody else have taken its status.
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signum)


def _wait(
    child: _Child, *, timeout: float, grace: float, limit: int
) -> tuple[list[bytearray], int | None, str | None]:
    """Reads both pipes until the process has ended or is given up: what was read, its exit code (negative:
    the signal that ended it; None: it runs), and what went wrong.

    It has ended when it has exited, not when its pipes are closed: a grandchild may hold them for ever.
    """
    read = [bytearray(), bytearray()]
    numbers = {pipe: number for number, pipe in enumerate(child.pipes)}
    ended = os.pidfd_open(child.pid)
    poll = select.poll()
    for descriptor in (*child.pipes, ended):
        poll.register(descriptor, select.POLLIN)
    for pipe in child.pipes:
        os.set_blocking(pipe, False)
    steps = [timeout, grace, KILL_GRACE]
    problem: str | None = None
    next_step = time.monotonic() + steps.pop(0)
    try:
        while True:
            for descriptor, _ in poll.poll(max(next_step - time.monotonic(), 0) * 1000):
                if descriptor == ended:
                    _drain(child, read, limit)
                    return read, os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]), problem
                content = read[numbers[descriptor]]
                if not _read(descriptor, content, limit):
                    poll.unregister(descriptor)
                if len(content) > limit and steps:
                    problem = f"it printed more than {limit} bytes"
                    _signal(child, signal.SIGKILL)
                    next_step, steps = time.monotonic() + KILL_GRACE, []
            if time.monotonic() >= next_step:
                if not steps:
                    return read, None, f"{problem}; it cannot be killed{_state(child.pid)}"
                if len(steps) == 2:
                    problem = f"no answer within {timeout:.3g} s"
                _signal(child, signal.SIGTERM if len(steps) == 2 else signal.SIGKILL)
                next_step = time.monotonic() + steps.pop(0)
    finally:
        os.close(ended)


def _read(descriptor: int, into: bytearray, limit: int) -> bool:
    """Takes what is there, and keeps one byte more than ``limit``; False at the end of the pipe."""
    try:
        chunk = os.read(descriptor, 65536)
    except BlockingIOError:
        return True
    into += chunk[: max(limit + 1 - len(into), 0)]
    return bool(chunk)


def _drain(child: _Child, read: list[bytearray], limit: int) -> None:
    for pipe, content in zip(child.pipes, read, strict=True):
        size = -1
        while size != len(content) and len(content) <= limit:
            size = len(content)
            _read(pipe, content, limit)


def _state(pid: int) -> str:
    """The process's state in the kernel, `` (state D)``, or nothing."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name in parentheses may itself hold parentheses and spaces; the state follows the last one.
            return f" (state {file.read().rpartition(')')[2].split()[0]})"
    except (OSError, IndexError):
        return ""
