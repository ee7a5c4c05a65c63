"""The scenario in the flat form that the two C libraries read, ``cuda.conf``."""

from __future__ import annotations

from tests.gpu_sim import state, tables
from tests.gpu_sim.scenario import Scenario, hit
from tests.gpu_sim.state import Gpu


def conf(scenario: Scenario) -> str:
    """The scenario as the C libraries read it; ``native/sim.c`` knows the keys."""
    version = tables.cuda_version(scenario.driver).split(".")
    known = state.gpus(scenario)
    visible = state.cuda(scenario)
    lines = [
        "# written by tests/gpu_sim/cuda.py",
        f"driver={scenario.driver}",
        f"nvml=13.{scenario.driver}",
        f"cuda_version={int(version[0]) * 1000 + int(version[1]) * 10}",
        f"init_code={_init_code(scenario)}",
        f"nvml_code={_nvml_code(scenario)}",
    ]
    if scenario.one("no_devices"):
        known, visible = [], []
    for gpu in known:
        lines += _gpu_conf(scenario, gpu)
    lines += [f"cuda_gpu={gpu.index}" for gpu in visible]
    order = {gpu.place: number for number, gpu in enumerate(visible)}
    for fault in scenario.having("cuinit_fails"):
        chance, times = fault["probability"] or 0, 1 if fault["times"] is None else fault["times"]
        lines.append(f"flaky={fault['code']} {times} {chance} {fault['seed']} {int(fault['sticky'])}")
    for fault in scenario.having("memory_miscompare"):
        lines += [
            f"miscompare={order[gpu]} {fault['offset']} {fault['mask']:x} {fault['path']}"
            for gpu in hit(fault, scenario.gpus)
            if gpu in order
        ]
    for fault in scenario.having("cuda_error"):
        gpu, times = fault["gpu"], fault["times"]
        place = -1 if gpu is None else order.get(gpu, 99)
        lines.append(f"error={fault['function']} {fault['code']} {place} {-1 if times is None else times}")
    for fault in scenario.having("slow"):
        if fault["program"] == "cuInit":
            lines.append(f"slow={fault['seconds']}")
    for fault in scenario.having("hung"):
        if fault["program"] == "cuInit":
            lines.append(f"hangs=1 {int(fault['ignores_sigterm'])}")
            lines += [f"hang_blocks_on={fault['blocks_on']}"] * bool(fault["blocks_on"])
    waits = [wait for gpu in visible if (wait := state.fabric_of(scenario, gpu))]
    if waits:
        ever = any(wait["seconds"] is None for wait in waits)
        lines.append(f"fabric={-1 if ever else max(wait['seconds'] for wait in waits)}")
    return "\n".join(lines) + "\n"


def _gpu_conf(scenario: Scenario, gpu: Gpu) -> list[str]:
    model, key = scenario.hardware, f"gpu.{gpu.index}."
    lines = [
        f"{key}name={model['name']}",
        f"{key}uuid={gpu.uuid}",
        f"{key}pci={gpu.pci}",
        f"{key}ids={model['device_id']} {model['subsystem_id']}",
        f"{key}memory={model['memory_mib'] << 20} {model['reserved_mib'] << 20}",
        f"{key}compute={model['compute']}",
    ]
    if gpu.lost:
        lines.append(f"{key}nvml_error={ {'unknown': 999, 'lost': 15, 'reset': 16}[gpu.lost['says']] }")
    mig = scenario.on("mig", gpu.place)
    if mig and mig["instances"]:
        lines.append(f"{key}mig={gpu.mig_uuid}")
    full = scenario.on("out_of_memory", gpu.place)
    if full:
        lines.append(f"{key}free_at_most={full['free_mib'] << 20}")
    return lines


def _init_code(scenario: Scenario) -> int:
    for kind in ("driver_not_loaded", "version_mismatch", "no_devices"):
        fault = scenario.one(kind)
        if fault:
            return int(fault["cuda"])
    if any(gpu.lost and gpu.lost["cuda"] == "fails" for gpu in state.gpus(scenario)):
        return 999
    return 0


def _nvml_code(scenario: Scenario) -> int:
    fails = scenario.one("nvml_fails")
    if scenario.one("driver_not_loaded"):
        return 9
    if scenario.one("version_mismatch"):
        return 18
    return int(fails["code"]) if fails else 0
