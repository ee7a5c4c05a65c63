"""The linters, as tests, so that one summary says all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from images.settings import CHECKOUT

TOOLS = Path(sys.executable).parent
FOLDERS = ("benchmarks", "docs", "images", "roles", "tests", "validation")
SCRIPTS = sorted(
    path.relative_to(CHECKOUT).as_posix()
    for path in (
        CHECKOUT / "inv",
        CHECKOUT / ".ci/run",
        *(path for folder in FOLDERS for path in (CHECKOUT / folder).rglob("*.sh")),
    )
)
WORKFLOWS = sorted(
    path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / ".github/workflows").glob("*.yml")
)
MACHINE_SCRIPTS = [
    "validation/boot_checks/bin/gpu-boot-check",
    "validation/boot_checks/boot-checks.d/10-services",
    "validation/boot_checks/boot-checks.d/20-gpus",
    "validation/boot_checks/boot-checks.d/30-gpu-memory",
]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check", "."], id="ruff"),
        pytest.param(["ruff", "format", "--check", "."], id="ruff-format"),
        pytest.param(["mypy"], id="mypy"),
        pytest.param(["mypy", "--scripts-are-modules", *MACHINE_SCRIPTS], id="mypy-scripts"),
        pytest.param(["ansible-lint", "--offline", "-q", "--nocolor", "roles"], id="ansible-lint"),
        pytest.param(["yamllint", "--strict", "."], id="yamllint"),
        pytest.param(["shellcheck", *SCRIPTS], id="shellcheck"),
        pytest.param(
            ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS], id="workflows"
        ),
        pytest.param(["zizmor", "--offline", "--no-progress", *WORKFLOWS], id="zizmor"),
        # Those that hold credentials of a cloud.
        pytest.param(
            [
                "zizmor",
                "--offline",
                "--no-progress",
                "--persona=pedantic",
                ".github/workflows/nightly.yml",
                ".github/workflows/sweep.yml",
            ],
            id="zizmor-pedantic",
        ),
    ],
)
def test_linter(command: list[str]) -> None:
    program = TOOLS / command[0]
    words = [str(program) if program.exists() else command[0], *command[1:]]
    result = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.fail(f"{' '.join(command)}:\n{result.stdout}{result.stderr}", pytrace=False)
