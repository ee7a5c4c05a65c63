"""Measures what a user waits for, and compares pairs in one run.

Each row is a command that a person can type, timed as a whole process. Builds go to a place of their own;
``cold`` has an empty cache, so it bootstraps. No test asserts these times: machines differ.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from benchmarks import boot_checks, kernel_log
from images import progress
from images.errors import ExitCode, UserError
from images.settings import CHECKOUT

RESULTS = Path(__file__).with_name("RESULTS.md")


@dataclass(frozen=True)
class Row:
    """One measurement: what, the command beside it, the bound the project aims at, seconds, and detail."""

    what: str
    command: str
    aim: str
    seconds: float
    detail: str = ""


@dataclass
class Bench:
    """A place for builds, with a cache of its own."""

    root: Path

    def inv(self, *arguments: str) -> tuple[float, str]:
        """Runs ``inv`` and returns seconds and stdout. Raises ``UserError`` when it fails."""
        environment = {
            **os.environ,
            "INVOKE_GPU_IMAGE_MANIFEST": str(self.root / "manifest"),
            "INVOKE_GPU_IMAGE_BUILD_DIR": str(self.root / "build"),
            "INVOKE_GPU_IMAGE_CACHE": str(self.root / "cache"),
        }
        words = [sys.executable, "-m", "invoke", *arguments]
        started = time.monotonic()
        result = subprocess.run(
            words, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        seconds = time.monotonic() - started
        if result.returncode:
            last = "\n  ".join(result.stdout.strip().splitlines()[-3:])
            raise UserError(
                f"inv {' '.join(arguments)} failed ({result.returncode}): {last}", code=ExitCode.FAILED
            )
        return seconds, result.stdout

    def build(self, what: str, aim: str, *arguments: str) -> Row:
        """A build, with the seconds of its stages."""
        seconds, out = self.inv("build", "--cloud=local", "--json", *arguments)
        outcome = json.loads(out)
        stages = ", ".join(f"{name} {value:.0f}" for name, value in outcome["stages"].items())
        return Row(what, " ".join(["./inv build --cloud=local", *arguments]), aim, seconds, stages)

    def rows(self) -> Sequence[tuple[str, Callable[[], Row]]]:
        """All measurements, in an order in which each finds what it needs."""
        return (
            ("list", lambda: self._quick("list", "1 s", "--list")),
            ("cold", lambda: self.build("build, nothing cached", "15 min")),
            (
                "changed",
                lambda: self.build(
                    "build, base cached, an input changed", "6 min", "--set", "packages=[file]"
                ),
            ),
            ("unchanged", self._unchanged),
            ("resolve", lambda: self._quick("resolve", "0.4 s", "manifest.resolve", "--cloud=local")),
            ("fast tests", self._fast_tests),
            *((f"boot check {name}", partial(self._boot_check, name)) for name in boot_checks.CHECKS),
            ("boot checks side by side", self._boot_checks),
            ("kernel log", self._kernel_log),
        )

    def _quick(self, what: str, aim: str, *arguments: str) -> Row:
        times = sorted(self.inv(*arguments)[0] for _ in range(5))
        return Row(
            what, f"./inv {' '.join(arguments)}", aim, times[2], f"median of 5, max {times[-1]:.2f} s"
        )

    def _unchanged(self) -> Row:
        arguments = ("build", "--cloud=local", "--json", "--set", "packages=[file]")
        times = sorted(self.inv(*arguments)[0] for _ in range(5))
        return Row(
            "build, nothing changed",
            "./inv build --cloud=local",
            "3 s",
            times[2],
            f"median of 5, max {times[-1]:.2f} s",
        )

    @cached_property
    def _machine(self) -> boot_checks.Machine:
        return boot_checks.lay_out(self.root / "machine")

    def _boot_check(self, name: str) -> Row:
        seconds, ratio = boot_checks.against_python(self._machine, name)
        detail = f"{ratio:.2f} x python3 -c pass, median of {boot_checks.RUNS} pairs"
        return Row(f"boot check {name}, own CPU time", name, "3 x python3 -c pass", seconds, detail)

    def _boot_checks(self) -> Row:
        together, alone = boot_checks.side_by_side(self._machine)
        detail = f"the slowest alone {alone:.2f} s; median of 5"
        return Row("boot checks side by side", "gpu-boot-check", "as the slowest alone", together, detail)

    def _kernel_log(self) -> Row:
        found = kernel_log.against_grep(self.root)
        detail = (
            f"{found.speed:.2f} of grep -F NVRM's speed, {found.megabytes:.0f} MB, {found.kib >> 10} MiB"
        )
        what = "python -m validation.kernel_log"
        return Row("kernel log", what, ">= 1/3 of grep's speed", found.ours, detail)

    def _fast_tests(self) -> Row:
        seconds, out = self.inv("test", "--fast")
        return Row(
            "fast tests", "./inv test --fast", "3 min", seconds, out.strip().splitlines()[-1].strip("= ")
        )


def main(*, write: bool, only: str | None) -> None:
    """Runs the measurements whose name contains ``only``; prints a table and, with ``write``, keeps it.

    One that fails does not take the others with it; ``UserError`` names it in the end.
    """
    root = Path(tempfile.mkdtemp(prefix="gpu-image-bench-", dir="/var/tmp"))
    rows: list[Row] = []
    failed: list[str] = []
    try:
        for name, measure in Bench(root).rows():
            if only is None or only in name:
                progress.say(f"measuring: {name}")
                try:
                    rows.append(measure())
                    progress.say(f"  {rows[-1].seconds:.2f} s  {rows[-1].detail}")
                except UserError as error:
                    failed.append(error.message)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    text = table(rows)
    print(text)
    if write:
        RESULTS.write_text(text)
    if failed:
        raise UserError("not measured: " + "; ".join(failed), code=ExitCode.FAILED)


def table(rows: Sequence[Row]) -> str:
    """The results as Markdown, with what they were measured on."""
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    lines = [
        "# Results",
        "",
        f"`./inv bench --write`, {when}: {os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}. One run a row where nothing else is said; seconds of the",
        "whole process. Stages in seconds.",
        "",
        "| what | command | aim | seconds | detail |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row.what} | `{row.command}` | {row.aim} | {row.seconds:.2f} | {row.detail} |" for row in rows
    ]
    return "\n".join(lines) + "\n"
