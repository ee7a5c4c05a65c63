"""From a function to a process: what ``check.main`` prints and exits with."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from images import bundle

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("body", "code", "status", "reason"),
    [
        ("return check.passed('fine', n=1)", 0, "pass", "fine"),
        ("return check.failed('broken', n=1)", 1, "fail", "broken"),
        ("return check.unknown('hm', n=1)", 2, "unknown", "hm"),
        ("return check.not_run('no GPU', n=1)", 3, "not_run", "no GPU"),
        ("raise KeyError('x')", 2, "unknown", "KeyError: 'x'"),
    ],
)
def test_statuses_and_exit_codes(tmp_path: Path, body: str, code: int, status: str, reason: str) -> None:
    script = tmp_path / "42-my-check"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(CHECKOUT)!r})\nfrom validation.boot_checks import check\n"
        f"def my():\n    {body}\ncheck.main(my)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    assert done.returncode == code
    assert (document["check"], document["status"], document["reason"]) == ("my-check", status, reason)
    assert document["data"] == ({} if body.startswith("raise") else {"n": 1})
    assert ("Traceback" in done.stderr) == body.startswith("raise")


def test_what_runs_on_the_machine_is_python_3_10_and_its_standard_library() -> None:
    for file in bundle.collect():
        if not file.path.endswith(".py") and not file.content.startswith(b"#!/usr/bin/python3"):
            continue
        tree = ast.parse(file.content, file.path, feature_version=(3, 10))
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                assert top == "validation" or top in sys.stdlib_module_names, f"{file.path}: {name}"
