"""The operating system, its disk, and what can be seen of it without SSH."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validation.gate import readers
from validation.gate.checks import check
from validation.gate.machine import Machine


@check("system.os", "os_release")
def test_os(machine: Machine, expected: Mapping[str, Any]) -> None:
    """The distribution and version of the spec."""
    release = readers.os_release(machine.text("os_release"))
    wanted = expected["os"]
    found = (release.get("ID"), release.get("VERSION_ID"))
    assert found == (wanted["id"], wanted["version"]), f"it is {found[0]} {found[1]}"


@check("system.no_swap", "swaps", "fstab")
def test_no_swap(machine: Machine) -> None:
    """No swap now and none after the next boot."""
    found = readers.swap_areas(machine.text("swaps"), machine.text("fstab"))
    assert not found, f"swap: {', '.join(found)}"


@check("system.free_space", "root_space")
def test_free_space(machine: Machine, expected: Mapping[str, Any]) -> None:
    """The root file system has the free space that the spec asks for."""
    wanted = expected["min_free_bytes"]
    free = readers.space(machine.text("root_space")).free
    assert free >= wanted, f"{free >> 20} MiB are free, {wanted >> 20} MiB are wanted"


@check("system.root_grew", "root_device", "root_space")
def test_root_grew(machine: Machine, expected: Mapping[str, Any]) -> None:
    """The root file system fills the disk of this machine, however much bigger than the image it is."""
    space = readers.space(machine.text("root_space"))
    wrong = readers.ungrown(machine.text("root_device"), space.size, expected["disk_bytes"])
    assert wrong is None, wrong or ""


@check("system.serial_console", "consoles", "units")
def test_serial_console(machine: Machine) -> None:
    """The kernel and a login speak on a serial port: a machine that fails can be read without SSH."""
    ports = readers.serial_consoles(machine.text("consoles"))
    assert ports, "the kernel's console is on no serial port"
    units = readers.units(machine.text("units"))
    logins = [
        port for port in ports if (u := units.get(f"serial-getty@{port}.service")) and u.active == "active"
    ]
    assert logins, f"no login on {', '.join(ports)}"


@check("system.boot_menu", "grub_cfg")
def test_boot_menu(machine: Machine) -> None:
    """GRUB waits for nobody, after a failed boot neither."""
    timeouts = readers.grub_timeouts(machine.text("grub_cfg"))
    assert timeouts, "grub.cfg sets no timeout, so GRUB waits for ever"
    assert not any(timeouts), f"GRUB can wait {', '.join(f'{t} s' for t in sorted(set(timeouts)) if t)}"
