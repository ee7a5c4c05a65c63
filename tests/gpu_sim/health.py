"""What DCGM's health watches have seen (NVIDIA/DCGM v4.6.0 modules/health/DcgmHealthWatch.cpp)."""

from __future__ import annotations

from typing import Any

from tests.gpu_sim import errors, state
from tests.gpu_sim.scenario import Scenario, hit
from tests.gpu_sim.state import Gpu

#: Xids that DCGM's health finds worst: their system is "all", which dcgmi prints as "Internal error".
DEVASTATING = {
    48: "Double Bit ECC Error",
    74: "NVLink Critical Error",
    79: "GPU %d has fallen off the bus",
    95: "GPU had an uncontained error (XID 95)",
    119: "GSP RPC Timeout",
    120: "GSP Error",
    140: "ECC unrecovered error",
}
#: Xids of one system: name of the system, result, message.
OF_A_SYSTEM = {
    31: ("Memory system", "Warning", "MMU Error"),
    38: ("PCIe system", "Warning", "PCIe Bus Error"),
    43: ("Memory system", "Warning", "Reset Channel Verif Error"),
    62: ("Thermal system", "Warning", "Thermal Violation"),
    63: ("Memory system", "Warning", "A pending retired page has been detected in GPU {gpu}."),
    64: ("Memory system", "Failure", "GPU {gpu} had uncorrectable memory errors and row remapping failed."),
    121: ("NVLINK system", "Warning", "C2C Link corrected error"),
}


def incidents(scenario: Scenario, seen: list[Gpu]) -> list[dict[str, Any]]:
    """What the health watches have seen: GPU, system, result, text; ordered as DCGM reports them."""
    found = []
    for gpu in seen:
        for fault in scenario.having("health"):
            if gpu.place in hit(fault, scenario.gpus):
                found.append(_told_incident(gpu, fault))
        for fault in scenario.having("xid"):
            incident = _xid_incident(gpu, fault["code"]) if gpu.place in hit(fault, scenario.gpus) else None
            if incident:
                found.append(incident)
        found += _own_incidents(scenario, gpu)
    return found


def _told_incident(gpu: Gpu, fault: dict[str, Any]) -> dict[str, Any]:
    if fault["text"]:
        system = fault["system"] or "Internal error"
        return {"gpu": gpu.index, "system": system, "result": fault["result"], "text": fault["text"]}
    incident = _xid_incident(gpu, fault["xid"])
    if incident is None:
        said = errors.warning(101, gpu, fault["xid"])["warning"]
        incident = {"gpu": gpu.index, "system": "Internal error", "result": fault["result"], "text": said}
    return {
        **incident,
        **({"system": fault["system"]} if fault["system"] else {}),
        "result": fault["result"],
    }


def _xid_incident(gpu: Gpu, code: int) -> dict[str, Any] | None:
    number = {79: 120, 64: 80}.get(code, 101)
    said = errors.warning(number, gpu, code)["warning"]
    if code in DEVASTATING:
        text = f"{said}  (triggered by XID {code}: {DEVASTATING[code]})"
        return {"gpu": gpu.index, "system": "Internal error", "result": "Failure", "text": text}
    if code in OF_A_SYSTEM:
        system, outcome, name = OF_A_SYSTEM[code]
        text = f"{said}  (triggered by XID {code}: {name.format(gpu=gpu.index)})"
        return {"gpu": gpu.index, "system": system, "result": outcome, "text": text}
    return None


def _own_incidents(scenario: Scenario, gpu: Gpu) -> list[dict[str, Any]]:
    found: list[tuple[str, str, int, Any]] = []
    ecc = scenario.on("ecc", gpu.place)
    if ecc and ecc["uncorrected"]:
        found.append(("Memory system", "Failure", 4, ecc["uncorrected"]))
    remap = scenario.on("row_remap", gpu.place)
    if remap and remap["failure"]:
        found.append(("Memory system", "Failure", 80, None))
    elif remap and remap["pending"]:
        found.append(("Memory system", "Warning", 85, None))
    action = scenario.on("recovery_action", gpu.place)
    if action and errors.version(scenario) >= (4, 5):
        number = {"reset": 125, "reboot": 126, "drain p2p": 127, "drain and reset": 128}[
            action["action"].lower()
        ]
        found.append(("Driver", "Warning" if number == 127 else "Failure", number, None))
    fabric = state.fabric_of(scenario, gpu)
    if fabric and fabric["seconds"] is None and errors.version(scenario) >= (4, 5):
        waits = fabric["state"] == "In Progress"
        found.append(("NVLINK system", "Warning" if waits else "Failure", 123, fabric["state"]))
    return [
        {
            "gpu": gpu.index,
            "system": system,
            "result": outcome,
            "text": errors.warning(number, gpu, detail)["warning"],
        }
        for system, outcome, number, detail in found
    ]
