"""The frame of the readers' commands: arguments, input, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.validation.rows import FIXTURES
from validation import judgement, reader_command
from validation.dcgm.__main__ import main as dcgm_main
from validation.nvidia_smi.__main__ import main as nvidia_smi_main

CHECKOUT = Path(__file__).resolve().parents[2]
READERS = ["dcgm", "nvidia_smi"]
MAINS = {"dcgm": dcgm_main, "nvidia_smi": nvidia_smi_main}
FILES = {"dcgm": "dcgm/health_healthy.json", "nvidia_smi": "nvidia_smi/smi_query_l4_vm.csv"}


def command(
    reader: str, *arguments: str, text: bytes = b"", cwd: Path = CHECKOUT
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", f"validation.{reader}", *arguments],
        input=text,
        capture_output=True,
        check=False,
        cwd=cwd,
    )
    assert b"Traceback" not in done.stderr
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


@pytest.mark.parametrize("reader", READERS)
def test_a_file_and_standard_input(reader: str) -> None:
    file = FIXTURES / FILES[reader]
    by_name = command(reader, str(file))
    by_stdin = command(reader, "-", text=file.read_bytes())
    assert by_name.stdout == by_stdin.stdout
    assert (by_name.returncode, json.loads(by_name.stdout)["verdict"]) == (0, "pass")
    assert list(json.loads(by_name.stdout))[:5] == ["verdict", "reason", "failures", "not_run", "degraded"]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "FILE"),
        (["a", "b"], "unrecognized arguments: b"),
        (["--expect-gpus", "-1", "-"], "'-1' is not a number of GPUs (0 to 4096)"),
        (["--expect-gpus", "many", "-"], "'many' is not a number of GPUs"),
        (["--expect-gpus", "9" * 5000, "-"], "is not a number of GPUs"),
        (["--exit-code", "256", "-"], "'256' is not an exit code"),
        (["--expect", "1", "-"], "unrecognized arguments"),
    ],
)
def test_wrong_arguments(
    reader: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        MAINS[reader](arguments)
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (64, "")
    assert says in printed.err
    assert len(printed.err) < 1000


@pytest.mark.parametrize("level", ["0", "5", "two", "1.0"])
def test_a_level_that_does_not_exist(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        MAINS["dcgm"](["--level", level, "-"])
    assert ended.value.code == 64
    assert level in capsys.readouterr().err


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_cannot_be_read(reader: str, tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        done = command(reader, str(path))
        assert (done.returncode, done.stdout) == (66, "")
        assert f"{path} cannot be read: {why}" in done.stderr


@pytest.mark.parametrize("reader", READERS)
def test_bytes_that_are_no_text(reader: str) -> None:
    done = command(reader, "-", text=bytes(range(256)) * 100)
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (2, "unknown")


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_of_the_output_that_leaves(reader: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", f"validation.{reader}", str(FIXTURES / FILES[reader])],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
        cwd=CHECKOUT,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_error_of_a_reader_is_no_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def broken(text: str) -> judgement.Judgement:
        raise RuntimeError("oops")

    file = tmp_path / "text"
    file.write_text("x")
    options = reader_command.parser("prog", "").parse_args([str(file)])
    assert reader_command.main(options, broken, prog="prog") == 70
    assert "prog: an error in the reader itself: RuntimeError: oops" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xef\xbb\xbfa\xc3\xa4", "aä"),
        ("aä".encode("utf-16"), "aä"),
        (b"\xfe\xff\x00a", "a"),
        (b"a\xff", "a\ufffd"),
        (b"", ""),
    ],
)
def test_decoding(content: bytes, text: str) -> None:
    assert reader_command.decode(content) == text


def test_what_follows_from_what() -> None:
    failure, open_ = {"message": "broken", "severity": "fatal"}, {"reason": "not looked at"}
    decide = judgement.decide
    assert decide(passed="fine")[0] == "pass"
    assert decide(passed="fine", not_run=[open_]).verdict == "unknown"
    assert decide(passed="fine", not_run=[open_], failures=[failure]).verdict == "fail"
    assert decide(passed="fine", failures=[failure, failure]).reason == "broken (and 1 more)"


def test_numbers_as_people_write_them() -> None:
    assert judgement.numbers([7, 0, 1, 2, 3, 9, 1]) == "0-3, 7, 9"
    assert judgement.gpus([5]) == "GPU 5"
    assert judgement.gpus(range(8)) == "GPUs 0-7"
    assert judgement.counted(1, "GPU") == "1 GPU"
