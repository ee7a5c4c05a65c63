"""Options and fixtures of the gate.

    python -m pytest validation/gate -c validation/gate/pytest.ini --phase=first_boot --expected=FILE
        --hosts=ssh://vm --ssh-config=FILE --sudo --results=OUT.json

Exit code: 0 all checks passed, 1 one failed, 2 one is unknown or the gate was interrupted, 3 nothing to
decide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from validation.boot_checks.image import BUNDLE
from validation.gate import gpu_facts, gpu_readers, results
from validation.gate import machine as machines
from validation.gate.checks import Level, NotRun, Phase, Tier, check_of
from validation.gate.gpu_facts import Gpus
from validation.gate.machine import Machine

SCHEMA = "gpu-image/expected/v1"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The gate's options; ``--hosts``, ``--ssh-config`` and ``--sudo`` are testinfra's."""
    group = parser.getgroup("gate")
    group.addoption("--phase", choices=[phase.value for phase in Phase], default=Phase.HOST.value)
    group.addoption("--expected", type=Path, help="expected.json: everything about the image under test")
    group.addoption("--results", type=Path, help="where the results go, as JSON")
    group.addoption("--on-image", default="unknown", help="which image is tested, in words")
    group.addoption("--on-machine", default="unknown", help="which machine it runs on, in words")
    group.addoption("--disk-root", type=Path, help="folder with the files of the captured disk")
    group.addoption(
        "--tier",
        choices=[tier.value for tier in Tier],
        default=Tier.NVSWITCH.value,
        help="no check that needs more than a machine of this tier",
    )
    group.addoption("--tools", default=BUNDLE, help="folder on the machine with validation/")
    group.addoption("--outputs", type=Path, help="folder for what the GPU probes printed, as evidence")
    group.addoption(
        "--check", action="append", default=[], help="run only the check with this id; repeatable"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker and the plugin that writes the results."""
    config.addinivalue_line("markers", "gate_check(check): what makes a test a check; use @check")
    if not config.option.expected:
        raise pytest.UsageError("--expected=FILE is missing")
    if config.option.phase != Phase.CAPTURE and not config.option.hosts:
        # Without it testinfra would quietly test the machine that runs the gate.
        raise pytest.UsageError(f"the phase {config.option.phase} needs --hosts=ssh://HOST")
    results.install(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Static checks belong to the phase ``capture``, all others need a machine."""
    static = config.option.phase == Phase.CAPTURE
    wanted = set(config.option.check)
    tiers = list(Tier)[: list(Tier).index(Tier(config.option.tier)) + 1]
    kept = []
    for item in items:
        found = check_of(item)
        if found and (found.level is not Level.STATIC) == static:
            continue
        if found and found.tier not in tiers:
            continue
        if wanted and (found is None or found.id not in wanted):
            continue
        kept.append(item)
    chosen = {found.id for item in kept if (found := check_of(item))}
    if unknown := sorted(wanted - chosen):
        raise pytest.UsageError(f"no check {', '.join(unknown)} in phase {config.option.phase}")
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture(scope="session")
def phase(pytestconfig: pytest.Config) -> Phase:
    """When the gate runs."""
    return Phase(pytestconfig.option.phase)


@pytest.fixture(scope="session")
def expected(pytestconfig: pytest.Config) -> Expected:
    """``expected.json``: what it does not say makes the checks that ask for it not_run."""
    document = json.loads(pytestconfig.option.expected.read_bytes())
    if document.get("schema") != SCHEMA:
        raise ValueError(f"{pytestconfig.option.expected}: the schema is not {SCHEMA}")
    return Expected(document)


@pytest.fixture(autouse=True)
def applies(request: pytest.FixtureRequest, expected: Expected, phase: Phase) -> None:
    """Checks about our image are not run on a machine with another."""
    found = check_of(request.node)
    if found and not found.applies(expected, phase):
        raise NotRun("the machine was not booted from an image of ours")


class Expected(Mapping[str, Any]):
    """A mapping whose missing or null keys raise ``NotRun``: nothing is said, so nothing can be compared."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    @property
    def foreign(self) -> bool:
        """The machine is known not to have an image of ours."""
        return self._document.get("ours") is False

    @property
    def gpu(self) -> dict[str, Any]:
        """What is expected of the GPUs; empty where nothing is said."""
        return self._document.get("gpu") or {}

    def __getitem__(self, key: str) -> Any:
        if self._document.get(key) is None:
            raise NotRun(f"expected.json does not say {key}")
        return self._document[key]

    def __iter__(self) -> Any:
        return iter(self._document)

    def __len__(self) -> int:
        return len(self._document)


@pytest.fixture(scope="session")
def machine(request: pytest.FixtureRequest, expected: Expected, phase: Phase) -> Machine:
    """The machine under test; asks only what the chosen checks read."""
    names: set[str] = set()
    for item in request.session.items:
        if (found := check_of(item)) and found.applies(expected, phase):
            names.update(found.probes)
    options = request.config.option
    variables = {"tools": options.tools, "diag_level": str(expected.gpu.get("diag_level") or 0)}
    machine = Machine(machines.connect(options), names, variables=variables)
    machine.collect()
    if options.outputs:
        machine.save(options.outputs, gpu_readers.RAW)
    return machine


@pytest.fixture(scope="session")
def gpus(machine: Machine, expected: Expected, pytestconfig: pytest.Config) -> Gpus:
    """The GPUs of the machine, as the probe ``gpu_facts`` saw them.

    Raises ``NotRun`` where there are none and none are expected: then no check of the GPU tiers applies.
    """
    found = gpu_facts.read(machine.text("gpu_facts"), count=expected.gpu.get("count"))
    about = pytestconfig.stash[results.ABOUT]
    about.gpus, about.machine_type = found.families, found.machine_type
    return found
