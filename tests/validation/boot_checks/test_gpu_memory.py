"""``30-gpu-memory`` with a libcuda that does what it is told; with the simulated one: tests/gpu_sim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from images import bundle
from tests.validation.fake_cuda import FakeCuda
from validation import cuda
from validation.boot_checks import gpu_memory, runner, scripts, supervisor
from validation.boot_checks.check import Result
from validation.cuda import driver_api

from .conftest import Machine
from .gpu_machine import DRIVER, LIBRARIES, GpuMachine, address

Check = Callable[..., Result]


@pytest.fixture
def gpus(tmp_path: Path) -> GpuMachine:
    return GpuMachine(tmp_path)


@pytest.fixture
def fake(gpus: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """The libcuda of the machine; the process goes on where a new one would."""
    made = FakeCuda(first_bus=0x43)
    monkeypatch.setattr(driver_api.ctypes, "CDLL", lambda name: made)
    monkeypatch.setattr(driver_api, "PATIENCE", 0.2)
    monkeypatch.setattr(driver_api, "FABRIC_PATIENCE", 0.5)
    monkeypatch.setattr(driver_api, "SHORTEST_PAUSE", 0.001)
    return made


class Replaced(Exception):
    """Instead of a new process."""


@pytest.fixture
def check(gpus: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Runs the check, and goes on in this process where it would in another."""

    def replace(program: str, arguments: list[str]) -> None:
        assert (program, arguments) == (sys.executable, sys.orig_argv)
        raise Replaced

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["30-gpu-memory", *arguments])
        monkeypatch.delenv(gpu_memory.EARLIER, raising=False)
        while True:
            try:
                return gpus.result(monkeypatch, "30-gpu-memory")
            except Replaced:
                assert os.environ[gpu_memory.EARLIER]

    monkeypatch.setattr(gpu_memory.os, "execv", replace)
    return run


def test_a_gpu_gives_back_what_was_written(
    fake: FakeCuda, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, ordinal in ((0x0102030B, 3), (7, 7), (0xFFFFFFF0, 0)):
        monkeypatch.setattr(gpu_memory.os, "urandom", lambda n, seed=seed: seed.to_bytes(n, "little"))
        found = check()
        assert found.status == "pass"
        data = found.data
        assert (data["seed"], data["ordinal"]) == (seed, ordinal)
        assert data["pci"] == address(ordinal)[:-2]
        assert (data["cuinit"], data["cuda"], data["mig"]) == ([0], "13.0", False)
        assert data["size"] >= 8 << 20
        assert (fake.memory, fake.contexts) == ({}, 0)


@pytest.mark.usefixtures("fake")
def test_which_one_is_chance(check: Check) -> None:
    assert len({check().data["seed"] for _ in range(3)}) == 3


def test_it_can_be_repeated(fake: FakeCuda, check: Check) -> None:
    written: list[bytes] = []
    fake.on_copy = lambda content: written.append(bytes(content))
    found = check("--seed=4711")
    assert (found.data["seed"], found.data["ordinal"]) == (4711, 4711 % 8)
    again = check("--seed=4711", "--gpu=3")
    assert (again.data["seed"], again.data["ordinal"]) == (4711, 3)
    assert written[0] == written[1]
    assert check("--gpu=8")[:2] == ("unknown", "there is no device 8: CUDA shows 8 GPUs")


@pytest.mark.usefixtures("fake")
def test_what_the_caller_does_not_want_to_see_is_tested_too(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert check().status == "pass"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_memory_that_is_wrong(fake: FakeCuda, check: Check) -> None:
    fake.on_copy = lambda content: content.__setitem__(4096, content[4096] ^ 0x40)
    found = check()
    assert found.status == "fail"
    assert found.reason.startswith(f"GPU {found.data['pci']} (NVIDIA H100 80GB HBM3, CUDA device ")
    assert "1 came back wrong (1 bit), the first at 0x1000" in found.reason
    assert (found.data["wrong_bytes"], found.data["first_wrong"]) == (1, 4096)


@pytest.mark.parametrize("codes", [[999], [3, 100, 46], [999] * 5, [802] * 9])
def test_cuinit_that_flakes(fake: FakeCuda, check: Check, codes: list[int]) -> None:
    fake.fails["cuInit"] = [*codes]
    found = check()
    assert found.status == "pass"
    assert found.data["cuinit"] == [*codes, 0]
    assert f"(cuInit needed {len(codes) + 1} tries)" in found.reason


def test_every_third_try_is_in_a_new_process(
    fake: FakeCuda, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that remembers a failure as long as the process lives."""
    fake.fails["cuInit"] = [999] * 99
    monkeypatch.setattr(gpu_memory.os, "execv", lambda program, arguments: fake.fails.clear())
    monkeypatch.delenv(gpu_memory.EARLIER, raising=False)
    check()
    began, _, codes = os.environ[gpu_memory.EARLIER].partition(":")
    assert codes == "999,999,999"
    start = gpu_memory.earlier()
    assert start
    assert (start.codes, start.began) == ((999, 999, 999), float(began))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (999, "CUDA_ERROR_UNKNOWN (999)"),
        (802, "CUDA_ERROR_SYSTEM_NOT_READY (802)"),
        (803, f"module {DRIVER}, libcuda 580.105.08: reboot, or install one version"),
    ],
)
def test_cuinit_that_never_works(
    gpus: GpuMachine, fake: FakeCuda, check: Check, code: int, reason: str
) -> None:
    gpus.library("libcuda", "580.105.08")
    fake.fails["cuInit"] = [code] * 9999
    found = check()
    assert (found.status, reason in found.reason) == ("fail", True)
    assert set(found.data["cuinit"]) == {code}
    if code == 802:
        assert "is nvidia-fabricmanager of this driver's version running?" in found.reason


def test_the_module_is_not_loaded(gpus: GpuMachine, fake: FakeCuda, check: Check) -> None:
    (gpus.root / "sys/module/nvidia/version").unlink()
    (gpus.root / "sys/module/nvidia").rmdir()
    fake.fails["cuInit"] = [100] * 9999
    found = check()
    assert (found.status, found.data.get("cuinit")) == ("fail", None)
    assert "the module nvidia is not loaded" in found.reason
    assert fake.calls.count("cuInit") == 1
    gpus.image(driver=None)
    assert check().status == "unknown"


def test_a_gpu_that_cuda_does_not_show(fake: FakeCuda, check: Check) -> None:
    fake.gpus = 7
    assert check()[:2] == ("fail", f"CUDA shows 7 of 8 GPUs; missing: {address(7)}")


@pytest.mark.parametrize("how", ["none", "error"])
def test_no_gpu_at_all(gpus: GpuMachine, fake: FakeCuda, check: Check, how: str) -> None:
    fake.gpus = 0
    fake.fails["cuInit"] = [100] * 9999 if how == "error" else []
    found = check()
    assert found.status == "fail"
    assert found.reason.startswith("CUDA shows none of 8 GPUs on the PCI bus: ")
    gpus.says(gpus.csv(range(8), mig_mode_current={**dict.fromkeys(range(7), "Enabled")}))
    assert check().status == "fail"
    gpus.says(gpus.csv(range(8), mig_mode_current="Enabled"))
    found = check()
    assert (found.status, "all GPUs are in MIG mode and have no instance" in found.reason) == (
        "not_run",
        True,
    )


def test_mig_mode(fake: FakeCuda, check: Check) -> None:
    """CUDA shows one instance of one GPU: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"""
    fake.gpus, fake.name = 1, "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    found = check()
    assert (found.status, found.data["mig"]) == ("pass", True)
    assert found.reason.endswith("(MIG mode: CUDA shows 1 of 8 GPUs)")


def test_one_gpu_in_mig_mode_beside_whole_ones(gpus: GpuMachine, fake: FakeCuda, check: Check) -> None:
    fake.gpus = 7
    gpus.says(gpus.csv(range(8), mig_mode_current={7: "Enabled"}))
    found = check()
    assert (found.status, found.data["mig"]) == ("pass", True)
    gpus.says(gpus.csv(range(8), mig_mode_current={6: "Enabled"}))
    assert check().status == "fail"


@pytest.mark.parametrize(("function", "code"), [("cuCtxCreate_v2", 46), ("cuMemAlloc_v2", 2)])
def test_a_gpu_that_others_use(fake: FakeCuda, check: Check, function: str, code: int) -> None:
    fake.fails[function] = [code]
    assert check().status == "unknown"


@pytest.mark.parametrize("function", ["cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGetName"])
def test_errors_before_the_test(fake: FakeCuda, check: Check, function: str) -> None:
    fake.fails[function] = [214]
    found = check()
    assert (found.status, f"{function}: CUDA_ERROR_ECC_UNCORRECTABLE" in found.reason) == ("fail", True)


def test_no_libcuda(gpus: GpuMachine, check: Check) -> None:
    """Really no library: this machine's file is empty."""
    found = check()
    assert (found.status, "libcuda.so.580.95.05 cannot be loaded" in found.reason) == ("fail", True)
    for file in (gpus.root / LIBRARIES).glob("libcuda*"):
        file.unlink()
    found = check()
    assert (found.status, "libcuda.so.1 cannot be loaded" in found.reason) == ("fail", True)
    gpus.image(driver=None)
    assert check().status == "unknown"


def test_the_library_is_loaded_by_its_soname_on_a_real_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_IMAGE_ROOT", "/")
    assert gpu_memory.library_path() == "libcuda.so.1"


def test_the_processors_time_of_the_driver_is_told(fake: FakeCuda, check: Check) -> None:
    found = check()
    assert 0 < found.data["driver_cpu_seconds"] < 60


@pytest.fixture
def script(machine: Machine, the_bundle: tuple[bundle.BundleFile, ...]) -> Path:
    """The check on a machine, to be run."""
    (file,) = [file for file in the_bundle if file.path.endswith("/30-gpu-memory")]
    return machine.check("30-gpu-memory", file.content.decode())


def test_wrong_arguments_are_no_result(script: Path) -> None:
    for arguments in (["--seed"], ["--seed=x"], ["--gpu=-1"], ["--size=4"], ["help"], ["--gpu=1", "x"]):
        done = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (64, ""), arguments
        assert done.stderr == "usage: 30-gpu-memory [--seed=NUMBER] [--gpu=NUMBER]\n"


@pytest.mark.usefixtures("script")
def test_through_the_runner(machine: Machine) -> None:
    gpus = GpuMachine(machine.root)
    machine.image["driver"] = DRIVER
    done = machine.run()
    assert (done.report["verdict"], done.code) == ("unhealthy", 1)
    assert "cannot be loaded" in done.result("gpu-memory")["reason"]
    gpus.expect({"gpus": 0})
    assert json.loads(machine.run().stdout)["verdict"] == "unknown"  # nothing passed


def test_the_deadlines_fit(the_bundle: tuple[bundle.BundleFile, ...]) -> None:
    (script,) = [file for file in the_bundle if file.path.endswith("/30-gpu-memory")]
    grace = supervisor.TERM_GRACE + supervisor.KILL_GRACE
    waiting = driver_api.FABRIC_PATIENCE + driver_api.AT_ONCE * driver_api.LONGEST_PAUSE
    deadline = scripts.deadline_in(script.content)
    assert waiting + gpu_memory.SMI_PATIENCE + grace < deadline < runner.TOTAL_DEADLINE
    assert cuda.Start((0,), 0.0, None, False).error is None
