"""Processes: what they print comes back, and nothing is left of them whatever happens."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from images import run
from images.errors import Interrupted, UserError


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Polls; the tests' only use of time is to give up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        threading.Event().wait(0.02)
    return False


def test_output_and_code() -> None:
    result = run.run(["sh", "-c", "echo out; echo err >&2; exit 3"], check=False)
    assert (result.returncode, result.stdout, result.stderr) == (3, "out\n", "err\n")


def test_failure_can_be_pasted_and_shows_the_last_lines() -> None:
    with pytest.raises(run.CommandFailed) as caught:
        run.run(["sh", "-c", "echo reason >&2; exit 4"])
    assert caught.value.message == "sh -c 'echo reason >&2; exit 4' failed (exit code 4)\n  reason"


def test_signal_is_named() -> None:
    with pytest.raises(run.CommandFailed, match="SIGTERM"):
        run.run(["sh", "-c", "kill -TERM $$"])


def test_missing_program() -> None:
    with pytest.raises(UserError, match="no-such-program is not installed"):
        run.run(["no-such-program"])


def test_timeout_ends_the_whole_group(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! >{tmp_path}/pid; wait"
    with pytest.raises(UserError, match="did not end within"):
        run.run(["sh", "-c", script], timeout=0.5)
    assert wait_for(lambda: gone(int((tmp_path / "pid").read_text())))


def test_dry_starts_nothing(tmp_path: Path) -> None:
    token = run.dry.set(True)
    try:
        assert run.run(["touch", tmp_path / "x"]).returncode == 0
        assert run.supervise(["touch", str(tmp_path / "x")], on_line=print) == 0
    finally:
        run.dry.reset(token)
    assert not (tmp_path / "x").exists()


def test_supervise_hands_over_lines_and_logs_them(tmp_path: Path) -> None:
    lines: list[str] = []
    code = run.supervise(
        ["sh", "-c", "echo a; echo b >&2; printf c; exit 5"], on_line=lines.append, log=tmp_path / "log"
    )
    assert (code, lines) == (5, ["a", "b", "c"])
    assert (tmp_path / "log").read_text() == "a\nb\nc"


def test_supervise_interrupts_the_group_and_lets_it_clean_up(tmp_path: Path) -> None:
    script = f"trap 'echo cleaned >{tmp_path}/cleaned; exit 1' INT; echo ready; while :; do sleep 0.1; done"

    def stop(line: str) -> None:
        raise Interrupted(signal.SIGTERM)

    with pytest.raises(Interrupted):
        run.supervise(["bash", "-c", script], on_line=stop, grace=10)
    assert (tmp_path / "cleaned").read_text() == "cleaned\n"


def test_supervise_kills_a_group_that_ignores_the_interrupt(tmp_path: Path) -> None:
    script = f"trap '' INT TERM; sleep 60 & echo $! >{tmp_path}/pid; echo ready; wait"

    def stop(line: str) -> None:
        raise UserError("enough")

    with pytest.raises(UserError, match="enough"):
        run.supervise(["bash", "-c", script], on_line=stop, grace=0.3)
    assert wait_for(lambda: gone(int((tmp_path / "pid").read_text())))


def test_supervise_does_not_wait_for_a_grandchild_that_keeps_the_pipe(tmp_path: Path) -> None:
    script = f"setsid sleep 60 & echo $! >{tmp_path}/pid; echo done"
    started = time.monotonic()
    try:
        assert run.supervise(["sh", "-c", script], on_line=lambda _: None) == 0
        assert time.monotonic() - started < 30
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_tick_can_stop_a_silent_command() -> None:
    def tick() -> None:
        raise UserError("disk full")

    with pytest.raises(UserError, match="disk full"):
        run.supervise(["sleep", "60"], on_line=lambda _: None, on_tick=tick, grace=1)


def test_children_carry_the_mark_of_the_build() -> None:
    token = run.build_id.set("b-1")
    try:
        assert run.run(["printenv", run.BUILD_ENV]).stdout == "b-1\n"
    finally:
        run.build_id.reset(token)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_become_an_exception_and_are_restored(signum: int) -> None:
    before = signal.getsignal(signum)
    with pytest.raises(Interrupted), run.interruptible():
        os.kill(os.getpid(), signum)
    assert signal.getsignal(signum) == before
