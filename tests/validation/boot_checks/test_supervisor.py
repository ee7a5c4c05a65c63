"""What no real process can show cheaply: a child that even SIGKILL does not end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from validation.boot_checks import supervisor
from validation.boot_checks.supervisor import Program


def test_a_child_that_cannot_be_killed_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a process in the D state, signals are sent and have no effect."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(supervisor.os, "killpg", lambda group, signum: sent.append((group, signum)))
    script = tmp_path / "stuck"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(supervisor, "TERM_GRACE", 0.2)
    monkeypatch.setattr(supervisor, "KILL_GRACE", 0.2)
    started = time.monotonic()
    (ended,) = supervisor.run([Program(str(script), 0.2)], env={"PATH": os.environ["PATH"]}, deadline=9)
    assert time.monotonic() - started < 3
    ((group, first), (_, second)) = sent
    os.kill(group, 0)  # it lives
    os.kill(group, signal.SIGKILL)
    os.waitpid(group, 0)
    assert (first, second) == (signal.SIGTERM, signal.SIGKILL)
    assert ended.exit_code is None
    assert ended.problem
    assert ended.problem.startswith("no answer within 0.2 s; it did not end, not even by SIGKILL (state S")
