"""Simulated GPUs in a real machine: every fault, as ``gpu-boot-check`` and ``inv validate`` see it there.

Real are kernel, systemd, the image and its bundle, SSH, the kernel's log and processes in D state; the GPUs
are ``tests/gpu_sim``.
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from images.settings import CHECKOUT
from tests.conftest import SharedVm
from tests.gpu_sim import Scenario, files, vm
from tests.gpu_sim.fixtures import gpu_libraries

__all__ = ["gpu_libraries"]

pytestmark = pytest.mark.vm

H100 = {"gpus": 8, "model": "h100-sxm"}
INSTALLED = "/run/gpu-sim-installed"


class GpuVm:
    """The shared machine with GPUs of a scenario."""

    def __init__(self, machine: SharedVm, libraries: Mapping[str, Path]) -> None:
        self.machine = machine
        self._libraries = libraries
        self._there = False

    def sh(self, *lines: str) -> str:
        code, out, err = self.machine.run(vm.script(lines))
        assert code == 0, err
        return out

    def simulate(self, *faults: Mapping[str, Any], **settings: Any) -> Scenario:
        """Gives the machine these GPUs, in place of those it had."""
        self.remove()
        scenario = Scenario(faults=faults, expect={"gpus": settings["gpus"]}, **settings)
        packed, names = io.BytesIO(), []
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for file in files(scenario, self._libraries):
                if "/systemd/" in file.path:
                    continue
                member = tarfile.TarInfo(file.path.lstrip("/"))
                names.append(file.path)
                if file.link is not None:
                    member.type, member.linkname = tarfile.SYMTYPE, file.link
                else:
                    member.size, member.mode = len(file.content), file.mode
                archive.addfile(member, io.BytesIO(file.content))
        self._there = True
        encoded = base64.encodebytes(packed.getvalue()).decode()
        self.sh(
            f"base64 -d <<'END' | tar -C / --no-same-owner -xzf -\n{encoded}END",
            f"cat >{INSTALLED} <<'END'\n" + "\n".join(names) + "\nEND",
            "ldconfig",
            *vm.show_kernel(),
        )
        return scenario

    def remove(self) -> None:
        """Takes the GPUs away, and ends what hangs in their programs."""
        if self._there:
            self.machine.run(
                f"{'; '.join([*vm.end_hung(), *vm.hide_kernel()])}\nxargs -r rm -f <{INSTALLED}\n"
                f"rm -rf {INSTALLED} /run/gpu-sim /usr/share/gpu-sim /etc/gpu-image/expect.json; ldconfig"
            )
        self._there = False

    def boot_check(self) -> dict[str, Any]:
        """The report of ``gpu-boot-check``, which runs no hook and writes nothing."""
        _, out, err = self.machine.run("gpu-boot-check --json --check-only", timeout=300)
        assert "Traceback" not in err
        found: dict[str, Any] = json.loads(out)
        return found

    def validate(self, *options: str) -> subprocess.CompletedProcess[str]:
        words = ["./inv", "validate", "--host=ssh://vm", f"--ssh-config={self.machine.ssh_config}", *options]
        return subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture(scope="module")
def gpu_vm(shared_vm: SharedVm, gpu_libraries: Mapping[str, Path]) -> Iterator[GpuVm]:
    made = GpuVm(shared_vm, gpu_libraries)
    yield made
    made.remove()


@pytest.fixture(autouse=True)
def no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INVOKE_GPU_IMAGE_BUILD_DIR", str(tmp_path / "build"))
    monkeypatch.setenv("INVOKE_GPU_IMAGE_MANIFEST", str(tmp_path / "manifest"))


def fault(kind: str, **options: Any) -> Mapping[str, Any]:
    return {"kind": kind, **options}


#: Fault -> verdict of the machine, and words of the reason.
FAULTS: list[tuple[Mapping[str, Any] | None, str, str]] = [
    (None, "healthy", "3 of 3 checks passed"),
    (fault("lost", gpu=3), "unhealthy", "0000:5b:00"),
    (fault("lost", gpu="all"), "unhealthy", "gpus"),
    (fault("lost", gpu=3, bus=False), "unhealthy", "7 of 8"),
    (fault("count_short", by=2), "unhealthy", "6 of 8"),
    (fault("slow", seconds=2), "healthy", "3 of 3 checks passed"),
    (fault("cuinit_fails", times=1), "healthy", "3 of 3 checks passed"),
    (fault("cuinit_fails", times=1000), "unhealthy", "cuInit"),
    (fault("memory_miscompare", gpu="all"), "unhealthy", "came back wrong"),
    (fault("row_remap", failure=True), "unhealthy", "remap"),
    (fault("row_remap", pending=True), "degraded", "remap"),
    (fault("version_mismatch"), "unhealthy", "575.57.08"),
    # Unhealthy where the image promises a driver; this one promises none.
    (fault("driver_not_loaded"), "unknown", "not loaded"),
    (fault("throttle", gpu=2, mask=0x48), "degraded", "slowdown"),
    (fault("hot", gpu=2), "degraded", "C"),
    (fault("recovery_action", gpu=1, action="Reboot"), "unhealthy", "Reboot"),
    (fault("ecc", gpu=1, uncorrected=2), "unhealthy", "uncorrected"),
    (fault("no_devices"), "unhealthy", "GPU"),
    (fault("fabric", state="Completed", status="Insufficient Resources"), "unhealthy", "fabric"),
]


@pytest.mark.parametrize(
    ("what", "verdict", "says"),
    [
        pytest.param(*row, id=f"{n}-{(row[0] or {'kind': 'healthy'})['kind']}")
        for n, row in enumerate(FAULTS)
    ],
)
def test_boot_check(gpu_vm: GpuVm, what: Mapping[str, Any] | None, verdict: str, says: str) -> None:
    gpu_vm.simulate(*([what] if what else []), **H100)
    report = gpu_vm.boot_check()
    everything = json.dumps(report)
    assert report["verdict"] == verdict, everything
    assert says in everything
    assert {check["check"] for check in report["checks"]} == {"bundle", "services", "gpus", "gpu-memory"}


def test_a_process_in_d_state_is_no_hang(gpu_vm: GpuVm) -> None:
    """nvidia-smi writes to a frozen file system: SIGKILL does not end it, and the check returns anyway."""
    gpu_vm.simulate(fault("hung", blocks_on=vm.FROZEN_FILE), **H100)
    gpu_vm.sh(*vm.freeze())
    try:
        report = gpu_vm.boot_check()
        state = gpu_vm.sh(f"for pid in {vm.hung()}; do sed 's/.*) //' /proc/$pid/stat | cut -d' ' -f1; done")
        checks = {check["check"]: check for check in report["checks"]}
        assert "D" in state.split(), state
        assert checks["gpus"]["status"] == "unknown", checks["gpus"]
        assert "no answer" in checks["gpus"]["reason"]
        assert report["verdict"] == "unknown"
    finally:
        gpu_vm.sh(*vm.thaw())


def test_an_xid_that_a_program_wrote_is_found_and_marked(gpu_vm: GpuVm) -> None:
    """Last of its kind: the record stays in the kernel's log until the machine's next boot."""
    scenario = gpu_vm.simulate(fault("xid", gpu=3, code=79), **H100)
    gpu_vm.sh(*vm.write_kernel_log(scenario))
    # The journal takes a record over in its own time.
    there = "journalctl --sync; journalctl -k -b | grep -q 'Xid (PCI' && break"
    gpu_vm.sh(f"for try in $(seq 50); do {there}; sleep 0.2; done")
    found = gpu_vm.sh(
        "cd /usr/lib/gpu-image && journalctl -k -b -o json | python3 -BS -m validation.kernel_log -"
    )
    events = [json.loads(line) for line in found.splitlines()]
    assert [
        (event["code"], event["pci"], event["injected"]) for event in events if event["kind"] == "xid"
    ] == [(79, "0000:5b:00", True)]
    raw = gpu_vm.sh("cd /usr/lib/gpu-image && timeout 20 python3 -BS -m validation.kernel_log /dev/kmsg")
    assert '"injected": true' in raw
    done = gpu_vm.validate()
    text = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Xid 79 at 0000:5b:00 (written by a program, not by the driver)" in text


@pytest.mark.parametrize(
    ("what", "verdict", "says"),
    [
        (fault("count_short"), "UNHEALTHY", "7 of 8 GPUs are on the bus"),
        (fault("diag_fails", test="memory", gpu=3), "UNHEALTHY", "fail dcgm.diag"),
        (fault("diag_skipped"), "UNHEALTHY", "unknown dcgm.diag"),
        (fault("no_host_engine", embedded=False), "UNHEALTHY", "unknown dcgm.diag"),
    ],
)
def test_validate(gpu_vm: GpuVm, what: Mapping[str, Any], verdict: str, says: str) -> None:
    """Unhealthy each time: the Xid of the test before is still in the log."""
    gpu_vm.simulate(what, **H100)
    done = gpu_vm.validate("--diag-level=2")
    text = " ".join(done.stdout.split())
    assert text.startswith(verdict), done.stdout + done.stderr
    assert says in text
    assert "level gpu_simulated" in text
    assert "build gpu-debian-" in text  # it knows the image, though no manifest has it
