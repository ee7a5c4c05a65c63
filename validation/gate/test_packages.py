"""Packages: whole, held, and nothing that changes them by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validation.gate import readers
from validation.gate.checks import Unknown, check
from validation.gate.machine import Machine


@check("packages.complete", "packages")
def test_complete(machine: Machine) -> None:
    """Every package is wholly installed: a failed maintainer script leaves one half-configured."""
    listed = readers.packages(machine.text("packages"))
    bad = [name for name, package in listed.items() if package.status not in ("ii", "hi", "rc")]
    assert not bad, f"not wholly installed: {', '.join(sorted(bad))}"


@check("packages.held", "packages")
def test_held(machine: Machine, expected: Mapping[str, Any]) -> None:
    """The locked packages are on hold."""
    packages = readers.packages(machine.text("packages"))
    missing = set(expected["held_packages"]) - {name for name, it in packages.items() if it.held}
    assert not missing, f"not on hold: {', '.join(sorted(missing))}"


@check("packages.holds_effective", "package_upgrade", "packages")
def test_holds_effective(machine: Machine, expected: Mapping[str, Any]) -> None:
    """An upgrade that is offered a newer version of everything touches none of the held packages.

    The effect, not the setting: a pin that corrupts its file holds nothing (azhpc-images #546).
    """
    planned = readers.simulated(machine.text("package_upgrade"))
    held = set(expected["held_packages"])
    if absent := held - readers.packages(machine.text("packages")).keys():
        raise Unknown(f"not installed, so nothing to hold: {', '.join(sorted(absent))}")
    if not planned["Inst"] - held:
        raise Unknown("the simulated upgrade would upgrade nothing at all, so it proves nothing")
    touched = held & (planned["Inst"] | planned["Remv"])
    assert not touched, f"an upgrade would change {', '.join(sorted(touched))}"


@check("packages.no_unattended_upgrades", "apt_config", "units")
def test_no_unattended_upgrades(machine: Machine) -> None:
    """apt does nothing periodically, and the service that would is not active."""
    config = readers.apt_config(machine.text("apt_config"))
    names = ("Enable", "Update-Package-Lists", "Unattended-Upgrade", "Download-Upgradeable-Packages")
    on = [f"APT::Periodic::{name}" for name in names if config.get(f"APT::Periodic::{name}", "0") != "0"]
    if config.get("APT::Periodic::Enable", "1") != "0":
        on.append("APT::Periodic::Enable is not 0")
    unit = readers.units(machine.text("units")).get("unattended-upgrades.service")
    if unit and unit.active == "active":
        on.append("unattended-upgrades.service is active")
    assert not on, "; ".join(on)
