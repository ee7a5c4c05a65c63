"""What each fault must come to: what ``gpu-boot-check`` says of the machine, and what ``inv validate``.

One table for process tests, the machine reached by SSH and the virtual machine, so that they cannot differ
unseen. The verdicts are those of docs/boot-checks.md and docs/validation.md, not of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.gpu_sim import vm
from tests.gpu_sim.scenario import KINDS

#: The machine that has the fault.
MACHINE: Mapping[str, Any] = {
    "gpus": 8,
    "model": "h100-sxm",
    "machine_type": "p5.48xlarge",
    "expect": {"gpus": 8, "gpu": "h100"},
    "health_watches": True,
}
FINE = "healthy", "checks passed"


@dataclass(frozen=True)
class Row:
    """A machine with faults, and (verdict, words of the reason) of each of the two judges."""

    faults: tuple[Mapping[str, Any], ...]
    boot: tuple[str, str]
    gate: tuple[str, str]
    #: Only a virtual machine can do it: a process in state D.
    kernel: bool = False
    #: Of the boot checks of an image that promises no driver (``"driver": null``).
    without_promise: tuple[str, str] | None = None
    #: It takes a deadline: 10 s of tries of cuInit, a minute of silence.
    slow: bool = False

    @property
    def diag_level(self) -> int:
        """Of the gate: the first that runs the test ``memory``; none where it would take its deadline."""
        return 0 if any(fault["kind"] == "hung" for fault in self.faults) else 2

    @property
    def name(self) -> str:
        """For pytest's id."""
        parts = ["-".join([one["kind"], *map(_word, list(one.items())[1:])]) for one in self.faults]
        return "+".join(parts) or "healthy"


def _word(option: tuple[str, Any]) -> str:
    return f"{option[0]}={str(option[1]).replace(' ', '_').replace('/', '_')}"[:40]


def row(
    kind: str,
    boot: tuple[str, str],
    gate: tuple[str, str],
    *,
    kernel: bool = False,
    without_promise: tuple[str, str] | None = None,
    slow: bool = False,
    **options: Any,
) -> Row:
    """A machine with one fault."""
    return Row(({"kind": kind, **options},), boot, gate, kernel, without_promise, slow or kind == "hung")


HEALTHY = Row((), FINE, FINE)
GONE = "0000:5b:00"  # where GPU 3 is

ROWS: list[Row] = [
    # The bus and the driver
    row("lost", ("unhealthy", GONE), ("unhealthy", GONE), gpu=3),
    row("lost", ("unhealthy", GONE), ("unhealthy", GONE), gpu=3, rows="only"),
    row(
        "lost",
        ("unhealthy", "a GPU does not answer"),
        ("unhealthy", "fail gpu.count"),
        slow=True,
        gpu="all",
    ),
    row("lost", ("unhealthy", "7 of 8"), ("unhealthy", "7 of 8 GPUs are on the bus"), gpu=3, bus=False),
    row("count_short", ("unhealthy", "6 of 8"), ("unhealthy", "6 of 8 GPUs are on the bus"), by=2),
    row("count_short", ("unhealthy", "none of the 8"), ("unhealthy", "0 of 8 GPUs are on the bus"), by=8),
    row("count_short", ("unhealthy", "7 of 8"), ("unhealthy", "fallen off bus"), gpu=3, log=True),
    row(
        "no_devices",
        ("unhealthy", "lists none of 8 GPUs"),
        ("unhealthy", "the driver has no GPU, 8 expected"),
        slow=True,
    ),
    row(
        "driver_not_loaded",
        ("unhealthy", "not loaded"),
        ("unhealthy", "fail gpu.driver"),
        without_promise=("unknown", "not loaded"),
    ),
    row("version_mismatch", ("unhealthy", "575.57.08"), ("unhealthy", "module 575.57.08")),
    row("nvml_fails", ("unknown", "Unknown Error"), ("unknown", "Unknown Error"), code=999),
    row("nvml_fails", ("unhealthy", "GPU"), ("unhealthy", "gpu.answers"), code=15),
    # Programs
    row("hung", ("unknown", "no answer"), ("unknown", "nvidia-smi: no answer")),
    row("hung", ("unknown", "no answer"), ("unknown", "no answer"), ignores_sigterm=True, holds_pipes=True),
    row("hung", FINE, ("unknown", "unknown dcgm.field_1001"), program="dcgmi"),
    row("hung", ("unknown", "gpu-memory"), ("unknown", "gpu.memory"), program="cuInit"),
    row("hung", ("unknown", "no answer"), ("unknown", "no answer"), kernel=True, blocks_on=vm.FROZEN_FILE),
    row("slow", FINE, FINE, seconds=2),
    row(
        "missing",
        ("unhealthy", "nvidia-smi"),
        ("unknown", "nvidia-smi"),
        without_promise=("unknown", "nvidia-smi"),
    ),
    row("missing", FINE, ("healthy", "dcgmi is not installed"), program="dcgmi"),
    row(
        "missing",
        ("unhealthy", "libcuda.so.1"),
        ("unhealthy", "no version of libcuda.so.1"),
        without_promise=("unknown", "libcuda.so.1"),
        program="libcuda",
    ),
    row(
        "missing",
        ("unhealthy", "libnvidia-ml"),
        ("unhealthy", "libnvidia-ml"),
        program="libnvidia-ml",
    ),
    row("unknown_field", FINE, FINE, fields=["gpu_recovery_action"]),
    # What nvidia-smi says of a GPU
    row(
        "persistence_off",
        ("degraded", "persistence mode"),
        ("unhealthy", "persistence mode is off"),
    ),
    row("row_remap", ("unhealthy", "remap"), ("unhealthy", "fail gpu.row_remap"), gpu=3, failure=True),
    row("row_remap", ("degraded", "remap"), ("unhealthy", "fail gpu.row_remap"), gpu=3, pending=True),
    row("ecc", ("unhealthy", "uncorrected"), ("unhealthy", "fail gpu.ecc"), gpu=3, uncorrected=2),
    row("ecc", ("unhealthy", "SRAM"), ("unhealthy", "fail gpu.ecc"), gpu=3, sram_threshold=True),
    row("ecc", FINE, FINE, gpu=3, corrected=5),
    row("throttle", ("degraded", "slowdown"), ("unhealthy", "fail gpu.event_reasons"), gpu=3, mask=0x48),
    row("throttle", FINE, FINE, gpu=3, mask=0x04),
    row("hot", ("degraded", "C"), ("unhealthy", "fail gpu.temperature"), gpu=3),
    row("recovery_action", ("unhealthy", "Reboot"), ("unhealthy", "Reboot"), gpu=3, action="Reboot"),
    row("inforom_corrupt", ("degraded", "infoROM"), ("degraded", "infoROM"), gpu=3),
    row("mig", FINE, ("unknown", "dcgm.diag"), gpu=3),
    # The check of the link says degraded, DCGM's test `pcie` fails.
    row("pcie_link", ("degraded", "x8"), ("unhealthy", "fail dcgm.diag"), gpu=3, width=8),
    row("fabric", ("unhealthy", "fabric"), ("unhealthy", "SYSTEM_NOT_READY"), slow=True),
    row(
        "fabric",
        ("unhealthy", "fabric"),
        ("unhealthy", "fail nvswitch.fabric"),
        state="Completed",
        status="Insufficient Resources",
        slow=True,
    ),
    # The kernel's log: no business of the boot checks
    row("xid", FINE, ("unhealthy", f"Xid 79 at {GONE}"), gpu=3, code=79),
    row("xid", FINE, ("degraded", f"Xid 31 at {GONE}"), gpu=3, code=31),
    row("log_line", FINE, FINE, text="NVRM: a line that is no fault"),
    # CUDA
    row("cuinit_fails", FINE, FINE, times=1),
    row("cuinit_fails", ("unhealthy", "cuInit"), ("unhealthy", "fail gpu.memory"), slow=True, times=100000),
    row(
        "cuda_error",
        ("unhealthy", "cuMemcpyDtoD"),
        ("unhealthy", "cuMemcpyDtoD"),
        function="cuMemcpyDtoD_v2",
        code=700,
    ),
    row("memory_miscompare", ("unhealthy", "came back wrong"), ("unhealthy", "came back wrong"), gpu="all"),
    row("out_of_memory", ("unknown", "free memory"), ("unknown", "too little free memory"), gpu="all"),
    row("cuda_fewer", ("unhealthy", "7 of 8"), ("unhealthy", "CUDA shows 7 of 8 GPUs")),
    # DCGM: the boot checks do not use it
    row("no_host_engine", FINE, ("unknown", "dcgm.diag"), embedded=False),
    row("no_host_engine", FINE, ("unknown", "dmon printed no value")),
    row("profiling", FINE, ("unknown", "unknown dcgm.field_1001")),
    row("diag_busy", FINE, ("unknown", "unknown dcgm.diag")),
    row("diag_error", FINE, ("unknown", "unknown dcgm.diag")),
    row("diag_fails", FINE, ("unhealthy", "fail dcgm.diag"), gpu=3),
    row("diag_passes_with_error", FINE, ("unhealthy", "fail dcgm.diag"), gpu=3),
    row("diag_skipped", FINE, ("unknown", "unknown dcgm.diag")),
    row("diag_not_run", FINE, ("unknown", "unknown dcgm.diag"), tests=["memory"], gpu=[3]),
    row("health", FINE, ("unhealthy", "fail dcgm.health"), gpu=3),
    row("health", FINE, ("degraded", "MMU Error"), gpu=3, result="Warning", xid=31),
]  # fmt: skip

assert {fault["kind"] for one in ROWS for fault in one.faults} == set(KINDS)
