"""The main job, on real parts: built, gated, booted again, published."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from images import builds
from tests.conftest import Built, SharedVm, Site
from tests.images.test_run import wait_for

pytestmark = pytest.mark.vm


def release(built: Built) -> dict[str, Any]:
    digest = built.outcome["release"].removeprefix("sha256:")
    path = built.site.manifest / "releases" / "sha256" / digest[:2] / f"{digest}.json"
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


def test_what_the_build_printed(built: Built) -> None:
    if built.log is None:
        pytest.skip("--built: the build was made before")
    assert built.outcome["status"] == "published"
    assert any("GPU families" in line for line in built.outcome["not_tested"])
    for words in ("base image", "Packer build", "gate on machines", "publish"):
        assert words in built.log


def test_published_and_resolved(built: Built) -> None:
    result = built.site.inv("manifest.resolve", "--cloud=local")
    assert (result.returncode, result.stdout) == (0, f"{built.image}\n")
    document = json.loads(built.site.inv("manifest.resolve", "--cloud=local", "--format=json").stdout)
    assert document["release_digest"] == built.outcome["release"]


def test_image_is_the_one_in_the_release(built: Built) -> None:
    digest = subprocess.run(["sha256sum", built.image], capture_output=True, text=True, check=True).stdout
    assert release(built)["image"]["disk"]["digest"] == "sha256:" + digest.split()[0]
    info = json.loads(
        subprocess.run(
            ["qemu-img", "info", "--output=json", built.image], capture_output=True, text=True, check=True
        ).stdout
    )
    assert "backing-filename" not in info


def test_release_says_what_was_seen_and_what_was_not(built: Built) -> None:
    document = release(built)
    lock = json.loads(
        (Path(__file__).parent.parent / "images/locks/gpu-debian.local.amd64.json").read_bytes()
    )
    assert document["os"]["kernel"] == lock["kernel"]["release"]
    assert document["software"]["requested"]["nvidia_driver"] == "550.163.01"
    assert document["software"]["observed"]["nvidia_driver"] is None
    assert {family["validation"]["state"] for family in document["gpu"]["families"].values()} == {
        "not_validated"
    }
    phases = {check["phase"] for check in document["gates"]}
    assert phases == {"build", "first_boot", "reboot", "capture"}
    assert {check["result"] for check in document["gates"]} <= {"pass", "not_run"}


def test_every_file_of_the_bundle_on_the_machine_has_the_published_digest(
    built: Built, shared_vm: SharedVm
) -> None:
    wanted = {
        item["path"]: (item["mode"].lstrip("0"), item["sha256"])
        for item in release(built)["boot_checks"]["items"]
    }
    code, out, _ = shared_vm.run(
        "find /usr/lib/gpu-image -name __pycache__ -prune -o -type f ! -name image.json "
        "-printf '%p %m ' -exec sha256sum {} ';'"
    )
    assert code == 0
    found = {path: (mode, digest) for path, mode, digest, _ in (line.split() for line in out.splitlines())}
    assert found == wanted


def test_two_first_boots_differ_and_a_reboot_keeps_its_ids(built: Built) -> None:
    boots = json.loads((built.folder / "boots.json").read_bytes())
    first, other, again = (
        next(boot for boot in boots if boot["name"] == name)
        for name in ("first-bios", "first-uefi", "first-bios-reboot")
    )
    assert (first["firmware"], other["firmware"]) == ("bios", "uefi")
    assert first["machine_id"] != other["machine_id"] and first["host_keys"] != other["host_keys"]
    assert first["machine_id"] == again["machine_id"] and first["host_keys"] == again["host_keys"]
    assert first["boot_id"] != again["boot_id"]
    assert all(boot["seconds_to_ssh"] > 0 and boot["seconds_to_ready"] > 0 for boot in boots)


def test_plain_qemu_boots_it_to_the_ready_target(built: Built, tmp_path: Path) -> None:
    """No seed, no key, no tool of ours: what a stranger would type."""
    path = built.site.inv("manifest.resolve", "--cloud=local").stdout.strip()
    serial = tmp_path / "serial.log"
    words = ["qemu-system-x86_64", "-m", "2048", "-smp", "2", "-cpu", "max", "-display", "none", "-snapshot"]
    words += ["-drive", f"file={path},if=virtio", "-serial", f"file:{serial}", "-nic", "none"]

    def text() -> str:
        return serial.read_text(errors="replace") if serial.exists() else ""

    with subprocess.Popen(words) as process:
        try:
            assert wait_for(lambda: "Reached target" in text() and "gpu-ready.target" in text(), 400), (
                text()[-2000:]
            )
        finally:
            process.kill()
    assert re.search(r"gpu-boot-check: HEALTHY", text())


def test_nothing_changed_builds_nothing(built: Built) -> None:
    before = built.site.states()
    result = built.site.inv("build", "--cloud=local", "--json")
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    assert (outcome["status"], outcome["release"]) == ("unchanged", built.outcome["release"])
    assert built.site.states() == before


def test_show(built: Built) -> None:
    result = built.site.inv("manifest.show", "--cloud=local")
    assert result.returncode == 0, result.stderr
    for words in (built.outcome["version"], "550.163.01", "not_validated"):
        assert words in result.stdout


def test_nothing_is_left_behind(built: Built) -> None:
    state = next(item for item in built.site.states() if item["build_id"] == built.outcome["build_id"])
    assert state["status"] == "done"
    assert not Path(state["temporary"]).exists()
    assert builds.processes(str(built.outcome["build_id"])) == {}
    assert [path.name for path in built.folder.glob("*.qcow2")] == [built.image.name]
    assert not (built.folder / "packer").exists() and not (built.folder / "disk").exists()
    assert built.site.inv("sweep").stdout == "nothing is left over\n"


def test_resolve_without_a_manifest_says_so(site: Site) -> None:
    result = site.inv("manifest.resolve", "--cloud=local")
    assert (result.returncode, result.stdout) == (3, "")
    assert "channel" in result.stderr
