"""The plugin that writes results: on small suites of its own, run by a pytest of their own."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.validation.gate import gate
from validation.gate.checks import Level, NotRun, Result, Unknown, verdict
from validation.gate.results import judge, strongest

CONFTEST = "from validation.gate.conftest import *\n"
HEADER = "from validation.gate.checks import Level, NotRun, Unknown, check\n"


def suite(folder: Path, body: str) -> list[str]:
    """A suite with these checks; returns the command that runs it."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_small.py").write_text(HEADER + body)
    (folder / "expected.json").write_text('{"schema": "gpu-image/expected/v1"}')
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {gate.CHECKOUT}\n")
    words = [sys.executable, "-m", "pytest", str(folder), "-c", str(folder / "pytest.ini"), "-q"]
    words += ["-p", "no:cacheprovider", "--phase=host", "--hosts=local://"]
    return [*words, f"--expected={folder}/expected.json", f"--results={folder}/gate.json"]


def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "gate.json").read_bytes())
    return found


ALL_KINDS = """
@check("x.passes")
def test_passes(): pass

@check("x.fails")
def test_fails(): assert 1 == 2, "one is not two"

@check("x.cannot_tell")
def test_cannot_tell(): raise Unknown("no answer")

@check("x.broken")
def test_broken(): raise RuntimeError("boom")

@check("x.does_not_apply")
def test_does_not_apply(): raise NotRun("no such thing here")
"""


def test_every_kind_of_result(tmp_path: Path) -> None:
    command = suite(tmp_path, ALL_KINDS)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stdout
    found = document(tmp_path)
    assert [(check["id"], check["result"]) for check in found["checks"]] == [
        ("x.fails", "fail"),
        ("x.cannot_tell", "unknown"),
        ("x.broken", "unknown"),
        ("x.does_not_apply", "not_run"),
        ("x.passes", "pass"),
    ]
    checks = {check["id"]: check for check in found["checks"]}
    assert checks["x.fails"]["reason"] == "one is not two"
    assert checks["x.broken"]["reason"] == "RuntimeError: boom"
    assert checks["x.does_not_apply"]["reason"] == "no such thing here"
    assert checks["x.passes"]["reason"] is None
    assert {check["tier"] for check in found["checks"]} == {"any_vm"}
    source = (tmp_path / "test_small.py").read_bytes()
    assert {check["script_sha256"] for check in found["checks"]} == {hashlib.sha256(source).hexdigest()}
    assert found["started"] <= found["finished"]
    # The summary says it too, the failure first.
    lines = [
        line for line in result.stdout.splitlines() if line.startswith(("fail ", "unknown ", "not_run "))
    ]
    assert lines[0].split(None, 2) == ["fail", "x.fails", "one is not two"]


BROKEN_FIXTURE = "import pytest\n@pytest.fixture\ndef f(): {}\n@check('x.a')\ndef test_a(f): pass\n"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('@check("x.a")\ndef test_a(): pass\n', 0),
        ('@check("x.a")\ndef test_a(): raise NotRun("no")\n', 3),
        ("import pytest\n@check('x.a')\ndef test_a(): pytest.skip('lazy')\n", 2),
        (BROKEN_FIXTURE.format("assert False"), 1),
        (BROKEN_FIXTURE.format("yield; assert False"), 1),
    ],
    ids=[
        "pass",
        "nothing to decide",
        "a pytest skip is no pass",
        "set-up fails",
        "teardown fails",
    ],
)
def test_exit_codes(tmp_path: Path, body: str, code: int) -> None:
    result = subprocess.run(suite(tmp_path, body), capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stdout


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("def test_nothing(): pass\n", "is not a check"),
        (
            '@check("x.a")\ndef test_a(): pass\n@check("x.a")\ndef test_b(): pass\n',
            "two checks have the id x.a",
        ),
    ],
)
def test_a_suite_that_is_wrong_does_not_run(tmp_path: Path, body: str, complaint: str) -> None:
    result = subprocess.run(suite(tmp_path, body), capture_output=True, text=True, check=False)
    assert result.returncode not in (0, 1, 2)
    assert complaint in result.stdout + result.stderr


HANGS = """
@check("x.first")
def test_first(): pass

@check("x.hangs")
def test_hangs():
    print("hanging", flush=True)
    import signal
    signal.pause()

@check("x.never")
def test_never(): pass
"""


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 2), (signal.SIGTERM, 2), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_an_interrupted_gate_never_looks_like_a_pass(
    tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    with subprocess.Popen([*suite(tmp_path, HANGS), "-s"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        while "hanging" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signum)
        process.stdout.read()
    assert process.returncode == code
    results = {check["id"]: (check["result"], check["reason"]) for check in document(tmp_path)["checks"]}
    assert results["x.first"] == ("pass", None)
    assert results["x.hangs"] == ("unknown", "not finished: the gate was interrupted")
    assert results["x.never"] == ("unknown", "not finished: the gate was interrupted")


def test_a_machine_that_cannot_be_reached_is_unknown(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text("Host vm\n  HostName 127.0.0.1\n  Port 9\n  BatchMode yes\n")
    expected = {"schema": "gpu-image/expected/v1", "kernel": {"release": "1", "packages": {}}}
    options = ["--phase=build", "--hosts=ssh://vm", f"--ssh-config={config}", "--check=kernel.running"]
    run = gate.run(tmp_path, expected, *options)
    assert run.code == 2
    assert run.checks["kernel.running"]["result"] == "unknown"
    assert "SSH failed" in run.checks["kernel.running"]["reason"]
    assert "onnection refused" in run.checks["kernel.running"]["reason"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--phase=build"], "needs --hosts"),
        (["--phase=build", "--hosts=local://", "--check=no.such"], "no check no.such"),
        (["--phase=capture", "--check=kernel.running"], "no check kernel.running in phase capture"),
    ],
)
def test_wrong_options(tmp_path: Path, options: list[str], complaint: str) -> None:
    run = gate.run(tmp_path, {"schema": "gpu-image/expected/v1"}, *options)
    assert run.code == 4
    assert complaint in run.output


def test_what_an_exception_means() -> None:
    assert judge(None) == (Result.PASS, None)
    assert judge(AssertionError("a\nb")) == (Result.FAIL, "a")
    assert judge(Unknown("u")) == (Result.UNKNOWN, "u")
    assert judge(NotRun("n")) == (Result.NOT_RUN, "n")
    assert judge(KeyError("k"))[0] is Result.UNKNOWN


def test_verdict_of_nothing_is_no_pass() -> None:
    assert verdict([]) == 3
    assert verdict([Result.NOT_RUN, Result.PASS]) == 0
    assert verdict([Result.PASS, Result.UNKNOWN, Result.FAIL]) == 1


def test_level_of_a_document_is_what_was_really_passed() -> None:
    class Entry:
        def __init__(self, level: Level, result: Result) -> None:
            self.level, self.result = level.value, result

    entries = [Entry(Level.VM_NO_GPU, Result.PASS), Entry(Level.GPU_HARDWARE, Result.NOT_RUN)]
    assert strongest(entries) == "vm_no_gpu"
    assert strongest([]) == "static"
