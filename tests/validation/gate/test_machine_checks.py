"""Every check that needs a machine is seen to fail on a real one: broken, judged and mended again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.validation.gate import gate

if TYPE_CHECKING:
    from tests.conftest import SharedVm


@dataclass(frozen=True)
class Negative:
    """How a check is made to fail: by a command on the machine (and one that mends it), or by expecting
    something else (dotted paths in expected.json). ``reason`` is part of what the check then says."""

    reason: str
    breaks: str = ""
    mends: str = ""
    expects: dict[str, Any] = field(default_factory=dict)
    result: str = "fail"


def edited(path: str, sed: str, reason: str) -> Negative:
    """A file with a sed expression applied; the copy lies in memory, where no check looks."""
    copy = "/run/gate-" + Path(path).name
    return Negative(
        reason, f"cp -p {path} {copy} && sed -i '{sed}' {path}", f"cat {copy} >{path} && rm {copy}"
    )


def added(path: str, content: str, reason: str) -> Negative:
    return Negative(reason, f"printf '%s\\n' '{content}' >{path}", f"rm {path}")


PINS = "/etc/apt/preferences.d/gpu-image-kernel"

NEGATIVE: dict[str, list[Negative]] = {
    "kernel.running": [Negative("not the locked 9.9", expects={"kernel.release": "9.9"})],
    "kernel.default_entry": [
        edited(
            "/boot/grub/grub.cfg",
            r"s#/boot/vmlinuz-[^[:space:]]*#/boot/vmlinuz-0.1-other#",
            "start 0.1-other",
        )
    ],
    "kernel.packages": [
        Negative("linux-base is", expects={"kernel.packages": {"linux-base": "0"}}),
        Negative("linux-none is not installed", expects={"kernel.packages": {"linux-none": "1"}}),
    ],
    "kernel.only": [added("/boot/vmlinuz-0.1-other", "", "/boot/vmlinuz-0.1-other")],
    "packages.complete": [
        edited(
            "/var/lib/dpkg/status",
            "/^Package: zstd$/,/^$/s/install ok installed/install ok half-configured/",
            "zstd",
        )
    ],
    "packages.held": [
        Negative(
            "not on hold: linux-image-cloud-amd64",
            "apt-mark unhold linux-image-cloud-amd64",
            "apt-mark hold linux-image-cloud-amd64",
        )
    ],
    "packages.holds_effective": [
        # With the hold gone the pins still hold it, so both must go.
        Negative(
            "an upgrade would change linux-image-cloud-amd64",
            f"apt-mark unhold linux-image-cloud-amd64 && mv {PINS} /run/gate-pins",
            f"apt-mark hold linux-image-cloud-amd64; mv /run/gate-pins {PINS}",
        ),
        Negative("nothing to hold: linux-none", expects={"held_packages": ["linux-none"]}, result="unknown"),
    ],
    "packages.no_unattended_upgrades": [
        added("/etc/apt/apt.conf.d/99-gate", 'APT::Periodic::Enable "1";', "APT::Periodic::Enable")
    ],
    "services.no_failed_units": [
        Negative(
            "failed: gate-broken.service",
            "systemd-run --quiet --wait --unit=gate-broken /bin/false || true",
            "systemctl reset-failed gate-broken.service",
        )
    ],
    "services.masked": [
        Negative(
            "apt-daily.timer can be started",
            "systemctl --quiet unmask apt-daily.timer",
            "systemctl --quiet mask apt-daily.timer",
        )
    ],
    "services.active": [
        Negative(
            "systemd-timesyncd.service is inactive",
            "systemctl stop systemd-timesyncd.service",
            "systemctl start systemd-timesyncd.service",
        )
    ],
    "services.time_sync": [
        Negative(
            "systemd-timesyncd.service",
            "systemctl stop systemd-timesyncd.service",
            "systemctl start systemd-timesyncd.service",
        )
    ],
    "services.cloud_init": [
        edited("/run/cloud-init/status.json", r's/"errors": \[\]/"errors": ["it broke"]/', "it broke")
    ],
    "system.os": [Negative("it is debian", expects={"os": {"id": "ubuntu", "version": "24.04"}})],
    "system.no_swap": [
        Negative(
            "swap: /gate-swap",
            "dd if=/dev/zero of=/gate-swap bs=1M count=8 status=none && chmod 600 /gate-swap"
            " && mkswap /gate-swap && swapon /gate-swap",
            "swapoff /gate-swap; rm /gate-swap",
        ),
        edited("/etc/fstab", "$a /gate-swap none swap sw 0 0", "/gate-swap in fstab"),
    ],
    "system.free_space": [Negative("MiB are free", expects={"min_free_bytes": 1 << 50})],
    "system.root_grew": [Negative("the disk has", expects={"disk_bytes": 1 << 50})],
    "system.serial_console": [
        Negative(
            "no login on ttyS0",
            "systemctl stop serial-getty@ttyS0.service",
            "systemctl start serial-getty@ttyS0.service",
        )
    ],
    "system.boot_menu": [
        edited("/boot/grub/grub.cfg", "s/set timeout=0/set timeout=7/", "GRUB can wait 7 s")
    ],
    "boot_checks.bundle": [
        added("/usr/lib/gpu-image/boot-checks.d/99-extra", "", "99-extra does not belong there"),
        Negative(
            "10-services differs",
            "chmod 0700 /usr/lib/gpu-image/boot-checks.d/10-services",
            "chmod 0755 /usr/lib/gpu-image/boot-checks.d/10-services",
        ),
        Negative("the bundle", expects={"bundle.digest": "sha256:0"}),
    ],
    "boot_checks.image": [
        edited(
            "/usr/lib/gpu-image/image.json", 's/"family": "[^"]*"/"family": "other"/', "family is 'other'"
        )
    ],
    "boot_checks.verdict": [
        edited(
            "/run/gpu-image/boot-check.json", 's/"verdict": "healthy"/"verdict": "degraded"/', "degraded: "
        ),
        Negative("it was judged by the bundle", expects={"bundle.digest": "sha256:0"}),
    ],
    "boot_checks.ready": [
        Negative(
            "gpu-ready.target is inactive",
            "systemctl stop gpu-ready.target",
            "systemctl start gpu-ready.target",
        )
    ],
    "leftovers.build_user": [
        Negative("packer has an account", "useradd packer", "userdel packer"),
        added("/etc/sudoers.d/gate", "packer ALL=(ALL) NOPASSWD:ALL", "packer may use sudo"),
    ],
    "leftovers.hostname": [
        Negative("still calls itself localhost", expects={"build.hostname": "localhost"}),
    ],
    "leftovers.apt_proxy": [
        added(
            "/etc/apt/apt.conf.d/99-gate", 'Acquire::http::Proxy "http://127.0.0.1:9";', "http://127.0.0.1:9"
        )
    ],
}


def judge(vm: SharedVm, folder: Path, expected: dict[str, Any], *options: str) -> gate.Run:
    options = ("--phase=first_boot", "--hosts=ssh://vm", f"--ssh-config={vm.ssh_config}", "--sudo", *options)
    return gate.run(folder, expected, *options)


@pytest.mark.vm
def test_a_good_machine_passes(shared_vm: SharedVm, tmp_path: Path) -> None:
    run = judge(shared_vm, tmp_path, shared_vm.expected)
    assert run.code == 0, run.output
    results = {(check["tier"] == "any_vm", check["result"]) for check in run.document["checks"]}
    assert results == {(True, "pass"), (False, "not_run")}  # it has no GPU, and none is expected
    assert run.document["level"] == "vm_no_gpu"


@pytest.mark.vm
@pytest.mark.parametrize(
    ("id", "negative"),
    [
        pytest.param(id, negative, id=f"{id}-{number}")
        for id, negatives in NEGATIVE.items()
        for number, negative in enumerate(negatives)
    ],
)
def test_a_broken_machine_fails(shared_vm: SharedVm, tmp_path: Path, id: str, negative: Negative) -> None:
    expected = gate.overridden(shared_vm.expected, negative.expects)
    try:
        if negative.breaks:
            code, _, err = shared_vm.run(negative.breaks)
            assert code == 0, err
        run = judge(shared_vm, tmp_path, expected, f"--check={id}")
    finally:
        if negative.mends:
            code, _, err = shared_vm.run(negative.mends)
            assert code == 0, err
    assert run.checks[id]["result"] == negative.result, run.output
    assert negative.reason in run.checks[id]["reason"]
    assert run.code == {"fail": 1, "unknown": 2}[negative.result]


@pytest.mark.vm
def test_before_the_capture_the_build_machine_may_be_itself(shared_vm: SharedVm, tmp_path: Path) -> None:
    expected = gate.overridden(shared_vm.expected, {"build.hostname": "localhost"})
    run = judge(shared_vm, tmp_path, expected, "--phase=build", "--check=leftovers.hostname")
    assert run.checks["leftovers.hostname"]["result"] == "not_run"


@pytest.mark.vm
def test_a_machine_without_our_image_is_not_judged_by_it(shared_vm: SharedVm, tmp_path: Path) -> None:
    """The phase for machines that exist: what expected.json does not say is not run, and never a pass."""
    run = judge(shared_vm, tmp_path, {"schema": "gpu-image/expected/v1"}, "--phase=host")
    assert run.code == 0, run.output
    results = {id: check["result"] for id, check in run.checks.items()}
    assert results["boot_checks.bundle"] == results["kernel.running"] == "not_run"
    assert results["services.no_failed_units"] == results["system.no_swap"] == "pass"


@pytest.mark.vm
def test_everything_is_mended(shared_vm: SharedVm, tmp_path: Path) -> None:
    run = judge(shared_vm, tmp_path, shared_vm.expected)
    assert run.code == 0, run.output
