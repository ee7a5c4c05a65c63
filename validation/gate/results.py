"""The pytest plugin that turns tests into results: one JSON document, whatever happens to the run.

The document is written when the checks are known, all of them ``unknown``, and again after each: a gate that
is killed leaves behind which checks it did not finish, and never a document that looks like a pass.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import signal
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from validation.gate.checks import (
    Check,
    Level,
    NotRun,
    Phase,
    Remarks,
    Result,
    Tier,
    Unknown,
    check_of,
    new_remarks,
    verdict,
)

SCHEMA = "gpu-image/gate/v1"
#: Exit codes of pytest that say something about the tests; the others are about the run.
OF_TESTS = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)

ABOUT = pytest.StashKey["About"]()
NOT_REACHED = "not finished: the gate was interrupted"


@dataclass
class Entry:
    """The result of one check as it stands in the document; ``seconds`` include its commands."""

    id: str
    tier: str
    level: str
    result: Result
    reason: str | None
    seconds: float
    script_sha256: str
    degraded: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Without what most checks have nothing to say about."""
        found = asdict(self)
        return {key: value for key, value in found.items() if key not in ("degraded", "data") or value}


@dataclass
class About:
    """What was tested: the phase, which image and which machine, in words.

    ``gpus`` is how many GPUs of which family are there, ``machine_type`` the cloud's or the GPU's name; both
    are empty where no check has looked.
    """

    phase: Phase
    image: str
    machine: str
    gpus: dict[str, int] = field(default_factory=dict)
    machine_type: str = ""


class ResultsPlugin:
    """Collects results and writes ``path`` (None: nowhere), in the order of a report: failures first."""

    def __init__(self, path: Path | None, about: About) -> None:
        self.path = path
        self.about = about
        self.entries: dict[str, Entry] = {}
        self.started = now()
        self.finished: str | None = None
        self.remarks = Remarks()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Every check that will run is there from the start, as not reached."""
        for item in session.items:
            found = check_of(item)
            if found is None:
                raise pytest.UsageError(f"{item.nodeid} is not a check: it has no @check")
            if found.id in self.entries:
                raise pytest.UsageError(f"two checks have the id {found.id}")
            self.entries[found.id] = new_entry(found, item.path)
        self.write()

    def pytest_runtest_setup(self) -> None:
        """Each check makes its own remarks."""
        self.remarks = new_remarks()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Records the result of each phase of a check; a check that was not run is no pytest failure."""
        report = yield
        found = check_of(item)
        if found is None:  # pragma: no cover - collection has refused it
            return report
        entry = self.entries[found.id]
        result, reason = judge(call.excinfo.value if call.excinfo else None)
        if call.excinfo:
            # An error in the set-up or after the test counts as much as one in it.
            entry.result, entry.reason = result, reason
        elif call.when == "call":
            entry.result, entry.reason = Result.PASS, None
        entry.degraded, entry.data = self.remarks.degraded, self.remarks.data
        if found.tier is not Tier.ANY_VM and entry.result is not Result.NOT_RUN:
            # Known only once somebody has looked, and the fixture is what looks.
            entry.level = getattr(getattr(item, "funcargs", {}).get("gpus"), "level", found.level).value
        if call.when == "call":
            # The set-up is shared (it asks the machine for all checks), so only its own part counts.
            machine = getattr(item, "funcargs", {}).get("machine")
            entry.seconds = round(call.duration + (machine.seconds(found.probes) if machine else 0), 3)
        if result is Result.NOT_RUN:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"not run: {reason}")
        if call.when == "teardown":
            self.write()
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Writes the document, and makes our verdict pytest's exit code unless the run itself went wrong."""
        self.finished = now()
        if self.entries:
            self.write()
        if exitstatus in OF_TESTS:
            session.exitstatus = verdict([entry.result for entry in self.entries.values()])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """One line a check, failures first."""
        for entry in self.ordered():
            terminalreporter.write_line(
                f"{entry.result.value:8} {entry.id:32} {entry.reason or ''}".rstrip()
            )

    def ordered(self) -> list[Entry]:
        """The entries by result (see ``Result``), in the suite's order within one."""
        words = list(Result)
        return sorted(self.entries.values(), key=lambda entry: words.index(entry.result))

    def write(self) -> None:
        """Writes the document whole or not at all."""
        if not self.path:
            return
        document = {
            "schema": SCHEMA,
            "phase": self.about.phase.value,
            "image": self.about.image,
            "machine": self.about.machine,
            "started": self.started,
            "finished": self.finished,
            "level": strongest(self.entries.values()),
            **(
                {"gpus": self.about.gpus, "machine_type": self.about.machine_type} if self.about.gpus else {}
            ),
            "checks": [entry.as_json() for entry in self.ordered()],
        }
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(document, indent=2) + "\n")
        temporary.replace(self.path)


def new_entry(check: Check, script: Path) -> Entry:
    """The entry of a check that has not run yet."""
    return Entry(
        id=check.id,
        tier=check.tier.value,
        level=check.level.value,
        result=Result.UNKNOWN,
        reason=NOT_REACHED,
        seconds=0.0,
        script_sha256=hashlib.sha256(script.read_bytes()).hexdigest(),
    )


def judge(error: BaseException | None) -> tuple[Result, str | None]:
    """The result that an exception in a check means. Only a failed assertion says that something is wrong;
    anything else (a connection that broke, output nobody can read, our own mistake) cannot tell."""
    if error is None:
        return Result.PASS, None
    if isinstance(error, NotRun):
        return Result.NOT_RUN, str(error)
    if isinstance(error, AssertionError):
        return Result.FAIL, first_line(error)
    if isinstance(error, Unknown):
        return Result.UNKNOWN, str(error)
    return Result.UNKNOWN, f"{type(error).__name__}: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """What an exception says, on one line and not endless."""
    lines = str(error).strip().splitlines()
    return lines[0][:500] if lines else type(error).__name__


def strongest(entries: Any) -> str:
    """The level of the document: the strongest that a check of it passed on, else static."""
    words = list(Level)
    levels = [Level(entry.level) for entry in entries if entry.result is Result.PASS]
    return max(levels, key=words.index, default=Level.STATIC).value


def end_like_interrupt(signum: int, frame: object) -> None:
    """SIGTERM ends the gate as Ctrl-C does, so that the document is finished."""
    raise KeyboardInterrupt


def install(config: pytest.Config) -> None:
    """Registers the plugin with the options of ``conftest``."""
    options = config.option
    path = Path(options.results) if options.results else None
    about = About(Phase(options.phase), options.on_image, options.on_machine)
    config.stash[ABOUT] = about
    config.pluginmanager.register(ResultsPlugin(path, about), "gate-results")
    signal.signal(signal.SIGTERM, end_like_interrupt)


def now() -> str:
    """The time, UTC, ISO 8601 with milliseconds."""
    return datetime.datetime.fromtimestamp(time.time(), datetime.UTC).isoformat(timespec="milliseconds")
