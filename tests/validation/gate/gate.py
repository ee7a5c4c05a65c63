"""Runs the gate as the pipeline does, and says what came out."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validation.gate.checks import Check

CHECKOUT = Path(__file__).parents[3]
SUITE = CHECKOUT / "validation" / "gate"


@dataclass(frozen=True)
class Run:
    code: int
    output: str
    document: dict[str, Any]

    @property
    def checks(self) -> dict[str, dict[str, Any]]:
        return {check["id"]: check for check in self.document["checks"]}


def command(folder: Path, expected: dict[str, Any], *options: str) -> list[str]:
    file = folder / "expected.json"
    file.write_text(json.dumps(expected))
    words = [sys.executable, "-m", "pytest", str(SUITE), "-c", str(SUITE / "pytest.ini"), "-q"]
    return [
        *words,
        "-p",
        "no:cacheprovider",
        f"--expected={file}",
        f"--results={folder}/gate.json",
        *options,
    ]


def run(folder: Path, expected: dict[str, Any], *options: str) -> Run:
    result = subprocess.run(
        command(folder, expected, *options), cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    path = folder / "gate.json"
    document = json.loads(path.read_bytes()) if path.exists() else {}
    path.unlink(missing_ok=True)
    return Run(result.returncode, result.stdout + result.stderr, document)


def overridden(expected: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of ``expected`` with some values replaced; keys are dotted paths."""
    document = copy.deepcopy(expected)
    for dotted, value in changes.items():
        *parents, last = dotted.split(".")
        place = document
        for parent in parents:
            place = place[parent]
        place[last] = value
    return document


def checks() -> dict[str, tuple[Check, Any]]:
    """Every check of the suite with its function, by id; a parametrised one once for each id."""
    found = {}
    for path in sorted(SUITE.glob("test_*.py")):
        module = importlib.import_module(f"validation.gate.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if not name.startswith("test_") or function.__module__ != module.__name__:
                continue
            for mark in getattr(function, "pytestmark", []):
                for check in _of_mark(mark):
                    found[check.id] = check, function
    return found


def _of_mark(mark: Any) -> list[Check]:
    if mark.name == "gate_check":
        return [mark.args[0]]
    if mark.name == "parametrize":
        return [check for set in mark.args[1] for inner in set.marks for check in _of_mark(inner)]
    return []


def call(id: str, **fixtures: Any) -> None:
    """Calls the function of a check with those of ``fixtures`` that it asks for."""
    function = checks()[id][1]
    function(**{name: fixtures[name] for name in inspect.signature(function).parameters})
