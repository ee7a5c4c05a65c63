"""A stand-in for the gate's checks: what a chroot can pass, and one that a spec can make fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validation.gate.capture_checks import (  # noqa: F401
    boots,
    test_host_keys,
    test_machine_ids,
    test_reboot,
)

from validation.gate.checks import check
from validation.gate.machine import Machine


@check("quick.mark", "os_release")
def test_mark(machine: Machine) -> None:
    """The role's mark is there."""
    assert "GPU_IMAGE_QUICK=1" in machine.text("os_release"), "the role left no mark"


@check("quick.space", "root_space")
def test_space(machine: Machine, expected: Mapping[str, Any]) -> None:
    """Fails for ``--set min_free_mib=…`` beyond any disk."""
    size, _, free = map(int, machine.text("root_space").split())
    assert free * size >= expected["min_free_bytes"], f"{free * size} bytes are free"
