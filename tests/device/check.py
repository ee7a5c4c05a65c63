#!/usr/bin/env python3
"""Runs the boot checks and the gate's GPU tier on this machine, with its real GPUs, and prints a table.

    python3 tests/device/check.py [--diag-level 1] [--out FOLDER]

Needs Python 3.11, this checkout and the driver; no pytest, no root, no package. DCGM's checks are not run
where dcgmi is missing. Exit code: 0 all passed, 1 one failed, 2 one cannot tell, 3 nothing to check here.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
SUITES = ("test_gpu", "test_dcgm", "test_nvswitch")
BOOT_CHECKS = ("20-gpus", "30-gpu-memory")
ORDER = ("fail", "unknown", "not_run", "degraded", "pass")


class Row(NamedTuple):
    """One check: result as in the gate, and degraded for a pass with remarks."""

    check: str
    result: str
    reason: str
    seconds: float
    data: dict[str, Any]


class _Mark:
    """What the suite's decorators need of pytest: remembers their arguments on the function."""

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs

    def __call__(self, function: Any) -> Any:
        function.pytestmark = [*getattr(function, "pytestmark", []), self]
        return function


class _Marks:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: _Mark(name, args, kwargs)


def stand_in_for_pytest() -> None:
    """Makes ``import pytest`` and ``import testinfra`` work without them, for the checks' decorators."""
    for name in ("pytest", "testinfra"):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
    pytest = sys.modules.get("pytest")
    if pytest is not None and not hasattr(pytest, "mark"):
        pytest.mark = _Marks()  # type: ignore[attr-defined]
        pytest.MarkDecorator = pytest.Item = object  # type: ignore[attr-defined]
        pytest.param = lambda *values, marks=(), id=None: types.SimpleNamespace(  # type: ignore[attr-defined]
            values=values, marks=marks if isinstance(marks, (list, tuple)) else [marks]
        )


def suite() -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Every GPU check: its description, its function, and the values of its parameters."""
    for name in SUITES:
        module = importlib.import_module(f"validation.gate.{name}")
        for _, function in inspect.getmembers(module, inspect.isfunction):
            for mark in getattr(function, "pytestmark", []):
                if mark.name == "gate_check":
                    yield mark.args[0], function, {}
                if mark.name == "parametrize":
                    for case in mark.args[1]:
                        for inner in case.marks:
                            inner = getattr(inner, "mark", inner)
                            yield inner.args[0], function, {mark.args[0]: case.values[0]}


class Here:
    """This machine, for checks that read what probes printed; ``tools`` is a folder with the bundle."""

    def __init__(self, tools: Path, level: int) -> None:
        self.tools, self.level = tools, level
        self.outputs: dict[str, Any] = {}

    def output(self, name: str) -> Any:
        from validation.gate import probes

        if name not in self.outputs:
            script = probes.script(
                [name],
                deadline=probes.deadline([name], self.level),
                variables={"tools": str(self.tools), "diag_level": str(self.level)},
            )
            done = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=False)
            self.outputs |= probes.read(done.stdout)
        return self.outputs[name]

    def text(self, name: str) -> str:
        from validation.gate.checks import Unknown

        output = self.output(name)
        if output.code != 0:
            last = output.text.strip().splitlines()[-1:] or ["nothing"]
            raise Unknown(f"{name} ended with code {output.code}: {last[0][:200]}")
        return str(output.text)


class Expected(dict[str, Any]):
    """Nothing is promised here but the level of the diagnostic."""

    @property
    def gpu(self) -> dict[str, Any]:
        found: dict[str, Any] = self["gpu"]
        return found


def gpu_tier(here: Here) -> list[Row]:
    """Runs every GPU check, in the order that the gate asks: DCGM's late, the kernel's log last."""
    from validation.gate import checks, gpu_facts

    order = (
        "gpu_facts",
        "gpu_memory",
        "units",
        "dcgm_field_1001",
        "dcgm_diag",
        "dcgm_health",
        "gpu_kernel_log",
    )
    found = sorted(suite(), key=lambda item: max(order.index(probe) for probe in item[0].probes))
    rows = []
    gpus: Any = None
    for check, function, parameters in found:
        remarks = checks.new_remarks()
        began = time.monotonic()
        try:
            if gpus is None:
                gpus = gpu_facts.read(here.text("gpu_facts"), count=None)
            values = {"machine": here, "gpus": gpus, "expected": Expected(gpu={"diag_level": here.level})}
            wanted = inspect.signature(function).parameters
            function(**{name: value for name, value in {**values, **parameters}.items() if name in wanted})
            result, reason = ("degraded", "; ".join(remarks.degraded)) if remarks.degraded else ("pass", "")
            reason = reason or str(remarks.data.get("summary") or "")
        except AssertionError as error:
            result, reason = "fail", str(error)
        except checks.NotRun as error:
            result, reason = "not_run", str(error)
        except Exception as error:
            result, reason = "unknown", str(error)
        rows.append(Row(check.id, result, reason, round(time.monotonic() - began, 3), remarks.data))
    return rows


def boot_checks(tools: Path) -> list[Row]:
    """Runs the boot checks as the runner does, one after another, for their times."""
    rows = []
    for name in BOOT_CHECKS:
        began = time.monotonic()
        words = ["python3", "-IBS", str(tools / "boot-checks.d" / name)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
        seconds = round(time.monotonic() - began, 3)
        try:
            said = json.loads(done.stdout)
        except ValueError:
            said = {"status": "unknown", "reason": f"printed no result: {done.stderr[-300:]}", "data": {}}
        degraded = said["data"].get("degraded")
        result, reason = ("degraded", "; ".join(degraded)) if degraded else (said["status"], said["reason"])
        rows.append(Row(f"boot check {name}", result, reason, seconds, said["data"]))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--diag-level", type=int, default=1, choices=range(5), help="DCGM's, 0: none")
    parser.add_argument("--out", type=Path, help="folder for the results and what the probes printed")
    options = parser.parse_args()
    sys.path.insert(0, str(CHECKOUT))
    stand_in_for_pytest()
    from images import bundle
    from validation.gate.gpu_readers import RAW

    with tempfile.TemporaryDirectory(prefix="gpu-image-device-") as folder:
        bundle.write(bundle.collect(), Path(folder))
        here = Here(Path(folder) / "usr/lib/gpu-image", options.diag_level)
        rows = [*boot_checks(here.tools), *gpu_tier(here)]
    rows.sort(key=lambda row: ORDER.index(row.result))
    for row in rows:
        print(f"{row.result:8}  {row.check:28}  {row.seconds:8.3f} s  {row.reason[:400]}")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        document = [row._asdict() for row in rows]
        (options.out / "check.json").write_text(json.dumps(document, indent=2, default=str) + "\n")
        for probe, name in RAW.items():
            if output := here.outputs.get(probe):
                (options.out / name).write_text(output.text, errors="replace")
    results = {row.result for row in rows}
    return (
        1 if "fail" in results else 2 if "unknown" in results else 0 if results & {"pass", "degraded"} else 3
    )


if __name__ == "__main__":
    sys.exit(main())
