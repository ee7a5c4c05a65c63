"""Runs programs side by side and always comes back.

GPU tools hang in ways that nothing can end: nvidia-smi in the kernel's D state ignores SIGKILL
(https://github.com/NVIDIA/gpu-monitoring-tools/issues/46). So nothing here waits for a child without a
limit, and a child that cannot be ended is left behind and reported.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, NamedTuple

STDOUT_LIMIT = 64 * 1024  # bytes; a result is one small JSON object
STDERR_LIMIT = 1024 * 1024  # bytes; only the last STDERR_KEPT are remembered
STDERR_KEPT = 2048
TERM_GRACE = 2.0  # seconds between SIGTERM and SIGKILL
KILL_GRACE = 1.0  # seconds between SIGKILL and leaving the child behind


class Program(NamedTuple):
    """An executable to run, and after how many seconds it is ended."""

    path: str
    deadline: float


class Ended(NamedTuple):
    """How a program ended. ``problem`` is None when it ended by itself and kept within the limits."""

    path: str
    exit_code: int | None  # negative: ended by that signal; None: never started, or left behind
    stdout: bytes
    stderr: bytes  # the end of it
    seconds: float
    problem: str | None


def run(programs: Sequence[Program], *, env: Mapping[str, str], deadline: float) -> list[Ended]:
    """Runs all ``programs`` at once and returns how each ended, in the same order.

    ``deadline`` is the total in seconds; it ends those whose own deadline is later. Takes at most
    ``TERM_GRACE + KILL_GRACE`` seconds longer. On SIGINT and SIGTERM all of them are killed and
    ``KeyboardInterrupt`` is raised. For the main thread only, because of these signals.
    """
    with selectors.DefaultSelector() as selector, _interruptible_wait(selector):
        children: list[_Child] = []
        try:
            for program in programs:
                children.append(_Child(program, selector, env=env, limit=min(program.deadline, deadline)))
            while running := [child for child in children if not child.over]:
                wake = min(child.next_step for child in running)
                for key, _ in selector.select(max(wake - time.monotonic(), 0)):
                    key.data()
                for child in running:
                    child.step()
        except BaseException:
            for child in children:
                child.kill(signal.SIGKILL)
            raise
    return [child.ended() for child in children]


@contextlib.contextmanager
def _interruptible_wait(selector: selectors.BaseSelector) -> Iterator[None]:
    """SIGINT and SIGTERM raise ``KeyboardInterrupt`` in the wait for children, and nowhere else.

    Between the start of a child and the moment we know it, an exception would leave it behind.
    """
    reader, writer = os.pipe()

    def note(signum: int, frame: object) -> None:
        os.write(writer, b"!")

    def stop() -> None:
        raise KeyboardInterrupt

    before = {signum: signal.signal(signum, note) for signum in (signal.SIGINT, signal.SIGTERM)}
    selector.register(reader, selectors.EVENT_READ, stop)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        os.close(reader)
        os.close(writer)


class _Output:
    """One pipe from a program, read without blocking: its first or its last ``kept`` bytes."""

    def __init__(self, pipe: IO[bytes] | None, *, limit: int, kept: int, last: bool) -> None:
        assert pipe
        self.pipe = pipe
        self.kept = b""
        self.seen = 0
        self._limit = limit
        self._keep = slice(-kept, None) if last else slice(kept)
        os.set_blocking(pipe.fileno(), False)

    @property
    def too_much(self) -> bool:
        """More than the limit has been read."""
        return self.seen > self._limit

    def read(self) -> bool:
        """Takes what is there, at most 64 KiB; False when nothing is, or when the pipe is at its end."""
        try:
            chunk = os.read(self.pipe.fileno(), 65536)
        except BlockingIOError:
            return False
        self.seen += len(chunk)
        self.kept = (self.kept + chunk)[self._keep]
        return bool(chunk)


class _Child:
    """One running program: SIGTERM at its deadline, then SIGKILL, then it is left behind.

    It is over when its first process has ended, not when its pipes are closed: a grandchild may keep
    them open for ever.
    """

    def __init__(
        self, program: Program, selector: selectors.BaseSelector, *, env: Mapping[str, str], limit: float
    ) -> None:
        self.over = False
        self._path = program.path
        self._limit = limit
        self._selector = selector
        self._exit_code: int | None = None
        self._problem: str | None = None
        self._outputs: dict[str, _Output] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._started = self._ended = time.monotonic()
        self._steps = [
            (self._started + limit, self._at_deadline),
            (self._started + limit + TERM_GRACE, self._after_term),
            (self._started + limit + TERM_GRACE + KILL_GRACE, self._after_kill),
        ]
        try:
            self._process = self._start(env)
        except OSError as error:
            self._problem = f"it cannot be started: {error.strerror}"
            self._finish()

    def _start(self, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [self._path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=dict(env),
            start_new_session=True,
        )
        self._outputs = {
            "stdout": _Output(process.stdout, limit=STDOUT_LIMIT, kept=STDOUT_LIMIT, last=False),
            "stderr": _Output(process.stderr, limit=STDERR_LIMIT, kept=STDERR_KEPT, last=True),
        }
        for name in self._outputs:
            self._watch(self._outputs[name].pipe.fileno(), lambda name=name: self._at_output(name))
        self._pidfd = os.pidfd_open(process.pid)
        self._watch(self._pidfd, self._at_exit)
        return process

    @property
    def next_step(self) -> float:
        """When something is to be done about it, on the monotonic clock."""
        return self._steps[0][0]

    def step(self) -> None:
        """Does what is due."""
        while not self.over and self.next_step <= time.monotonic():
            self._steps.pop(0)[1]()

    def kill(self, signum: signal.Signals) -> None:
        """Signals the program and whatever it has started in its process group."""
        if self._process and not self.over:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signum)

    def ended(self) -> Ended:
        """How it ended."""
        out, err = (self._outputs[name].kept if self._process else b"" for name in ("stdout", "stderr"))
        return Ended(
            self._path, self._exit_code, out, err, round(self._ended - self._started, 3), self._problem
        )

    def _at_output(self, name: str) -> None:
        if self.over:
            return
        output = self._outputs[name]
        if not output.read():
            self._unwatch(output.pipe.fileno())
        elif output.too_much:
            self._unwatch(output.pipe.fileno())
            self._problem = self._problem or _flood(name)
            self.kill(signal.SIGKILL)
            self._steps = [(time.monotonic() + KILL_GRACE, self._after_kill)]

    def _at_exit(self) -> None:
        """Its first process has ended but is not reaped yet, so its group's number is still its own."""
        if self.over or not self._process:
            return
        for name, output in self._outputs.items():
            while output.read() and not output.too_much:
                pass
            if output.too_much:
                self._problem = self._problem or _flood(name)
        self.kill(signal.SIGKILL)
        self._exit_code = self._process.poll()
        self._finish()

    def _at_deadline(self) -> None:
        self._problem = f"no answer within {self._limit:g} s"
        self.kill(signal.SIGTERM)

    def _after_term(self) -> None:
        self.kill(signal.SIGKILL)

    def _after_kill(self) -> None:
        assert self._process
        self._problem = f"{self._problem}; it did not end, not even by SIGKILL{_where(self._process.pid)}"
        self._finish()

    def _finish(self) -> None:
        self.over = True
        self._ended = time.monotonic()
        if self._process:
            for output in self._outputs.values():
                self._unwatch(output.pipe.fileno())
                output.pipe.close()
            self._unwatch(self._pidfd)
            os.close(self._pidfd)

    def _watch(self, descriptor: int, callback: object) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def _unwatch(self, descriptor: int) -> None:
        with contextlib.suppress(KeyError):  # an output that is at its end is no longer watched
            self._selector.unregister(descriptor)


def _flood(name: str) -> str:
    limit = {"stdout": STDOUT_LIMIT, "stderr": STDERR_LIMIT}[name]
    return f"it printed more than {limit // 1024} KiB on {name}"


def _where(pid: int) -> str:
    """A process's state and where in the kernel it waits, `` (state D in nvidia_ioctl)``, or nothing."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name in parentheses may itself hold parentheses and spaces; the state follows the last one.
            state = file.read().rpartition(")")[2].split()[0]
        with open(f"/proc/{pid}/wchan", encoding="utf-8", errors="replace") as file:
            place = file.read().strip("0")  # "0": it does not wait, or we may not know
    except (OSError, IndexError):
        return ""
    return f" (state {state} in {place})" if place else f" (state {state})"
