"""``20-gpus`` on machines laid out in a folder: what is there, what answers, and what fits together."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images import bundle
from validation import tools
from validation.boot_checks import gpu_answers, runner, scripts, supervisor
from validation.boot_checks.check import Result
from validation.nvidia_smi.command import HELP_TIMEOUT

from .conftest import Machine
from .gpu_machine import DRIVER, LIBRARIES, GpuMachine, address

Check = Callable[[], Result]


@pytest.fixture
def gpus(tmp_path: Path) -> GpuMachine:
    return GpuMachine(tmp_path)


@pytest.fixture
def check(gpus: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> Check:
    return lambda: gpus.result(monkeypatch)


def test_eight_healthy_gpus(gpus: GpuMachine, check: Check) -> None:
    gpus.machine_type("p5.48xlarge")
    status, reason, data = check()
    assert status == "pass"
    assert reason == (
        f"8 GPUs (NVIDIA H100 80GB HBM3), driver {DRIVER}; as many as machine type p5.48xlarge promises"
    )
    assert data["expected"] == {"gpus": 8, "gpu": "h100", "by": "machine type p5.48xlarge"}
    assert data["on_bus"] == [address(place) for place in range(8)]
    assert data["driver"] == {
        part: DRIVER for part in ("module", "libnvidia-ml", "libcuda", "nvidia-smi", "image.json")
    }
    assert [gpu["pci"] for gpu in data["gpus"]] == [address(place)[:-2] for place in range(8)]
    assert data["degraded"] == []
    assert gpus.asked == 1


def test_nobody_says_how_many(gpus: GpuMachine, check: Check) -> None:
    """Then what is on the bus is judged."""
    assert check()[:2] == (
        "pass",
        f"8 GPUs (NVIDIA H100 80GB HBM3), driver {DRIVER}; how many there should be is unknown: "
        "no metadata of cloud-init",
    )
    gpus.says(gpus.csv(range(7)))
    assert check().status == "fail"


PROMISE = "none of the {} that {} promises is on the PCI bus"
UNKNOWN = "no NVIDIA GPU on the PCI bus, and how many there should be is unknown"
NONE = "no NVIDIA GPU on the PCI bus, and none is expected"
EXPECT = "/etc/gpu-image/expect.json"


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("p5.48xlarge", "fail", PROMISE.format("8 GPUs", "machine type p5.48xlarge")),
        ({"gpus": 1}, "fail", PROMISE.format("1 GPU", EXPECT)),
        ("m7i.large", "not_run", f"{NONE}: machine type m7i.large"),
        ({"gpus": 0}, "not_run", f"{NONE}: {EXPECT}"),
        ("q9.huge", "not_run", f"{UNKNOWN}: machine type q9.huge is not in the table"),
        (None, "not_run", f"{UNKNOWN}: no metadata of cloud-init"),
        (["{"], "unknown", f"{EXPECT}: it is not a JSON object"),
    ],
)
def test_none_on_the_bus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: object, status: str, reason: str
) -> None:
    gpus = GpuMachine(tmp_path, count=0)
    if isinstance(how, str):
        gpus.machine_type(how)
    elif how is not None:
        gpus.expect(how)
    found = gpus.result(monkeypatch)
    assert (found.status, gpus.asked) == (status, 0)
    assert reason in found.reason
    memory = gpus.result(monkeypatch, "30-gpu-memory")
    assert memory.status == ("unknown" if status == "unknown" else "not_run")


def test_the_owner_can_say_that_no_gpu_is_used(gpus: GpuMachine, check: Check) -> None:
    gpus.expect({"gpus": 0})
    for place in range(8):
        gpus.device(address(place), driver="vfio-pci")
    assert check()[:2] == ("not_run", f"{EXPECT} expects none; 8 GPUs on the PCI bus not looked at")


def test_gpus_on_a_machine_type_without_are_judged_all_the_same(gpus: GpuMachine, check: Check) -> None:
    gpus.machine_type("m7i.large")
    found = check()
    assert found.status == "pass"
    assert found.data["degraded"] == ["8 GPUs on the PCI bus, more than the 0 of machine type m7i.large"]
    gpus.says(gpus.csv(range(8), gpu_recovery_action={3: "Reset"}))
    assert check().status == "fail"


def test_one_is_gone_from_the_bus(gpus: GpuMachine, check: Check) -> None:
    gpus.machine_type("p5.48xlarge")
    gpus.gone_from_bus(5)
    gpus.says(gpus.csv([0, 1, 2, 3, 4, 6, 7], count="7"))
    there = ", ".join(address(place) for place in (0, 1, 2, 3, 4, 6, 7))
    reason = f"7 of 8 GPUs on the PCI bus ({there}): machine type p5.48xlarge promises 8"
    assert check()[:2] == ("fail", reason)


@pytest.mark.parametrize(
    "said",
    [
        "GPU 0000:6B:00.0: Unknown Error",
        "GPU0000:6B:00.0: Unknown Error",
        "GPU5: 0000:6B:00.0: Unknown Error",
        "GPU 0000:6B:00.0: GPU is lost. Reboot the system to recover this GPU",
        "gpu 0000:6B:00.0: The GPU requires reset",
    ],
)
def test_one_answers_no_more(gpus: GpuMachine, check: Check, said: str) -> None:
    gpus.machine_type("p5.48xlarge")
    line = f"Unable to determine the device handle for {said}"
    gpus.says(f"{gpus.csv([0, 1, 2, 3, 4, 6, 7])}{line}\n", code=255)
    found = check()
    assert found.status == "fail"
    assert found.reason.count("6B:00.0") == 1
    assert line in found.reason
    assert address(5) not in found.reason  # it is said once


def test_two_that_nvidia_smi_does_not_even_mention(gpus: GpuMachine, check: Check) -> None:
    gpus.says(gpus.csv([0, 1, 3, 4, 5, 7], count="6"))
    gpus.device(address(2), driver=None)
    reason = f"nvidia-smi does not list {address(2)}, {address(6)}, on the PCI bus: the driver refused them"
    assert check()[:2] == ("fail", f"{reason}, see the kernel log")


def test_none_could_be_started(gpus: GpuMachine, check: Check) -> None:
    gpus.says("No devices were found\n", code=6)
    found = check()
    assert found.status == "fail"
    assert found.reason.startswith(f"nvidia-smi lists none of 8 GPUs on the PCI bus ({address(0)}, ")
    assert "the driver could not start them" in found.reason


def test_the_driver_is_not_loaded(gpus: GpuMachine, check: Check) -> None:
    (gpus.root / "sys/module/nvidia/version").unlink()
    (gpus.root / "sys/module/nvidia").rmdir()
    for place in range(8):
        gpus.device(address(place), driver=None)
    gpus.says(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
        "latest NVIDIA driver is installed and running.\n\n",
        code=9,
    )
    found = check()
    assert found.status == "fail"
    assert found.reason.startswith("the module nvidia is not loaded, so 8 GPUs cannot be used")
    gpus.image(driver=None)
    found = check()
    assert found.status == "unknown"
    assert found.reason.endswith("; image.json promises no driver")
    assert found.reason.startswith("the module nvidia is not loaded")


def test_no_nvidia_smi(gpus: GpuMachine, check: Check) -> None:
    gpus.nvidia_smi("#!/nowhere\n")
    found = check()
    assert (found.status, "nvidia-smi cannot be started" in found.reason) == ("fail", True)
    assert found.reason.endswith(f"image.json promises driver {DRIVER}")
    gpus.image(driver=None)
    found = check()
    assert found.status == "unknown"
    assert "8 GPUs on the PCI bus, and this image promises no driver" in found.reason


def test_without_image_json_nothing_is_promised(gpus: GpuMachine, check: Check) -> None:
    (gpus.root / "usr/lib/gpu-image/image.json").write_text("{")
    found = check()
    assert (found.status, found.data["driver"].get("image.json")) == ("pass", None)


def test_no_permission_is_no_fault(gpus: GpuMachine, check: Check) -> None:
    gpus.says("Failed to initialize NVML: Insufficient Permissions\n", code=4)
    assert check().status == "unknown"


@pytest.mark.parametrize("owner", ["nouveau", "vfio-pci"])
def test_another_driver_has_a_gpu(gpus: GpuMachine, check: Check, owner: str) -> None:
    gpus.device(address(2), driver=owner)
    gpus.says(gpus.csv([0, 1, 3, 4, 5, 6, 7], count="7"))
    reason = f"{owner} has taken what the driver nvidia should have: {address(2)}"
    assert check()[:2] == ("fail", reason)


@pytest.mark.parametrize("kind", ["deaf", "pipe"])
def test_nvidia_smi_hangs(
    gpus: GpuMachine, check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """Deaf to SIGTERM; or killed, while something that it started keeps its pipe open."""
    monkeypatch.setattr(gpu_answers, "ANSWER", 0.5)
    monkeypatch.setattr(tools, "KILL_GRACE", 5.0)
    pid = tmp_path / "pid"
    if kind == "deaf":
        gpus.does(f"trap '' TERM; echo $$ >{pid}; while :; do sleep 60; done")
    else:
        gpus.does(f"setsid bash -c 'echo $$ >{pid}; exec sleep 60' & sleep 60")
    found = check()
    number = int(pid.read_text())
    if kind == "pipe":
        os.kill(number, signal.SIGKILL)
    assert found.status == "unknown"
    assert found.reason.startswith("nvidia-smi: no answer within 0.5 s")
    stat = Path(f"/proc/{number}/stat")
    assert not stat.exists() or " Z " in stat.read_text() or kind == "pipe"


def test_a_hang_does_not_hide_what_is_known(
    gpus: GpuMachine, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_answers, "ANSWER", 0.1)
    gpus.machine_type("p5.48xlarge")
    gpus.gone_from_bus(1)
    gpus.does("exec sleep 60")
    found = check()
    assert (found.status, "7 of 8 GPUs on the PCI bus" in found.reason) == ("fail", True)


@pytest.mark.parametrize(
    ("module", "nvml", "libcuda", "advice"),
    [
        ("575.57.08", DRIVER, DRIVER, "the libraries were changed under the loaded module: reboot"),
        (DRIVER, "580.105.08", "580.105.08", "the libraries were changed under the loaded module: reboot"),
        (DRIVER, "580.105.08", DRIVER, "install all packages of the driver in one version"),
        ("580.105.08", "580.105.08", "580.105.08", "the image was built with another driver"),
    ],
)
def test_versions_that_differ(
    gpus: GpuMachine, check: Check, module: str, nvml: str, libcuda: str, advice: str
) -> None:
    gpus.put("sys/module/nvidia/version", f"{module}\n")
    gpus.library("libnvidia-ml", nvml)
    gpus.library("libcuda", libcuda)
    if module == nvml:
        gpus.says(gpus.csv(range(8), driver_version=module))
    else:
        text = "Failed to initialize NVML: Driver/library version mismatch\n"
        gpus.says(f"{text}NVML library version: {nvml.rpartition('.')[0]}\n", code=18)
    found = check()
    assert found.status == "fail"
    numbers = f"module {module}, libnvidia-ml {nvml}, libcuda {libcuda}, "
    assert found.reason.startswith(f"the driver's versions differ: {numbers}")
    assert f"image.json {DRIVER}" in found.reason
    assert advice in found.reason
    assert "mismatch" not in found.reason  # it is said once


def test_a_library_for_forward_compatibility_is_no_mismatch(gpus: GpuMachine, check: Check) -> None:
    gpus.put("etc/ld.so.conf", "/usr/local/cuda/compat\n")
    gpus.library("libcuda", "590.44.01", folder="usr/local/cuda/compat")
    found = check()
    assert (found.status, "libcuda" in found.data["driver"]) == ("pass", False)


def test_libraries_that_do_not_say_their_version(gpus: GpuMachine, check: Check) -> None:
    for name in ("libnvidia-ml", "libcuda"):
        library = gpus.root / LIBRARIES / f"{name}.so.1"
        library.unlink()
        library.write_text("")
    assert check().status == "pass"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu_recovery_action": {3: "Reset"}}, "GPU 3: the driver asks for a recovery action: Reset"),
        ({"remapped_rows_failure": {0: "Yes"}}, "GPU 0: a row could not be remapped"),
        ({"temperature_gpu": {7: "[GPU is lost]"}}, "GPU 7: the GPU is lost"),
        ({"ecc_errors_uncorrected_volatile_total": {7: "3"}}, "GPU 7: 3 uncorrected ECC errors"),
    ],
)
def test_a_gpu_that_says_it_is_broken(
    gpus: GpuMachine, check: Check, changes: dict[str, Any], reason: str
) -> None:
    gpus.says(gpus.csv(range(8), **changes))
    found = check()
    assert (found.status, reason in found.reason) == ("fail", True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"remapped_rows_pending": {2: "Yes"}}, "GPU 2: a row remap waits for a reset"),
        ({"clocks_event_reasons_active": {4: "0x00000000000000C8"}}, "GPU 4: the clocks are held down"),
        ({"persistence_mode": {0: "Disabled"}}, "GPU 0: persistence mode is disabled"),
        ({"temperature_gpu": {1: "91"}}, "GPU 1: too hot: 91 C"),
    ],
)
def test_a_gpu_that_gives_less_than_it_should(
    gpus: GpuMachine, check: Check, changes: dict[str, Any], reason: str
) -> None:
    gpus.says(gpus.csv(range(8), **changes))
    found = check()
    assert found.status == "pass"
    (degraded,) = found.data["degraded"]
    assert degraded.startswith(reason)


def test_what_all_gpus_say_is_said_once(gpus: GpuMachine, check: Check) -> None:
    gpus.says(gpus.csv(range(8), persistence_mode="Disabled", temperature_gpu={1: "91"}))
    hot, persistence = check().data["degraded"]
    assert persistence.startswith("GPUs 0, 1, 2, 3, 4, 5, 6, 7: persistence mode is disabled")
    assert hot.startswith("GPU 1: too hot")


def test_of_many_reasons_the_first_are_said(gpus: GpuMachine, check: Check) -> None:
    lines = "".join(
        f"Unable to determine the device handle for GPU{place}: {address(place).upper()}: Unknown Error\n"
        for place in range(8)
    )
    gpus.says(lines, code=255)
    found = check()
    assert found.status == "fail"
    assert found.reason.count("Unable to determine") == 4
    assert found.reason.endswith("; and 4 more")
    assert len(found.data["broken"]) == 8


def switches(gpus: GpuMachine, number: int) -> None:
    for place in range(number):
        gpus.device(f"0000:0{place + 5}:00.0", driver="nvidia-nvswitch", kind="0x068000")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the check, which are not made: the clock goes on by them."""
    pauses: list[float] = []
    stand_in = SimpleNamespace(sleep=pauses.append, monotonic=lambda: time.monotonic() + sum(pauses))
    monkeypatch.setattr(gpu_answers, "time", stand_in)
    return pauses


@pytest.mark.parametrize("number", [4, 0])
def test_a_fabric_that_gets_ready(gpus: GpuMachine, check: Check, clock: list[float], number: int) -> None:
    switches(gpus, number)
    nearly = {**dict.fromkeys(range(7), "Completed"), 7: "In Progress"}
    gpus.says(gpus.csv(range(8), fabric_state="Not Started"), when=1)
    gpus.says(gpus.csv(range(8), fabric_state=nearly), when=2)
    gpus.says(gpus.csv(range(8), fabric_state="Completed", fabric_status="Success"))
    found = check()
    assert (found.status, found.data["nvswitches"], gpus.asked) == ("pass", number, 3)
    assert len(clock) == 2


@pytest.mark.parametrize("number", [4, 0])
def test_a_fabric_that_never_gets_ready(
    gpus: GpuMachine, check: Check, clock: list[float], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(gpu_answers, "ASK_AGAIN", 20.0)
    switches(gpus, number)
    gpus.says(gpus.csv(range(8), fabric_state={6: "In Progress", 7: "Not Started"}))
    found = check()
    reason = "2 of 8 GPUs not registered with the NVLink fabric after 60 s"
    if number:
        assert (found.status, reason in found.reason) == ("fail", True)
    else:
        assert (found.status, reason in found.data["degraded"][0]) == ("pass", True)
    assert (gpus.asked, clock) == (4, [20.0, 20.0, 20.0])


def test_a_fabric_that_failed_is_not_waited_for(gpus: GpuMachine, check: Check) -> None:
    gpus.says(gpus.csv(range(8), fabric_state="Completed", fabric_status="Failure"))
    assert (check().status, gpus.asked) == ("fail", 1)


def test_gpus_of_another_model(gpus: GpuMachine, check: Check) -> None:
    what = "the GPUs are NVIDIA H100 80GB HBM3, not h200 as"
    gpus.machine_type("p5e.48xlarge")
    found = check()
    assert (found.status, found.data["degraded"]) == ("pass", [f"{what} machine type p5e.48xlarge says"])
    gpus.expect({"gpus": 8, "gpu": "H200"})
    assert check()[:2] == ("fail", f"{what} {EXPECT} says")


def test_a_broken_expectation_is_never_a_pass(gpus: GpuMachine, check: Check) -> None:
    gpus.expect('{"gpus": "8"}')
    found = check()
    assert found.status == "unknown"
    assert found.reason.startswith(f"{EXPECT}: 'gpus' is not")
    gpus.says(gpus.csv(range(8), gpu_recovery_action={3: "Reset"}))
    found = check()
    assert found.status == "fail"
    assert "GPU 3: the driver asks for a recovery action: Reset" in found.reason
    assert f"{EXPECT}: 'gpus' is not" in found.reason


@pytest.mark.parametrize(
    ("name", "model", "same"),
    [
        ("NVIDIA H100 80GB HBM3", "h100", True),
        ("NVIDIA A100-SXM4-40GB", "a100", True),
        ("NVIDIA A10G", "a10", False),
        ("NVIDIA A10-4Q", "a10", True),
        ("NVIDIA L40S", "l4", False),
        ("Tesla T4", "t4", True),
        ("NVIDIA T4G", "t4g", True),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx pro 6000", True),
        ("NVIDIA RTX PRO 4500 Blackwell Server Edition", "rtx pro 6000", False),
        ("NVIDIA GB200", "b200", False),
    ],
)
def test_names_and_models(name: str, model: str, same: bool) -> None:
    assert gpu_answers.is_model(name, model) is same


def test_the_deadlines_fit(the_bundle: tuple[bundle.BundleFile, ...]) -> None:
    (script,) = [file for file in the_bundle if file.path.endswith("/20-gpus")]
    grace = supervisor.TERM_GRACE + supervisor.KILL_GRACE
    deadline = scripts.deadline_in(script.content)
    longest = max(gpu_answers.ANSWER, gpu_answers.FABRIC_PATIENCE + gpu_answers.ANSWER / 2)
    assert HELP_TIMEOUT + longest + 2 * grace < deadline < runner.TOTAL_DEADLINE


@pytest.fixture
def whole(machine: Machine, the_bundle: tuple[bundle.BundleFile, ...]) -> Machine:
    """A machine with GPUs, and with both checks for the runner."""
    for file in the_bundle:
        if file.path.endswith(("/20-gpus", "/30-gpu-memory")):
            machine.check(Path(file.path).name, file.content.decode())
    return machine


def test_on_a_machine_without_gpus_the_rest_decides(whole: Machine) -> None:
    whole.result("services", "pass", 0)
    done = whole.run()
    assert (done.report["verdict"], done.code) == ("healthy", 0)
    assert done.report["reason"] == "1 of 3 checks passed, 2 not run"


def test_a_whole_machine(whole: Machine) -> None:
    """Through the runner, with all processes: degraded, then the worst fault."""
    gpus = GpuMachine(whole.root)
    whole.image["driver"] = DRIVER
    (whole.checks / "30-gpu-memory").unlink()
    gpus.machine_type("p5.48xlarge")
    gpus.says(gpus.csv(range(8), persistence_mode={0: "Disabled"}))
    done = whole.run(env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"})
    assert (done.report["verdict"], done.code) == ("degraded", 0)
    assert done.report["reason"].startswith("gpus: GPU 0: persistence mode is disabled")
    gpus.gone_from_bus(*range(8))
    done = whole.run()
    assert (done.report["verdict"], done.code) == ("unhealthy", 1)
    assert done.report["reason"].startswith("gpus: none of the 8 GPUs")
