"""The one way to run a process.

``run`` is for commands that end by themselves, ``supervise`` for long ones that must be cancelled
cleanly (Packer, QEMU). Both honour ``--dry``: then the command is printed and nothing starts. Every
child carries ``GPU_IMAGE_BUILD`` in its environment, so that a sweep finds the children of a builder
that was killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from images import progress
from images.errors import ExitCode, Interrupted, UserError

BUILD_ENV = "GPU_IMAGE_BUILD"

dry: ContextVar[bool] = ContextVar("dry", default=False)
build_id: ContextVar[str | None] = ContextVar("build_id", default=None)


@dataclass(frozen=True)
class Result:
    """What a finished command left: exit code (negative: ended by that signal), stdout and stderr."""

    args: tuple[str, ...]
    returncode: int
    stdout: str = ""
    stderr: str = ""


class CommandFailed(UserError):
    """A command ended with a code other than zero. ``result`` has what it printed."""

    def __init__(self, result: Result, *, hint: str | None = None) -> None:
        self.result = result
        how = f"exit code {result.returncode}"
        if result.returncode < 0:
            how = f"signal {signal.Signals(-result.returncode).name}"
        last = (result.stderr or result.stdout).strip().splitlines()[-5:]
        message = f"{shlex.join(result.args)} failed ({how})"
        super().__init__("\n  ".join([message, *last]), hint=hint, code=ExitCode.FAILED)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment plus ``extra`` and the mark of the running build."""
    env = {**os.environ, **(extra or {})}
    if identifier := build_id.get():
        env[BUILD_ENV] = identifier
    return env


def run(
    args: Sequence[str | Path],
    *,
    check: bool = True,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    timeout: float | None = None,
    log: Path | None = None,
    hint: str | None = None,
) -> Result:
    """Runs ``args`` to its end and returns what it printed.

    ``log`` sends stdout and stderr to that file instead; ``timeout`` is in seconds. Raises
    ``CommandFailed`` for a non-zero exit with ``check``, ``UserError`` when the program is missing or
    runs out of time. On any exception (an interruption too) the command's whole process group is gone.
    """
    words = tuple(str(arg) for arg in args)
    if dry.get():
        progress.say(shlex.join(words))
        return Result(words, 0)
    with contextlib.ExitStack() as stack:
        sink: int | IO[bytes] = stack.enter_context(log.open("ab")) if log else subprocess.PIPE
        process = start(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT if log else sink,
        )
        try:
            out, err = process.communicate(None if input is None else input.encode(), timeout=timeout)
        except subprocess.TimeoutExpired:
            kill_group(process, grace=2)
            raise UserError(
                f"{shlex.join(words)} did not end within {timeout:g} s", hint=hint, code=ExitCode.FAILED
            ) from None
        except BaseException:
            kill_group(process, grace=5)
            raise
    text = (out or b"").decode(errors="replace"), (err or b"").decode(errors="replace")
    if log:
        text = log.read_text(errors="replace")[-4000:], ""
    result = Result(words, process.returncode, *text)
    if check and result.returncode:
        raise CommandFailed(result, hint=hint)
    return result


def start(
    args: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Starts ``args`` in a session (so a process group) of its own and returns at once.

    The caller ends it with ``kill_group``. Ctrl-C on the terminal does not reach it.
    """
    words = [str(arg) for arg in args]
    try:
        return subprocess.Popen(
            words,
            cwd=cwd,
            env=environment(env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise UserError(
            f"{words[0]} is not installed", hint="./inv doctor says what is missing and how to get it"
        ) from None


def supervise(
    args: Sequence[str | Path],
    *,
    on_line: Callable[[str], None],
    on_tick: Callable[[], None] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    grace: float = 60,
    log: Path | None = None,
    keep: bool = False,
) -> int:
    """Runs ``args`` and hands each line of its output to ``on_line`` as it comes; returns the exit code.

    ``on_tick`` is called about once a second. On an exception (an interruption, or one that a callback
    raises) the process group gets SIGINT, ``grace`` seconds to clean up after itself (or the exception's
    own ``grace``), then SIGKILL; its output is still read and logged meanwhile. Never only the first
    process: Packer's wrapper ignores SIGINT and outlives its children.
    ``keep`` leaves the rest of the group running when the command itself has ended with an error.
    """
    words = tuple(str(arg) for arg in args)
    if dry.get():
        progress.say(shlex.join(words))
        return 0
    process = start(words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with contextlib.ExitStack() as stack:
        logfile = stack.enter_context(log.open("ab", buffering=0)) if log else None
        lines = _lines(process, logfile, on_tick=on_tick)
        try:
            for line in lines:
                on_line(line)
        except BaseException as error:
            signal_group(process, signal.SIGINT)
            deadline = time.monotonic() + getattr(error, "grace", grace)
            # A second Ctrl-C ends the grace.
            with contextlib.suppress(Interrupted, KeyboardInterrupt, subprocess.TimeoutExpired):
                for _ in _lines(process, logfile, deadline=deadline):
                    pass
                process.wait(timeout=max(deadline - time.monotonic(), 0.1))
            raise
        finally:
            if not (keep and process.poll()):
                kill_group(process, grace=0)
    return process.returncode


def _lines(
    process: subprocess.Popen[bytes],
    log: IO[bytes] | None,
    *,
    deadline: float | None = None,
    on_tick: Callable[[], None] | None = None,
) -> Iterator[str]:
    """Yields the output line by line until end of file, the process's end or the deadline.

    The end of the process counts too: a grandchild that escaped may keep the pipe open for ever.
    """
    assert process.stdout
    descriptor = process.stdout.fileno()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        ticked = time.monotonic()
        while deadline is None or time.monotonic() < deadline:
            if on_tick and time.monotonic() - ticked > 1:
                on_tick()
                ticked = time.monotonic()
            if selector.select(timeout=0.5):
                chunk = os.read(descriptor, 65536)
                if not chunk:
                    break
                if log:
                    log.write(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line.decode(errors="replace").rstrip("\r") for line in lines)
            elif process.poll() is not None:
                break
    if rest:
        yield rest.decode(errors="replace")
    if deadline is None:
        process.wait()


def signal_group(process: subprocess.Popen[bytes], signum: int) -> None:
    """Sends a signal to the whole process group; one that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signum)


def kill_group(process: subprocess.Popen[bytes], *, grace: float) -> None:
    """Ends a process group: SIGTERM, ``grace`` seconds, SIGKILL. Returns when its leader is reaped."""
    if process.poll() is None and grace:
        signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace)
    # Also when the leader has ended: others of its group may not have.
    signal_group(process, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turns SIGINT, SIGTERM and SIGHUP into ``Interrupted`` in the body, so that clean-up code runs."""

    def raise_interrupted(signum: int, _frame: object) -> None:
        raise Interrupted(signum)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.signal(signum, raise_interrupted) for signum in signals}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
