"""Runs one tool of the driver or of DCGM with its arguments, and always comes back.

Like ``boot_checks.supervisor``, which runs many scripts without arguments side by side, it never waits for
a child without a limit: nvidia-smi in the kernel's D state ignores SIGKILL
(https://github.com/NVIDIA/gpu-monitoring-tools/issues/46). Unlike there, the tool stays in the process
group of its caller, so that whoever ends a check script also ends the tool that hangs in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import selectors
    import subprocess

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


def run(argv: Sequence[str], *, timeout: float, grace: float = TERM_GRACE, limit: int = LIMIT) -> Output:
    """Runs ``argv`` and returns its output, at most ``timeout + grace + KILL_GRACE`` seconds later.

    After ``timeout`` seconds it gets SIGTERM, ``grace`` seconds later SIGKILL. A tool that prints more than
    ``limit`` bytes is killed. Never raises for anything that the tool does.
    """
    import selectors  # both here: importing them costs more than judging a text does
    import subprocess

    started = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Output("", None, problem=f"{argv[0]} cannot be started: {reason}")
    try:
        with selectors.DefaultSelector() as selector:
            read, problem = _wait(process, selector, timeout=timeout, grace=grace, limit=limit)
    except BaseException:
        process.kill()
        raise
    finally:
        for pipe in (process.stdout, process.stderr):
            assert pipe
            pipe.close()
    out, err = (content.decode("utf-8", errors="replace") for content in read)
    code = process.returncode if problem is None else None
    return Output(out, code, err, problem, round(time.monotonic() - started, 3))


def _environment() -> dict[str, str]:
    """Ours in English, and without the variable by which the caller may have hidden GPUs from himself."""
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {**kept, "LC_ALL": "C"}


def _wait(
    process: subprocess.Popen[bytes],
    selector: selectors.BaseSelector,
    *,
    timeout: float,
    grace: float,
    limit: int,
) -> tuple[list[bytearray], str | None]:
    """Reads both pipes until the process has ended or is given up; what was read, and what went wrong.

    It has ended when it has exited, not when its pipes are closed: a grandchild may hold them for ever.
    """
    from selectors import EVENT_READ

    read = [bytearray(), bytearray()]
    for number, pipe in enumerate((process.stdout, process.stderr)):
        assert pipe
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe, EVENT_READ, number)
    ended = os.pidfd_open(process.pid)
    selector.register(ended, EVENT_READ, None)
    steps = [timeout, grace, KILL_GRACE]
    problem: str | None = None
    next_step = time.monotonic() + steps.pop(0)
    try:
        while True:
            for key, _ in selector.select(max(next_step - time.monotonic(), 0)):
                if key.data is None:
                    _drain(process, read, limit)
                    process.wait()
                    return read, problem
                if not _read(key.fd, read[key.data], limit):
                    selector.unregister(key.fileobj)
                if len(read[key.data]) > limit and steps:
                    problem = f"it printed more than {limit} bytes"
                    process.kill()
                    next_step, steps = time.monotonic() + KILL_GRACE, []
            if time.monotonic() >= next_step:
                if not steps:
                    return read, f"{problem}; it cannot be killed{_state(process.pid)}"
                if len(steps) == 2:
                    problem = f"no answer within {timeout:g} s"
                    process.terminate()
                else:
                    process.kill()
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


def _drain(process: subprocess.Popen[bytes], read: list[bytearray], limit: int) -> None:
    for number, pipe in enumerate((process.stdout, process.stderr)):
        assert pipe
        size = -1
        while size != len(read[number]) and len(read[number]) <= limit:
            size = len(read[number])
            _read(pipe.fileno(), read[number], limit)


def _state(pid: int) -> str:
    """The process's state in the kernel, `` (state D)``, or nothing."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name in parentheses may itself hold parentheses and spaces; the state follows the last one.
            return f" (state {file.read().rpartition(')')[2].split()[0]})"
    except (OSError, IndexError):
        return ""
