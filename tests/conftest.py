"""Fixtures of all tests: the command line as a user types it, and the local build that VM tests share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from images import clouds, spec, sshkey
from images.clouds import Machine
from images.clouds.model import Context, Image, LaunchRequest
from images.settings import CHECKOUT, Settings
from tests.cloud_sim import report


@dataclass(frozen=True)
class Site:
    """A place of its own for builds and manifest; the cache of base disks is the user's."""

    root: Path
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def manifest(self) -> Path:
        return self.root / "manifest"

    @property
    def builds(self) -> Path:
        return self.root / "build"

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "INVOKE_GPU_IMAGE_MANIFEST": str(self.manifest),
            "INVOKE_GPU_IMAGE_BUILD_DIR": str(self.builds),
            **self.extra,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts ``inv`` with these arguments; the caller ends it."""
        return subprocess.Popen(
            [sys.executable, "-m", "invoke", *arguments],
            cwd=CHECKOUT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def inv(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs ``inv`` to its end."""
        process = self.start(*arguments)
        out, err = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def states(self) -> list[dict[str, Any]]:
        """The state of every build, oldest first."""
        found = [json.loads(path.read_bytes()) for path in self.builds.glob("*/state.json")]
        return sorted(found, key=lambda state: float(state["started"]))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@dataclass(frozen=True)
class Built:
    """The shared build: where it is, what ``inv build --json`` printed, and what it said meanwhile."""

    site: Site
    outcome: dict[str, Any]
    log: str | None  # None with --built: nobody saw that build

    @property
    def image(self) -> Path:
        return Path(self.outcome["image_id"])

    @property
    def folder(self) -> Path:
        return self.site.builds / str(self.outcome["build_id"])


def pytest_addoption(parser: pytest.Parser) -> None:
    """For who works on the VM tests: a build takes minutes."""
    parser.addoption("--built", type=Path, help="use the finished build in FOLDER/build, not a new one")


def pytest_configure() -> None:
    """A shell's background job ignores SIGINT, and so would all that the tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Built:
    """A real local build, made once for all tests."""
    if pytestconfig.option.built:
        site = Site(pytestconfig.option.built.absolute())
        found = json.loads(site.inv("manifest.resolve", "--cloud=local", "--format=json").stdout)
        outcome = {**found, "image_id": found["id"], "release": found["release_digest"]}
        return Built(site, outcome, None)
    site = Site(tmp_path_factory.mktemp("site"))
    result = site.inv("build", "--cloud=local", "--json")
    assert result.returncode == 0, result.stderr
    return Built(site, json.loads(result.stdout), result.stderr)


@dataclass(frozen=True)
class SharedVm:
    """A machine booted from the shared build's image; tests change it and undo what they changed."""

    machine: Machine
    expected: dict[str, Any]

    @property
    def ssh_config(self) -> Path:
        return self.machine.ssh_config

    def run(self, command: str, *, timeout: float = 120) -> tuple[int, str, str]:
        """Runs a shell command as root; returns exit code, stdout, stderr."""
        result = subprocess.run(
            ["ssh", "-F", str(self.ssh_config), "vm", "sudo", "sh", "-s"],
            input=command,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return result.returncode, result.stdout, result.stderr


@pytest.fixture(scope="session")
def shared_vm(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedVm]:
    """One machine on a throw-away overlay of the shared build's image."""
    from images import capture_gate

    folder = tmp_path_factory.mktemp("vm")
    cloud = clouds.load("local")
    key = sshkey.generate(folder, "test")
    request = LaunchRequest(
        name="shared-bios",
        context=Context(
            build_id=str(built.outcome["build_id"]),
            loaded=spec.load("gpu-debian"),
            arch="amd64",
            settings=Settings(),
            expires=0,
        ),
        user="gate",
        private_key=key.private,
        public_key=key.public,
        evidence=folder,
        accelerator=cloud.choose_accelerator(None)[0],
    )
    image = Image(id=str(built.image), region="local", name=built.image.stem)
    with cloud.launch(image, request) as machine:
        capture_gate.settle(machine)
        document = json.loads((built.folder / "expected.json").read_bytes())
        yield SharedVm(machine, {**document, "disk_bytes": machine.disk_bytes})


FAULTS = report.Table()
ROW = "fault"  # a property of a test's report, which is how it comes from a worker


class FaultTable:
    """Collects what a fault test saw; the table is printed at the end."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node

    def add(self, fault: str, code: int, outcome: str) -> None:
        """One row; see ``report.Table``."""
        self._node.user_properties.append((ROW, [fault, code, outcome]))


@pytest.fixture
def fault_table(request: pytest.FixtureRequest) -> FaultTable:
    return FaultTable(request.node)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Takes the rows of a test that has ended."""
    if report.when == "call":
        for name, row in report.user_properties:
            if name == ROW:
                fault, code, outcome = row  # type: ignore[misc]
                FAULTS.add(fault, code, outcome)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the fault table, above pytest's own closing line."""
    if FAULTS.rows:
        terminalreporter.section("faults: builder's exit code, and what came of it")
        for line in FAULTS.lines():
            terminalreporter.write_line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick ones first, so that a mistake shows early; those that boot machines last."""

    def place(item: pytest.Item) -> int:
        marks = {mark.name for mark in item.iter_markers()}
        return 2 if marks & {"vm", "full"} else 1 if "box" in marks else 0

    items.sort(key=place)


#: Files whose tests share nothing, and take long.
APART = ("tests/cloud_sim/test_faults.py",)


class ByFile(LoadScopeScheduling):
    """A file's tests stay with one worker, since they share what it sets up; those of ``APART`` do not.

    What ``--dist=loadgroup`` is for; xdist 3.8 finds no group with pytest 9.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return nodeid if file in APART else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Where tests run side by side (``inv test``)."""
    return ByFile(config, log)
