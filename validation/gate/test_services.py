"""systemd's units and cloud-init."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validation.gate import readers
from validation.gate.checks import Unknown, check
from validation.gate.machine import Machine


@check("services.no_failed_units", "units", "system_state")
def test_no_failed_units(machine: Machine) -> None:
    """No unit has failed, and systemd says that the system runs."""
    units = readers.units(machine.text("units"))
    failed = [name for name, unit in units.items() if unit.active == "failed"]
    assert not failed, f"failed: {', '.join(sorted(failed))}"
    state = machine.text("system_state").strip()
    if state in ("initializing", "starting"):
        raise Unknown(f"the system is still {state}")
    assert state == "running", f"systemd says the system is {state}"


@check("services.masked", "masked_units", "units")
def test_masked(machine: Machine, expected: Mapping[str, Any]) -> None:
    """Units that would change packages are masked (disabled ones can be started again), and not active."""
    masked = set(machine.text("masked_units").split())
    units = readers.units(machine.text("units"))
    wrong = []
    for name in expected["masked_units"]:
        if name not in masked:
            wrong.append(f"{name} can be started")
        if name in units and units[name].active == "active":
            wrong.append(f"{name} is active")
    assert not wrong, "; ".join(wrong)


@check("services.active", "units")
def test_active(machine: Machine, expected: Mapping[str, Any]) -> None:
    """The services that the image promises are active."""
    units = readers.units(machine.text("units"))
    states = {name: units[name].active if name in units else "not loaded" for name in expected["services"]}
    wrong = [f"{name} is {state}" for name, state in states.items() if state != "active"]
    assert not wrong, "; ".join(wrong)


@check("services.time_sync", "units", anywhere=True)
def test_time_sync(machine: Machine) -> None:
    """A service keeps the clock. Whether it reached a server depends on the network and is not judged."""
    units = readers.units(machine.text("units"))
    active = [name for name in readers.TIME_SERVICES if name in units and units[name].active == "active"]
    assert active, f"none of {', '.join(readers.TIME_SERVICES)} is active"


@check("services.cloud_init", "cloud_init")
def test_cloud_init(machine: Machine) -> None:
    """cloud-init went through all its stages without an error."""
    finished, wrong = readers.cloud_init(machine.text("cloud_init"))
    assert not wrong, "; ".join(wrong)[:400]
    if not finished:
        raise Unknown("cloud-init has not finished")
