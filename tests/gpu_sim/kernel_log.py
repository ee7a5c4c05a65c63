"""The kernel's log of a scenario, in the forms of the driver's version (kernel_rc.c of the open driver)."""

from __future__ import annotations

import itertools
from typing import Any

from tests.gpu_sim import state, tables
from tests.gpu_sim.scenario import Scenario, hit

#: Message of an Xid, after "NN, ": those of the open driver's sources and of public logs.
XIDS = {
    13: "Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_8 faulted @ 0x73ac_1c000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
    43: "Ch 00000008",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr "
    "0x18f31d80 partition 16, subpartition 3.",
    63: "Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate.",
    64: "Row Remapper Error: (0x00000002eebc4100) - All reserved rows for bank are remapped",
    74: "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: FBHUB. RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) "
    "(0x20802a02 0x8).",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}
#: What nvidia-smi calls an action, and Xid 154 (NVML_GPU_RECOVERY_ACTION_* in nvml.h).
ACTIONS = {
    "reset": "0x1 (GPU Reset Required)",
    "reboot": "0x2 (Node Reboot Required)",
    "drain p2p": "0x3 (Drain P2P)",
    "drain and reset": "0x4 (Drain and Reset)",
}


def lines(scenario: Scenario) -> list[str]:
    """The text of each record, without time and level: the driver's start, then what the faults leave."""
    version = state.module_version(scenario)
    found = [f"Linux version 6.12.0-gpu-sim (gpu-sim) #1 SMP for {scenario.gpus} simulated GPUs"]
    if version:
        found.append(
            f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (gpu-sim)"
        )
    for fault in scenario.faults:
        found += _of(scenario, fault)
    return found


def dmesg(scenario: Scenario) -> str:
    """The log as ``dmesg`` prints it: further lines of a record are indented as far as its text."""
    times = (f"[{12 + place * 0.25:12.6f}] " for place in itertools.count())
    return "".join(
        time + line.replace("\n", "\n" + " " * len(time)) + "\n"
        for time, line in zip(times, lines(scenario), strict=False)
    )


def kmsg(scenario: Scenario) -> list[str]:
    """What to write to /dev/kmsg, one record a write, with the driver's level (4)."""
    return [f"<4>{line}" for line in lines(scenario)[1:]]


def xid(scenario: Scenario, place: int, code: int, text: str | None = None) -> str:
    """One Xid line as this driver writes it."""
    bus = state.Gpu(place, place, None).pci.rsplit(".", 1)[0]
    unknown = "" if tables.branch(scenario.driver) >= 570 else "pid='<unknown>', name=<unknown>, "
    message = XIDS.get(code, "") if text is None else text
    return f"NVRM: Xid (PCI:{bus}): {code}" + (f", {unknown}{message}" if message else "")


def _of(scenario: Scenario, fault: Any) -> list[str]:
    kind = fault["kind"]
    filled = next(item for item in scenario.having(kind) if all(item[key] == fault[key] for key in fault))
    places = hit(filled, scenario.gpus)
    if kind == "xid":
        return [xid(scenario, place, filled["code"], filled["text"]) for place in places]
    if kind == "log_line":
        return [filled["text"]]
    if not filled.get("log"):
        return []
    if kind == "lost":
        return [
            line
            for place in places
            for line in (
                xid(scenario, place, 79),
                f"NVRM: GPU {state.Gpu(place, place, None).pci}: GPU has fallen off the bus.",
            )
        ]
    if kind == "count_short":
        return [_fell_off_at_probe(scenario, place) for place in state.gone_places(scenario)]
    if kind == "row_remap":
        codes = [63] * bool(filled["pending"]) + [64] * bool(filled["failure"])
        return [xid(scenario, place, code) for place in places for code in codes]
    if kind == "ecc" and filled["uncorrected"]:
        return [xid(scenario, place, 48) for place in places]
    if kind == "recovery_action" and tables.branch(scenario.driver) >= 565:
        target = ACTIONS[filled["action"].lower()]
        text = f"GPU recovery action changed from 0x0 (None) to {target}"
        return [xid(scenario, place, 154, text) for place in places]
    if kind == "version_mismatch":
        return [
            "NVRM: API mismatch: the client 'nvidia-smi' (pid 812)\n"
            f"NVRM: has the version {scenario.driver}, but\n"
            f"NVRM: this kernel module has the version {filled['module']}.  Please\n"
            "NVRM: make sure that this kernel module and all NVIDIA driver\n"
            "NVRM: components have the same version."
        ]
    return []


def _fell_off_at_probe(scenario: Scenario, place: int) -> str:
    """Three lines in one record and no Xid (NVIDIA/NVSentinel issue 155)."""
    gpu, device = state.Gpu(place, place, None), scenario.hardware["device_id"].lower()
    return (
        f"NVRM: The NVIDIA GPU {gpu.pci}\nNVRM: (PCI ID: 10de:{device}) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands."
    )
