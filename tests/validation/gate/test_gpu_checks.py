"""The GPU checks on simulated machines: green on healthy ones, and each seen to fail for its fault."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from images.manifest import codec
from images.manifest.documents import Release
from tests.gpu_sim import tables
from tests.gpu_sim.fixtures import GpuMachine, gpu_libraries, gpu_machine
from tests.images.manifest.examples import DATA
from tests.validation.gate import gate
from validation.gate import checks, dcgm_figures, gpu_facts, gpu_readers, results
from validation.gate.checks import Level, NotRun, Result, Unknown
from validation.gate.gpu_facts import Gpus
from validation.gate.probes import Output

__all__ = ["gpu_libraries", "gpu_machine"]

Make = Callable[..., GpuMachine]
UNITS = "ssh.service loaded active running x\n{fm} loaded {state} running x\n"
FM = "nvidia-fabricmanager.service"
LOG = "/usr/share/gpu-sim/kernel.log"
#: One record of three lines (NVIDIA/NVSentinel#155).
OFF_THE_BUS = """NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands."""


class Expected(dict[str, Any]):
    """``expected.json`` of a GPU machine."""

    @property
    def gpu(self) -> dict[str, Any]:
        found: dict[str, Any] = self["gpu"]
        return found


@dataclass
class Probed:
    """What the probes print on a machine that is laid out in a folder; each is run once, when it is read."""

    machine: GpuMachine
    expected: Expected
    units: str = UNITS.format(fm=FM, state="active")
    outputs: dict[str, Output] = field(default_factory=dict)

    def output(self, name: str) -> Output:
        if name not in self.outputs:
            self.outputs[name] = self._run(name)
        return self.outputs[name]

    def _run(self, name: str) -> Output:
        root = self.machine.root
        level = str(self.expected.gpu["diag_level"])
        commands = {
            "gpu_facts": [sys.executable, "-BS", "-m", "validation.gpu_facts"],
            "gpu_memory": [sys.executable, "-BS", "-m", "validation.cuda", "--json", f"--root={root}"],
            "gpu_kernel_log": [sys.executable, "-BS", "-m", "validation.kernel_log", f"{root}{LOG}"],
            "dcgm_diag": [f"{root}/usr/bin/dcgmi", "diag", "-r", level, "-j"],
            "dcgm_field_1001": [f"{root}/usr/bin/dcgmi", "dmon", "-e", "1001", "-c", "3"],
            "dcgm_health": [f"{root}/usr/bin/dcgmi", "health", "-c", "-j"],
        }  # fmt: skip
        env = {"PATH": f"{root}/usr/bin:/usr/bin:/bin", "GPU_IMAGE_ROOT": str(root), "LC_ALL": "C"}
        if name == "units":
            return Output(self.units, 0, 0.0)
        if name == "dcgm_diag" and level == "0":
            return Output("", 126, 0.0)
        if not Path(commands[name][0]).exists():
            return Output("", 127, 0.0)
        done = subprocess.run(
            commands[name], cwd=gate.CHECKOUT, env=env, capture_output=True, text=True, check=False
        )
        return Output(done.stdout + done.stderr, done.returncode, 0.0)

    def text(self, name: str) -> str:
        output = self.output(name)
        if output.code:
            raise Unknown(f"{name} ended with code {output.code}: {output.text[-300:]}")
        return output.text

    def gpus(self) -> Gpus:
        return gpu_facts.read(self.text("gpu_facts"), count=self.expected.gpu.get("count"))


def run(id: str, machine: Probed) -> tuple[str, str]:
    """The check's result and reason, as the gate would write them."""
    remarks = checks.new_remarks()
    try:
        gate.call(
            id,
            machine=machine,
            gpus=machine.gpus(),
            expected=machine.expected,
            **PARAMETERS.get(id, {}),
        )
    except AssertionError as error:
        return "fail", str(error).splitlines()[0]
    except NotRun as error:
        return "not_run", str(error)
    except Unknown as error:
        return "unknown", str(error)
    return ("degraded", "; ".join(remarks.degraded)) if remarks.degraded else ("pass", "")


def expecting(**gpu: Any) -> Expected:
    return Expected(gpu={"diag_level": 1, "driver": "580.95.05", **gpu})


#: What pytest's parametrization hands to the checks that share a function.
PARAMETERS: dict[str, dict[str, Any]] = {
    **{id: {"prefixes": prefixes} for id, prefixes in gpu_readers.FIELDS.items()},
    **{f"dcgm.{metric}": {"metric": metric} for metric in dcgm_figures.METRICS},
}


@dataclass(frozen=True)
class Case:
    """A machine and what the check says of it."""

    reason: str
    faults: tuple[Mapping[str, Any], ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    expects: Mapping[str, Any] = field(default_factory=dict)
    result: str = "fail"
    units: str | None = None


def fault(kind: str, **options: Any) -> tuple[Mapping[str, Any], ...]:
    return ({"kind": kind, **options},)


H100 = {"gpus": 8, "model": "h100-sxm", "machine_type": "p5.48xlarge"}
ONE = {"gpus": 1, "model": "h100-sxm"}
WATCHED = {**ONE, "health_watches": True}

NEGATIVE: dict[str, list[Case]] = {
    "gpu.count": [
        Case("7 of 8 GPUs are on the bus", fault("count_short"), H100),
        Case("0000:5b:00 is on the bus and nvidia-smi does not list it", fault("lost", gpu=3), H100),
        Case("NVML cannot be initialized", fault("nvml_fails", code=999), H100, result="unknown"),
        Case("8 of 7 GPUs are on the bus (the gate's options)", machine=H100, expects={"count": 7}),
    ],
    "gpu.driver": [
        Case("the kernel module nvidia is not loaded", fault("driver_not_loaded"), ONE),
        Case("module 575.57.08, libnvidia-ml.so.1 580.95.05", fault("version_mismatch"), ONE),
        Case("the image promises 570.1.1", machine=ONE, expects={"driver": "570.1.1"}),
        Case("no version of libcuda.so.1", fault("missing", program="libcuda"), ONE),
    ],
    "gpu.answers": [
        Case("", fault("lost", gpu=3, says="lost"), H100),
        Case("", fault("no_devices"), ONE),
        Case("nvidia-smi", fault("missing"), ONE, result="unknown"),
    ],
    "gpu.recovery_action": [Case("", fault("recovery_action", action="Reset"), ONE)],
    "gpu.ecc": [
        Case("", fault("ecc", uncorrected=3), ONE),
        Case("", fault("ecc", sram_threshold=True), ONE),
    ],
    "gpu.row_remap": [
        Case("", fault("row_remap", failure=True), ONE),
        Case("", fault("row_remap", pending=True), ONE),
    ],
    "gpu.event_reasons": [
        Case("", fault("throttle", mask=0x48), ONE),
        Case("", fault("throttle", mask=0x80), ONE),
    ],
    "gpu.temperature": [Case("", fault("hot", celsius=95), ONE)],
    "gpu.persistence": [Case("persistence mode is off: GPU 0", fault("persistence_off"), ONE)],
    "gpu.pcie_link": [
        Case("has 8 of 16 lanes", fault("pcie_link", width=8), ONE, result="degraded"),
    ],
    "gpu.memory_size": [Case("floor 81559 MiB", machine={**ONE, "memory_mib": 70000})],
    "gpu.memory": [
        Case("came back wrong", fault("memory_miscompare", gpu=3, path="DtoD"), H100),
        Case("CUDA shows 7 of 8 GPUs", fault("cuda_fewer"), H100),
        Case("too little free memory", fault("out_of_memory"), ONE, result="unknown"),
        Case("CUDA has none", fault("cuinit_fails", code=100, times=1000), ONE),
    ],
    "gpu.kernel_log": [
        Case("Xid 79 at 0000:5b:00", fault("xid", gpu=3, code=79), H100),
        Case("fallen off bus", fault("log_line", text=OFF_THE_BUS), ONE),
        Case("Xid 31", fault("xid", code=31), ONE, result="degraded"),
    ],
    "dcgm.diag": [
        Case("memory", fault("diag_fails", test="memory", gpu=3), H100, {"diag_level": 2}),
        Case("", fault("diag_passes_with_error"), H100, {"diag_level": 2}),
        Case("", fault("diag_skipped"), H100, {"diag_level": 2}, "unknown"),
        Case("", fault("diag_busy"), H100, {"diag_level": 2}, "unknown"),
        Case("dcgmi is not installed", fault("missing", program="dcgmi"), ONE, {}, "not_run"),
        Case("no diagnostic was asked for", (), ONE, {"diag_level": 0}, "not_run"),
    ],
    "dcgm.field_1001": [
        Case("dmon printed no value", fault("no_host_engine"), ONE, result="unknown"),
        Case("", fault("profiling"), ONE, result="unknown"),
        Case("no value of GPU 0", fault("profiling", status=0), ONE, result="unknown"),
        Case("dcgmi is not installed", fault("missing", program="dcgmi"), ONE, result="not_run"),
    ],
    "dcgm.health": [
        Case("GPU 3 has fallen off the bus", fault("health", gpu=3), {**H100, "health_watches": True}),
        Case("MMU Error", fault("health", xid=31, result="Warning"), WATCHED, result="degraded"),
        Case("nobody watches this machine by DCGM: the health watches", (), ONE, result="not_run"),
        Case("no host engine answers", fault("no_host_engine"), ONE, result="not_run"),
        Case("dcgmi is not installed", fault("missing", program="dcgmi"), ONE, result="not_run"),
    ],
    "dcgm.pcie_h2d_gb_s": [Case("recorded only", (), ONE, {"diag_level": 2}, "not_run")],
    "dcgm.pcie_d2h_gb_s": [Case("DCGM measures it from level 2 on", (), ONE, {}, "not_run")],
    "dcgm.memory_bandwidth_gb_s": [Case("DCGM measures it from level 3 on", (), ONE, {}, "not_run")],
    "dcgm.targeted_stress_gflops": [
        Case("10000 GFLOPS, floor", (), {**ONE, "figures": {"stress": 10000}}, {"diag_level": 3})
    ],
    "dcgm.targeted_power_w": [
        Case("300 W, floor", (), {**ONE, "figures": {"power_max": 300.0}}, {"diag_level": 3})
    ],
    "nvswitch.fabric": [
        Case("is not ready (In Progress)", fault("fabric"), H100, result="unknown"),
        Case("fabric", fault("fabric", state="Completed", status="Insufficient Resources"), H100),
        Case("fabricmanager.service is failed", machine=H100, units=UNITS.format(fm=FM, state="failed")),
        Case("no nvidia-fabricmanager.service", machine=H100, units=UNITS.format(fm="a.b", state="active")),
        Case("no NVSwitch on the PCI bus", machine={"gpus": 1, "model": "l4"}, result="not_run"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("id", "case"),
    [
        pytest.param(id, case, id=f"{id}-{number}")
        for id, cases in NEGATIVE.items()
        for number, case in enumerate(cases)
    ],
)
def test_each_check_is_seen_to_fail(id: str, case: Case, gpu_machine: Make) -> None:
    made = gpu_machine(*case.faults, **case.machine)
    machine = Probed(made, expecting(**case.expects), *([case.units] if case.units else []))
    result, reason = run(id, machine)
    assert result == case.result, reason
    assert case.reason in reason
    assert reason or result == "pass"


GPU_CHECKS = [id for id, (check, _) in gate.checks().items() if check.tier is not checks.Tier.ANY_VM]


@pytest.mark.parametrize("id", GPU_CHECKS)
def test_each_check_asks_what_the_gpus_are(id: str) -> None:
    """Where there are none it is not run, and on simulated ones its result is not called hardware's."""
    assert "gpus" in inspect.signature(gate.checks()[id][1]).parameters


@pytest.mark.parametrize("model", tables.models())
def test_a_healthy_machine_passes(model: str, gpu_machine: Make) -> None:
    """Every check passes or has nothing to judge; only figures without a floor are not run."""
    machine = Probed(gpu_machine(gpus=2, model=model), expecting(count=2, diag_level=2))
    found = {id: run(id, machine) for id in GPU_CHECKS}
    assert {word for word, _ in found.values()} <= {"pass", "not_run"}, found
    for id in ("gpu.count", "gpu.driver", "gpu.answers", "gpu.memory", "gpu.kernel_log", "dcgm.diag"):
        assert found[id] == ("pass", ""), found[id]


def test_the_level_is_simulated_and_the_family_known(gpu_machine: Make) -> None:
    gpus = Probed(gpu_machine(**H100), expecting()).gpus()
    assert gpus.level is Level.GPU_SIMULATED
    assert gpus.families == {"h100": 8}
    assert gpus.machine_type == "p5.48xlarge, NVIDIA H100 80GB HBM3"


def test_without_gpus_nothing_is_run_and_expected_ones_are_missed(gpu_machine: Make) -> None:
    text = Probed(gpu_machine(gpus=0), expecting()).text("gpu_facts")
    facts = {**json.loads(text), "module": {"loaded": False, "version": None}}
    with pytest.raises(NotRun, match="no NVIDIA GPU on the PCI bus"):
        gpu_facts.read(json.dumps(facts), count=None)
    assert gpu_facts.read(json.dumps(facts), count=8).expected.count == 8


def test_a_release_takes_what_gpu_checks_say() -> None:
    """Their remarks are part of the release: a build on a GPU machine must be able to publish them."""
    about = "gpu.pcie_link", "gpu", "gpu_hardware", Result.PASS, None, 0.1, "ab" * 32
    entry = results.Entry(*about, ["8 of 16 lanes"], {"links": {"a": 1.0}})
    gate_ = {**entry.as_json(), "phase": "first_boot", "image": "i", "machine": "m"}
    found = codec.make(Release, {**DATA, "gates": [gate_]}).gates[0]
    assert (found.degraded, found.data) == (["8 of 16 lanes"], {"links": {"a": 1.0}})
