"""Without a machine: what the boots of the capture left behind, and the captured disk from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from validation.gate import hygiene
from validation.gate.checks import Level, NotRun, Unknown, check

Boot = Mapping[str, Any]


@pytest.fixture
def boots(expected: Mapping[str, Any]) -> Sequence[Boot]:
    """The boots, in order."""
    return enough(expected["boots"])


def enough(boots: Sequence[Boot]) -> Sequence[Boot]:
    """The same boots. Fewer than two first boots and a reboot prove nothing: raises ``Unknown``."""
    if len(first_boots(boots)) < 2 or not reboots(boots):
        raise Unknown(f"two first boots and a reboot are needed, not {[boot['name'] for boot in boots]}")
    return boots


def first_boots(boots: Sequence[Boot]) -> list[Boot]:
    """First boots of separate machines."""
    return [boot for boot in boots if not boot["name"].endswith("-reboot")]


def reboots(boots: Sequence[Boot]) -> list[tuple[Boot, Boot]]:
    """Each reboot with the boot before it."""
    by_name = {boot["name"]: boot for boot in boots}
    pairs = [(by_name.get(name.removesuffix("-reboot")), boot) for name, boot in by_name.items()]
    return [(before, after) for before, after in pairs if before and before is not after]


@check("capture.machine_ids", level=Level.STATIC)
def test_machine_ids(boots: Sequence[Boot]) -> None:
    """Every machine has an id of its own."""
    ids = [boot["machine_id"] for boot in first_boots(boots)]
    assert all(ids), "a machine has no machine-id"
    assert len(set(ids)) == len(ids), f"two machines share the machine-id {ids[0]}"


@check("capture.host_keys", level=Level.STATIC)
def test_host_keys(boots: Sequence[Boot]) -> None:
    """Every machine has SSH host keys of its own."""
    keys = [key for boot in first_boots(boots) for key in boot["host_keys"]]
    assert all(boot["host_keys"] for boot in first_boots(boots)), "a machine has no SSH host key"
    assert len(set(keys)) == len(keys), "two machines share an SSH host key"


@check("capture.reboot", level=Level.STATIC)
def test_reboot(boots: Sequence[Boot]) -> None:
    """A reboot keeps machine-id and host keys, and really was one."""
    for before, after in reboots(boots):
        assert before["boot_id"] != after["boot_id"], f"{after['name']}: the machine did not reboot"
        for key in ("machine_id", "host_keys"):
            assert before[key] == after[key], f"{after['name']}: a reboot changed {key}"


@check("capture.cloud_init", level=Level.STATIC)
def test_cloud_init(boots: Sequence[Boot]) -> None:
    """cloud-init was done after each boot."""
    wrong = [f"{boot['name']}: {boot['cloud_init']}" for boot in boots if boot["cloud_init"] != "done"]
    assert not wrong, "; ".join(wrong)


@check("capture.disk_grew", level=Level.STATIC)
def test_disk_grew(boots: Sequence[Boot], expected: Mapping[str, Any]) -> None:
    """A disk bigger than the image's was filled, on at least one machine."""
    image = expected["disk_bytes"]
    bigger = [boot for boot in boots if boot["disk_bytes"] > image]
    if not bigger:
        raise Unknown("no machine had a disk bigger than the image")
    for boot in bigger:
        # Less than a tenth goes to the boot partition, ext4's tables and its journal.
        assert boot["root_bytes"] > boot["disk_bytes"] * 0.9, (
            f"{boot['name']}: the root file system has {boot['root_bytes'] >> 20} MiB "
            f"of the disk's {boot['disk_bytes'] >> 20} MiB"
        )


@check("capture.times", level=Level.STATIC)
def test_times(boots: Sequence[Boot]) -> None:
    """How long each boot took to SSH and to ``gpu-ready.target`` is known."""
    for boot in boots:
        for key in ("seconds_to_ssh", "seconds_to_ready"):
            seconds = boot.get(key)
            assert isinstance(seconds, int | float) and seconds > 0, f"{boot['name']}: {key} is {seconds}"


@check("capture.nothing_found", level=Level.STATIC)
def test_nothing_found(expected: Mapping[str, Any]) -> None:
    """Secrets and names of the build are nowhere on the disk, free blocks included."""
    inspection = expected["inspection"]
    found = inspection["found"]
    if found is None:
        raise NotRun(inspection["not_run"])
    assert not found, "on the disk: " + ", ".join(
        f"{what} at byte {offset}" for what, offset in found.items()
    )


@pytest.mark.parametrize(
    "find",
    [pytest.param(find, id=id, marks=check(id, level=Level.STATIC)) for id, find in hygiene.FINDERS.items()],
)
def test_hygiene(find: hygiene.Finder, expected: Mapping[str, Any], pytestconfig: pytest.Config) -> None:
    """The captured disk holds nothing that must not be in an image; see ``hygiene``."""
    root: Path | None = pytestconfig.option.disk_root
    if root is None:
        raise NotRun(expected["inspection"]["not_run"] or "no files of the disk (no --disk-root)")
    build = expected["build"]
    try:
        found = find(
            root, hygiene.Build(build["user"], build["hostname"], tuple(build["forbidden_strings"]))
        )
    except hygiene.Missing as error:
        raise Unknown(str(error)) from None
    assert not found, f"{len(found)} found: {', '.join(found[:5])}"
