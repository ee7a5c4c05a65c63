"""The locked kernel: runs, is the default, whole, and the only one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validation.gate import readers
from validation.gate.checks import NotRun, check
from validation.gate.machine import Machine


def locked_packages(expected: Mapping[str, Any]) -> dict[str, str]:
    """Name -> version. Raises ``NotRun`` where they are not known: a release document does not have them."""
    found: dict[str, str] | None = expected["kernel"].get("packages")
    if found is None:
        raise NotRun("expected.json does not say the kernel's packages")
    return found


@check("kernel.running", "kernel_release")
def test_running(machine: Machine, expected: Mapping[str, Any]) -> None:
    """``uname -r`` is the lock's."""
    locked = expected["kernel"]["release"]
    running = machine.text("kernel_release").strip()
    assert running == locked, f"{running} runs, not the locked {locked}"


@check("kernel.default_entry", "grub_cfg", "grub_env")
def test_default_entry(machine: Machine, expected: Mapping[str, Any]) -> None:
    """GRUB's default entry starts the locked kernel: what runs now says nothing about the next boot."""
    locked = expected["kernel"]["release"]
    default = readers.grub_default(machine.text("grub_cfg"), machine.text("grub_env"))
    assert default == locked, f"the next boot would start {default}, not the locked {locked}"


@check("kernel.packages", "packages")
def test_packages(machine: Machine, expected: Mapping[str, Any]) -> None:
    """The locked packages are wholly installed in the locked versions."""
    installed = readers.packages(machine.text("packages"))
    wrong = []
    for name, version in locked_packages(expected).items():
        package = installed.get(name)
        if package is None or not package.installed:
            wrong.append(f"{name} is not installed")
        elif package.version != version:
            wrong.append(f"{name} is {package.version}, not {version}")
    assert not wrong, "; ".join(wrong)


@check("kernel.only", "packages", "kernel_files")
def test_only(machine: Machine, expected: Mapping[str, Any]) -> None:
    """No package, module folder or boot file of another kernel is left."""
    kernel = expected["kernel"]
    files = machine.text("kernel_files")
    assert f"/lib/modules/{kernel['release']}\n" in files, "the locked kernel itself has no modules"
    found = readers.foreign_kernels(
        readers.packages(machine.text("packages")),
        files,
        release=kernel["release"],
        own=locked_packages(expected),
    )
    assert not found, f"another kernel is left: {', '.join(found)}"
