"""Running a tool that answers, hangs, ignores signals, floods, or is not there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from validation import dcgm, nvidia_smi, tools
from validation.dcgm import command as dcgm_command

HELP = '"uuid" or "gpu_uuid"\n...\n\n"temperature.gpu"\n...\n'


@pytest.fixture
def tool(tmp_path: Path) -> Iterator[Path]:
    """A fake tool: the file ``body`` beside it is what it does, ``calls`` what it was asked."""
    path = tmp_path / "tool"
    path.write_text(
        f"#!{sys.executable} -S\nimport os, signal, sys\n"
        f"open({str(tmp_path / 'calls')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        f"open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        f"exec(open({str(tmp_path / 'body')!r}).read())\n"
    )
    path.chmod(0o755)
    yield path
    pids = tmp_path / "pids"
    for pid in pids.read_text().split() if pids.exists() else []:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
        pytest.fail(f"process {pid} was left behind")


def body(tool: Path, text: str) -> None:
    (tool.parent / "body").write_text(text)


def calls(tool: Path) -> list[str]:
    return (tool.parent / "calls").read_text().splitlines()


def test_what_it_printed_and_how_it_ended(tool: Path) -> None:
    body(tool, "print('out'); print('err', file=sys.stderr); sys.exit(9)")
    output = tools.run([str(tool), "a", "b c"], timeout=30)
    assert output[:4] == ("out\n", 9, "err\n", None)
    assert calls(tool) == ["a b c"]
    assert not output.hung


def test_more_than_a_pipe_holds(tool: Path) -> None:
    body(tool, "print('x' * 1_000_000); print('y' * 1_000_000, file=sys.stderr)")
    output = tools.run([str(tool)], timeout=30)
    assert (len(output.text), len(output.stderr), output.exit_code) == (1_000_001, 1_000_001, 0)


def test_a_tool_that_gives_no_answer(tool: Path) -> None:
    body(tool, "print('begun', flush=True); signal.pause()")
    output = tools.run([str(tool)], timeout=0.3)
    assert (output.exit_code, output.problem) == (None, "no answer within 0.3 s")
    assert output.hung


def test_a_tool_that_ignores_its_end(tool: Path) -> None:
    body(tool, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()")
    output = tools.run([str(tool)], timeout=0.3, grace=0.1)
    assert output.hung
    assert output.exit_code is None


def test_a_tool_that_takes_its_leave(tool: Path) -> None:
    """dcgmi stops its tests on SIGTERM; what it prints then is kept, and it gave no answer all the same."""
    tool.write_text("#!/bin/sh\ntrap 'echo stopped; exit 3' TERM\nwhile :; do sleep 0.05; done\n")
    output = tools.run([str(tool)], timeout=0.5, grace=20)
    assert (output.text, output.exit_code, output.hung) == ("stopped\n", None, True)


def test_a_grandchild_that_holds_the_pipes(tool: Path) -> None:
    held = "import os, signal, subprocess\n"
    body(tool, held + "child = subprocess.Popen(['sleep', '60'])\nopen(os.path.join(os.path.dirname("
         "sys.argv[0]), 'pids'), 'a').write(f'{child.pid}\\n')\nprint('done')")  # fmt: skip
    output = tools.run([str(tool)], timeout=30)
    assert output[:2] == ("done\n", 0)
    pids = tool.parent / "pids"
    os.kill(int(pids.read_text().split()[-1]), signal.SIGKILL)
    pids.write_text("")


def test_a_flood(tool: Path) -> None:
    body(tool, "while True: print('x' * 10_000)")
    output = tools.run([str(tool)], timeout=30, limit=100_000)
    assert output.exit_code is None
    assert output.problem == "it printed more than 100000 bytes"
    assert len(output.text) == 100_001


@pytest.mark.parametrize("name", ["/nonexistent/tool", "/etc/hostname", "/tmp"])
def test_a_tool_that_cannot_be_started(name: str) -> None:
    output = tools.run([name], timeout=5)
    assert output.exit_code is None
    assert output.problem is not None
    assert output.problem.startswith(f"{name} cannot be started: ")


def test_its_environment(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    body(tool, "print(os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ['LC_ALL'])")
    assert tools.run([str(tool)], timeout=30).text == "None C\n"


def test_nvidia_smi_is_asked_for_what_it_offers(tool: Path) -> None:
    body(tool, f"print({HELP!r} if 'help' in sys.argv[1] else 'uuid, temperature.gpu\\nGPU-1, 40')")
    output = nvidia_smi.query(timeout=30, nvidia_smi=str(tool))
    assert calls(tool) == ["--help-query-gpu", "--query-gpu=uuid,temperature.gpu --format=csv"]
    assert nvidia_smi.judge(output.text, exit_code=output.exit_code).verdict == "pass"


def test_nvidia_smi_is_asked_once_where_the_fields_are_known(tool: Path) -> None:
    body(tool, "print('No devices were found'); sys.exit(6)")
    output = nvidia_smi.query(timeout=30, fields=["uuid"], nvidia_smi=str(tool))
    assert calls(tool) == ["--query-gpu=uuid --format=csv"]
    assert (output.text, output.exit_code) == ("No devices were found\n", 6)


def test_nvidia_smi_without_a_help_is_asked_for_what_every_driver_has(tool: Path) -> None:
    body(tool, "sys.exit(1)")
    nvidia_smi.query(timeout=30, nvidia_smi=str(tool))
    assert calls(tool)[1] == f"--query-gpu={','.join(nvidia_smi.OLDEST)} --format=csv"


def test_what_nvidia_smi_says_on_stderr_counts(tool: Path) -> None:
    lost = "Unable to determine the device handle for GPU1: 0000:44:00.0: Unknown Error"
    body(tool, f"print('uuid, temperature.gpu\\nGPU-1, 40'); print({lost!r}, file=sys.stderr)")
    output = nvidia_smi.query(timeout=30, fields=["uuid", "temperature.gpu"], nvidia_smi=str(tool))
    assert nvidia_smi.judge(output.text, exit_code=output.exit_code).verdict == "fail"


def test_nvidia_smi_hangs(tool: Path) -> None:
    body(tool, "signal.pause()")
    output = nvidia_smi.query(timeout=0.3, fields=["uuid"], nvidia_smi=str(tool))
    assert (output.text, output.exit_code, output.hung) == ("", None, True)
    assert "hung" in nvidia_smi.judge(output.text, exit_code=output.exit_code).reason


def test_dcgmi(tool: Path) -> None:
    body(tool, "print('{}')")
    dcgm.diag(2, dcgmi=str(tool))
    dcgm.health_watch(dcgmi=str(tool))
    dcgm.health(dcgmi=str(tool))
    assert calls(tool) == ["diag -r 2 -j", "health -s a", "health -c -j"]


def test_dcgmi_has_time_to_stop_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """dcgmi waits up to 25 s for them (dcgmi/Diag.cpp, stopDiagTimeout)."""
    asked = {}

    def run(argv: list[str], *, timeout: float, grace: float) -> tools.Output:
        asked.update(timeout=timeout, grace=grace)
        return tools.Output("", 0)

    monkeypatch.setattr(dcgm_command, "run", run)
    dcgm.diag(1, timeout=7)
    assert asked["timeout"] == 7
    assert asked["grace"] > 25
