"""Simulated GPUs in a real machine: every fault, as ``gpu-boot-check`` and ``inv validate`` see it there.

Real are kernel, systemd, the image and its bundle, SSH, the kernel's log and processes in D state; the GPUs
are ``tests/gpu_sim``.
"""

from __future__ import annotations

import base64
import contextlib
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
from tests.gpu_sim import Scenario, files, kernel_log, vm
from tests.gpu_sim.fixtures import gpu_libraries
from tests.gpu_sim.verdicts import HEALTHY, MACHINE, ROWS, Row

__all__ = ["gpu_libraries"]

pytestmark = pytest.mark.vm

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
        scenario = Scenario(faults=faults, **settings)
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

    @contextlib.contextmanager
    def kernel_log(self, scenario: Scenario) -> Iterator[None]:
        """While it lasts, the machine's log has what this scenario's driver would have logged."""
        records = vm.write_kernel_log(scenario) if kernel_log.lines(scenario)[2:] else []
        if not records:
            yield
            return
        # The journal takes a record over in its own time.
        there = "journalctl --sync; journalctl -k -b | grep -q 'NVRM: loading NVIDIA' && break"
        self.sh(*records, f"for try in $(seq 50); do {there}; sleep 0.2; done")
        try:
            yield
        finally:
            # Not an empty log: that would be one that cannot be read.
            self.sh(
                "journalctl --rotate",
                "journalctl --quiet --vacuum-size=1",
                "echo '<6>gpu-sim: the log before was taken away' >/dev/kmsg",
                "journalctl --sync",
            )

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
    made.sh("systemd-run --quiet --unit=nvidia-fabricmanager --remain-after-exit true")
    yield made
    made.remove()
    made.sh("systemctl stop nvidia-fabricmanager.service")


@pytest.fixture(autouse=True)
def no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INVOKE_GPU_IMAGE_BUILD_DIR", str(tmp_path / "build"))
    monkeypatch.setenv("INVOKE_GPU_IMAGE_MANIFEST", str(tmp_path / "manifest"))


def fault(kind: str, **options: Any) -> Mapping[str, Any]:
    return {"kind": kind, **options}


#: One of every kind of verdict, and what only real processes show; the others with --full.
QUICK = {
    "healthy",
    "slow-seconds=2",
    "lost-gpu=3",
    "cuinit_fails-times=1",
    "memory_miscompare-gpu=all",
    "hot-gpu=3",
}
QUICK |= {"driver_not_loaded"}
IN_THE_MACHINE = [
    pytest.param(row, id=row.name, marks=[] if row.name in QUICK else [pytest.mark.full])
    for row in (HEALTHY, *ROWS)
]


@contextlib.contextmanager
def held(gpu_vm: GpuVm, row: Row) -> Iterator[None]:
    """Where a row needs it: a frozen file system, in which nvidia-smi is in state D until it is thawed."""
    if row.kernel:
        gpu_vm.sh(*vm.freeze())
    try:
        yield
    finally:
        if row.kernel:
            gpu_vm.sh(*vm.thaw())


@pytest.mark.parametrize("row", IN_THE_MACHINE)
def test_boot_check(gpu_vm: GpuVm, row: Row) -> None:
    gpu_vm.simulate(*row.faults, **MACHINE)
    with held(gpu_vm, row):
        report = gpu_vm.boot_check()
    verdict, says = row.without_promise or row.boot
    assert report["verdict"] == verdict, report["reason"]
    assert says in report["reason"], report["reason"]
    assert {check["check"] for check in report["checks"]} == {"bundle", "services", "gpus", "gpu-memory"}


def test_a_process_in_d_state_is_no_hang(gpu_vm: GpuVm) -> None:
    """nvidia-smi writes to a frozen file system: SIGKILL does not end it, and the check returns anyway."""
    gpu_vm.simulate(fault("hung", blocks_on=vm.FROZEN_FILE), **MACHINE)
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
    scenario = gpu_vm.simulate(fault("xid", gpu=3, code=79), **MACHINE)
    with gpu_vm.kernel_log(scenario):
        found = gpu_vm.sh(
            "cd /usr/lib/gpu-image && journalctl -k -b -o json | python3 -BS -m validation.kernel_log -"
        )
        events = [json.loads(line) for line in found.splitlines()]
        xids = [event for event in events if event["kind"] == "xid"]
        assert [(event["code"], event["pci"], event["injected"]) for event in xids] == [
            (79, "0000:5b:00", True)
        ]
        raw = gpu_vm.sh("cd /usr/lib/gpu-image && timeout 20 python3 -BS -m validation.kernel_log /dev/kmsg")
        assert '"injected": true' in raw
        done = gpu_vm.validate("--tier=gpu")
    text = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Xid 79 at 0000:5b:00 (written by a program, not by the driver)" in text


#: A whole validation takes half a minute under emulation.
VALIDATED = {"healthy", "count_short-by=2", "diag_skipped"}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=[] if row.name in VALIDATED else [pytest.mark.full])
        for row in (HEALTHY, *ROWS)
    ],
)
def test_validate(gpu_vm: GpuVm, row: Row) -> None:
    scenario = gpu_vm.simulate(*row.faults, **MACHINE)
    with gpu_vm.kernel_log(scenario), held(gpu_vm, row):
        done = gpu_vm.validate(f"--diag-level={row.diag_level}")
    verdict, says = row.gate
    text = " ".join(done.stdout.split())
    assert text.startswith(f"{verdict.upper()}: "), done.stdout + done.stderr
    assert done.returncode == {"unhealthy": 1, "unknown": 3}.get(verdict, 0)
    assert says in text
    assert "build gpu-debian-" in text  # it knows the image, though no manifest has it
