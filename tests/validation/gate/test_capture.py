"""The static phase: good evidence passes, and each check is seen to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.validation.gate import gate
from tests.validation.gate.test_hygiene import CLEAN, write
from validation.gate.checks import Unknown
from validation.gate.test_capture import enough

GIB = 1024**3


def boot(name: str, machine: str, boot_id: str) -> dict[str, Any]:
    return {
        "name": name,
        "machine_id": machine * 32,
        "boot_id": boot_id,
        "host_keys": [f"ssh-ed25519 {machine}"],
        "cloud_init": "done",
        "disk_bytes": 10 * GIB,
        "root_bytes": int(9.7 * GIB),
        "seconds_to_ssh": 41.0,
        "seconds_to_ready": 38.2,
    }


EXPECTED: dict[str, Any] = {
    "schema": "gpu-image/expected/v1",
    "disk_bytes": 4 * GIB,
    "build": {"user": "packer", "hostname": "build-3fa9-canary", "forbidden_strings": ["canary-0123"]},
    "boots": [boot("first-a", "a", "1"), boot("first-b", "b", "2"), boot("first-a-reboot", "a", "3")],
    "inspection": {"found": {}, "not_run": ""},
}

#: What is changed in the boots (index, key, value), or in expected.json itself, and what is said about it.
NEGATIVE: dict[str, list[tuple[int | None, str, Any, str]]] = {
    "capture.machine_ids": [
        (1, "machine_id", "a" * 32, "share the machine-id"),
        (0, "machine_id", "", "no mach"),
    ],
    "capture.host_keys": [
        (1, "host_keys", ["ssh-ed25519 a"], "share an SSH host key"),
        (1, "host_keys", [], "no SSH host key"),
    ],
    "capture.reboot": [
        (2, "machine_id", "c" * 32, "changed machine_id"),
        (2, "host_keys", ["ssh-ed25519 c"], "changed host_keys"),
        (2, "boot_id", "1", "did not reboot"),
    ],
    "capture.cloud_init": [(2, "cloud_init", "error", "first-a-reboot: error")],
    "capture.disk_grew": [(0, "root_bytes", 4 * GIB, "first-a: the root file system has 4096 MiB")],
    "capture.times": [(1, "seconds_to_ready", None, "first-b: seconds_to_ready is None")],
    "capture.nothing_found": [
        (None, "inspection", {"found": {"the planted secret": 4096}, "not_run": ""}, "secret at byte 4096")
    ],
}


def changed(index: int | None, key: str, value: Any) -> dict[str, Any]:
    document = gate.overridden(EXPECTED, {} if index is not None else {key: value})
    if index is not None:
        document["boots"][index][key] = value
    return document


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    for path, content in CLEAN.items():
        write(tmp_path / "disk", path, content)
    return tmp_path / "disk"


def test_good_evidence_passes(tmp_path: Path, disk: Path) -> None:
    run = gate.run(tmp_path, EXPECTED, "--phase=capture", f"--disk-root={disk}")
    assert run.code == 0, run.output
    assert {check["result"] for check in run.document["checks"]} == {"pass"}
    assert {check["level"] for check in run.document["checks"]} == {"static"} == {run.document["level"]}
    assert run.document["phase"] == "capture"


@pytest.mark.parametrize(
    ("id", "change", "reason"),
    [
        pytest.param(id, change[:3], change[3], id=f"{id}:{change[1]}")
        for id, changes in NEGATIVE.items()
        for change in changes
    ],
)
def test_bad_evidence_fails(id: str, change: tuple[int | None, str, Any], reason: str) -> None:
    document = changed(*change)
    with pytest.raises(AssertionError, match=reason):
        gate.call(id, expected=document, boots=document["boots"])


def test_dirt_on_the_disk_fails_and_is_named(tmp_path: Path, disk: Path) -> None:
    write(disk, "etc/ssh/ssh_host_ed25519_key", "k")
    run = gate.run(tmp_path, EXPECTED, "--phase=capture", f"--disk-root={disk}")
    assert run.code == 1
    assert run.document["checks"][0]["id"] == "hygiene.host_keys"
    assert run.document["checks"][0]["reason"] == "1 found: /etc/ssh/ssh_host_ed25519_key"


def test_too_few_boots_prove_nothing() -> None:
    with pytest.raises(Unknown, match="two first boots and a reboot are needed"):
        enough(EXPECTED["boots"][:2])
    assert enough(EXPECTED["boots"]) == EXPECTED["boots"]


def test_no_bigger_disk_proves_no_growth() -> None:
    with pytest.raises(Unknown, match="no machine had a disk bigger"):
        gate.call("capture.disk_grew", expected={"disk_bytes": 10 * GIB}, boots=EXPECTED["boots"])


def test_without_the_disk_hygiene_is_not_run(tmp_path: Path) -> None:
    run = gate.run(tmp_path, EXPECTED, "--phase=capture")
    hygiene = [check for id, check in run.checks.items() if id.startswith("hygiene.")]
    assert {check["result"] for check in hygiene} == {"not_run"}
    assert all("--disk-root" in check["reason"] for check in hygiene)


def test_a_disk_that_nobody_searched_is_not_called_clean(tmp_path: Path) -> None:
    unseen = {"inspection": {"found": None, "not_run": "this cloud hands out no disks"}}
    run = gate.run(tmp_path, {**EXPECTED, **unseen}, "--phase=capture")
    for id, check in run.checks.items():
        if id == "capture.nothing_found" or id.startswith("hygiene."):
            assert (check["result"], check["reason"]) == ("not_run", "this cloud hands out no disks"), id


def test_an_empty_folder_is_not_a_clean_disk(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run = gate.run(tmp_path, EXPECTED, "--phase=capture", f"--disk-root={tmp_path}/empty")
    assert run.code == 2
    assert {check["result"] for id, check in run.checks.items() if id.startswith("hygiene.")} == {"unknown"}
