"""The command line: help wherever it is typed, and exit code 2 for what is typed wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

from images.__main__ import help_first
from images.settings import CHECKOUT


def inv(*words: str, module: str = "images") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *words], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nope"], "No idea what '--nope' is"),
        (["nope"], "No idea what 'nope' is"),
        (["build"], "--cloud is missing"),
        (["build", "--clod=local"], "No idea what '--clod' is"),
        (["build", "--cloud"], "needed value"),
        (["ssh"], "'build'"),
        (["test", "--only", "one or"], "Wrong expression"),
        (["test", "--fast", "--full"], "exclude each other"),
        (["--help", "nope"], "No idea what 'nope' is"),
    ],
)
def test_what_is_typed_wrong_is_exit_code_2(words: list[str], said: str) -> None:
    result = inv(*words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and said in result.stderr and "hint:" in result.stderr


@pytest.mark.parametrize(
    "words", [["build", "--help"], ["--help", "build"], ["--dry", "build", "--cloud=local", "-h"]]
)
def test_help_of_a_task(words: list[str]) -> None:
    result = inv(*words)
    assert result.returncode == 0, result.stderr
    assert "--on-error" in result.stdout and "gate it" in result.stdout


@pytest.mark.parametrize("task", ["build", "ssh", "manifest.resolve", "test"])
def test_every_kind_of_task_explains_itself(task: str) -> None:
    assert help_first(["inv", task, "--help"]) == ["inv", "--help", task]


def test_plain_invoke_is_the_same_thing() -> None:
    result = inv("build", "--help", module="invoke")
    assert (result.returncode, "--on-error" in result.stdout) == (0, True)
    assert "--cloud is missing" in inv("build", module="invoke").stderr
