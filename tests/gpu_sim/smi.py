"""What nvidia-smi has to say: one value a field and GPU, and what it says instead when the driver cannot.

The values of a healthy GPU are those of the captures that ``models.json`` names. "N/A" with and without
brackets is as in the captures of 580.173.02 and 595.80: fabric, health of the fabric, T.Limit and memory
temperature have none.
"""

from __future__ import annotations

from typing import Any

from tests.gpu_sim import state, tables
from tests.gpu_sim.scenario import Scenario
from tests.gpu_sim.state import Gpu

NA = "[N/A]"
DEPRECATED = "[Requested functionality has been deprecated]"
NO_FABRIC_ID = "00000000-0000-0000-0000-000000000000"

#: Bits of clocks_event_reasons.active, from nvml.h.
EVENTS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}

#: nvmlErrorString of the codes that nvidia-smi ends with (nvml.h; native/nvml.c has them too).
NVML_ERRORS = {
    1: "Uninitialized",
    4: "Insufficient Permissions",
    9: "Driver Not Loaded",
    12: "NVML Shared Library Not Found",
    15: "GPU is lost",
    16: "GPU requires reset",
    17: "GPU access blocked by the operating system",
    18: "Driver/library version mismatch",
    255: "Unknown Error",
}
NOT_LOADED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n\n"
)
NO_LIBRARY = (
    "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. "
    "Please make sure that the NVIDIA Display Driver is properly installed and present in your system.\n"
    "Please also try adding directory that contains libnvidia-ml.so to your system PATH.\n"
)
#: What follows "Unable to determine the device handle for GPU...: ", and the exit code.
HANDLE = {
    "unknown": ("Unknown Error", 255),
    "lost": ("GPU is lost.  Reboot the system to recover this GPU", 15),
    "reset": ("The GPU requires reset", 16),
}
#: What the counters of SRAM errors are broken down to.
SRAM = {
    "volatile": ("parity", "secded"),
    "aggregate": ("parity", "secded", "l2", "sm", "mcu", "pcie", "other"),
}
#: Fields that a GPU answers although it is lost: the driver knows them without asking it.
KNOWN = (
    "timestamp",
    "driver_version",
    "count",
    "name",
    "serial",
    "uuid",
    "index",
    "pci.",
    "persistence_mode",
)


def answers(scenario: Scenario) -> dict[str, Any]:
    """All that the simulated nvidia-smi needs, for ``machine.json``."""
    listed = state.gpus(scenario)
    fields = [field for field in tables.fields(scenario.driver) if field.name not in removed(scenario)]
    return {
        "driver": scenario.driver,
        "nvml": ".".join(scenario.driver.split(".")[:2]),
        "cuda": tables.cuda_version(scenario.driver),
        "fields": [list(field) for field in fields],
        "fails": whole_failure(scenario),
        "gpus": [answer(scenario, gpu, len(listed)) for gpu in listed],
        "warnings": [
            f"WARNING: infoROM is corrupted at gpu 0000:{gpu.bus:02X}:00.0"
            for gpu in listed
            if scenario.on("inforom_corrupt", gpu.place)
        ],
    }


def removed(scenario: Scenario) -> set[str]:
    """The fields that this driver is made not to know."""
    return {name for fault in scenario.having("unknown_field") for name in fault["fields"]}


def whole_failure(scenario: Scenario) -> dict[str, Any] | None:
    """What nvidia-smi says when it can say nothing about any GPU."""
    loaded = scenario.one("driver_not_loaded")
    if loaded and loaded["says"] == "communicate":
        return {"text": NOT_LOADED, "code": 9}
    if loaded:
        return nvml_failure(9)
    if scenario.one("version_mismatch"):
        failure = nvml_failure(18)
        if tables.branch(scenario.driver) >= 525:
            failure["text"] += "NVML library version: " + ".".join(scenario.driver.split(".")[:2]) + "\n"
        return failure
    fails = scenario.one("nvml_fails")
    if fails:
        return nvml_failure(fails["code"])
    if scenario.one("no_devices") or not state.gpus(scenario):
        return {"text": "No devices were found\n", "code": 6}
    return None


def nvml_failure(code: int) -> dict[str, Any]:
    """NVML could not be initialised. An exit code has eight bits: 999 (unknown) comes out as 255."""
    code = min(code, 255)
    return {"text": f"Failed to initialize NVML: {NVML_ERRORS.get(code, 'Unknown Error')}\n", "code": code}


def answer(scenario: Scenario, gpu: Gpu, count: int) -> dict[str, Any]:
    """One GPU: its row, or what is said instead of it."""
    row = values(scenario, gpu, count)
    fabric = state.fabric_of(scenario, gpu)
    mig = scenario.on("mig", gpu.place)
    answered: dict[str, Any] = {"row": row, "error": None, "settling": None, "mig": None}
    if mig and mig["instances"]:
        answered["mig"] = gpu.mig_uuid
    if fabric and fabric["seconds"] is not None:
        waiting = {"fabric.state": fabric["state"], "fabric.status": fabric["status"]}
        answered["settling"] = {"seconds": fabric["seconds"], "row": waiting}
    if gpu.lost:
        text, code = HANDLE[gpu.lost["says"]]
        spelled = state.spelling(scenario.driver, gpu)
        answered["error"] = {
            "text": f"Unable to determine the device handle for {spelled}: {text}",
            "code": code,
            "rows": gpu.lost["rows"],
        }
        word = {"unknown": "[Unknown Error]", "lost": "[GPU is lost]", "reset": "[GPU requires reset]"}
        if gpu.lost["rows"] == "message_and_unknown":
            answered["row"] = dict.fromkeys(row, "[Unknown Error]")
        elif gpu.lost["rows"] == "fields":
            answered["row"] = {
                name: value if name.startswith(KNOWN) else word[gpu.lost["says"]]
                for name, value in row.items()
            }
    return answered


def values(scenario: Scenario, gpu: Gpu, count: int) -> dict[str, str]:
    """The value of every field for this GPU. A field that nothing below sets reads [N/A]."""
    model = scenario.hardware
    row = {field.name: NA for field in tables.fields(scenario.driver)}
    total, reserved = model["memory_mib"], model["reserved_mib"]
    off = not scenario.persistence or scenario.on("persistence_off", gpu.place)
    found = {
        "driver_version": scenario.driver,
        "count": str(count),
        "name": model["name"],
        "serial": gpu.serial,
        "uuid": gpu.uuid,
        "index": str(gpu.index),
        "pci.bus_id": gpu.bus_id,
        "pci.domain": "0x0000",
        "pci.bus": f"0x{gpu.bus:02X}",
        "pci.device": "0x00",
        "pci.baseClass": "0x3",
        "pci.subClass": "0x2",
        "pci.device_id": f"0x{model['device_id']}10DE",
        "pci.sub_device_id": f"0x{model['subsystem_id']}10DE",
        "display_mode": DEPRECATED if tables.series(scenario.driver) == "580" else "Enabled",
        "display_attached": model["display_attached"],
        "display_active": "Disabled",
        "persistence_mode": "Disabled" if off else "Enabled",
        "addressing_mode": "None",
        "accounting.mode": "Disabled",
        "accounting.buffer_size": "4000",
        "vbios_version": model["vbios"],
        "inforom.img": model["inforom"],
        "inforom.oem": "2.1",
        "inforom.ecc": model["inforom_ecc"],
        "inforom.checksum_validation": "invalid" if scenario.on("inforom_corrupt", gpu.place) else "valid",
        "fan.speed": NA if model["fan"] is None else f"{model['fan']} %",
        "pstate": "P0",
        "memory.total": f"{total} MiB",
        "memory.reserved": f"{reserved} MiB",
        "memory.used": "0 MiB",
        "memory.free": f"{total - reserved + 1} MiB",
        "compute_mode": "Default",
        "compute_cap": model["compute"],
        "encoder.stats.sessionCount": "0",
        "encoder.stats.averageFps": "0",
        "encoder.stats.averageLatency": "0",
        "mig.mode.current": NA if not model["mig"] else _on_off(scenario.on("mig", gpu.place)),
        "mig.mode.pending": NA if not model["mig"] else _on_off(scenario.on("mig", gpu.place)),
        "gsp.mode.current": "Enabled" if model["architecture"] != "Turing" else "Disabled",
        "gsp.mode.default": "Enabled" if model["architecture"] != "Turing" else "Disabled",
        "c2c.mode": "Disabled" if model["architecture"] in ("Hopper", "Blackwell") else NA,
        "platform.chassis_serial_number": "",
        "platform.slot_number": "0",
        "platform.tray_index": "0",
        "platform.host_id": "1",
        "platform.peer_type": "Direct Connected",
        "platform.module_id": str(gpu.place + 1),
        "platform.gpu_fabric_guid": "0x0000000000000000",
    }
    for part in ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa"):
        found[f"utilization.{part}"] = NA if scenario.on("mig", gpu.place) else "0 %"
    for part in ("total", "used", "free"):
        found[f"protected_memory.{part}"] = "0 MiB"
    found.update(link(scenario, gpu))
    found.update(events(scenario, gpu))
    found.update(temperature(scenario, gpu))
    found.update(power_and_clocks(scenario))
    found.update(memory_errors(scenario, gpu))
    found.update(fabric(scenario, gpu))
    found.update(recovery(scenario, gpu))
    # --query-remapped-rows has these also where --query-gpu does not know them yet.
    offered = (*row, *(name for name in found if name.startswith("remapped_rows.")))
    return row | {name: found[name] for name in offered if name in found}


def _on_off(fault: object) -> str:
    return "Enabled" if fault else "Disabled"


def link(scenario: Scenario, gpu: Gpu) -> dict[str, str]:
    """The PCIe link."""
    model, fault = scenario.hardware, scenario.on("pcie_link", gpu.place) or {}
    gen, width = fault.get("gen") or model["pcie_gen"], fault.get("width") or model["pcie_width"]
    return {
        "pcie.link.gen.current": str(gen),
        "pcie.link.gen.gpucurrent": str(gen),
        "pcie.link.gen.max": str(model["pcie_gen"]),
        "pcie.link.gen.gpumax": str(model["pcie_gen"]),
        "pcie.link.width.current": str(width),
        "pcie.link.width.max": str(model["pcie_width"]),
    }


def events(scenario: Scenario, gpu: Gpu) -> dict[str, str]:
    """Why the clocks are lower than they could be: idle, unless a fault says otherwise."""
    fault = scenario.on("throttle", gpu.place)
    mask = EVENTS["gpu_idle"]
    if fault:
        names = fault["mask"]
        mask = names if isinstance(names, int) else sum(EVENTS[name] for name in names)
    prefix = "clocks_event_reasons"
    if tables.series(scenario.driver) == "525":
        prefix = "clocks_throttle_reasons"
    found = {
        f"{prefix}.active": f"0x{mask:016X}",
        f"{prefix}.supported": scenario.hardware["event_reasons_supported"],
    }
    for name, bit in EVENTS.items():
        found[f"{prefix}.{name}"] = "Active" if mask & bit else "Not Active"
        found[f"clocks_event_reasons_counters.{name}"] = "1503412 us" if mask & bit else "0 us"
    return found


def temperature(scenario: Scenario, gpu: Gpu) -> dict[str, str]:
    """Temperatures; T.Limit is what is left up to the highest operating temperature."""
    model, fault = scenario.hardware, scenario.on("hot", gpu.place) or {}
    celsius = fault.get("celsius") or model["temperature"]
    memory = fault.get("memory_celsius") or model["temperature_memory"]
    return {
        "temperature.gpu": str(celsius),
        "temperature.gpu.tlimit": str(model["max_operating"] - celsius) if model["tlimit"] else "N/A",
        "temperature.memory": str(memory) if model["memory_temperature"] else "N/A",
    }


def power_and_clocks(scenario: Scenario) -> dict[str, str]:
    """Power and clocks of an idle GPU."""
    model = scenario.hardware
    draw, limit = f"{model['power_idle_w']:.2f} W", f"{model['power_w']:.2f} W"
    top, memory = f"{model['clock_max']} MHz", f"{model['clock_memory']} MHz"
    average = draw if tables.series(scenario.driver) == "580" else NA
    return {
        "power.management": "Enabled" if tables.series(scenario.driver) == "580" else "Supported",
        "power.draw": draw,
        "power.draw.average": average,
        "power.draw.instant": draw,
        "power.limit": limit,
        "enforced.power.limit": limit,
        "power.default_limit": limit,
        "power.min_limit": f"{model['power_min_w']:.2f} W",
        "power.max_limit": limit,
        "clocks.current.graphics": f"{model['clock_idle']} MHz",
        "clocks.current.sm": f"{model['clock_idle']} MHz",
        "clocks.current.memory": memory,
        "clocks.current.video": f"{model['clock_video']} MHz",
        "clocks.applications.graphics": top,
        "clocks.applications.memory": memory,
        "clocks.default_applications.graphics": top,
        "clocks.default_applications.memory": memory,
        "clocks.max.graphics": top,
        "clocks.max.sm": top,
        "clocks.max.memory": memory,
    }


def memory_errors(scenario: Scenario, gpu: Gpu) -> dict[str, str]:
    """ECC counters, remapped rows, retired pages."""
    model = scenario.hardware
    found: dict[str, str] = {}
    fault = scenario.on("ecc", gpu.place) or {"mode": "Enabled"}
    if model["ecc"]:
        lifetime = fault.get("uncorrected_aggregate")
        counts = {
            ("corrected", "volatile"): fault.get("corrected", 0),
            ("corrected", "aggregate"): fault.get("corrected", 0),
            ("uncorrected", "volatile"): fault.get("uncorrected", 0),
            ("uncorrected", "aggregate"): fault.get("uncorrected", 0) if lifetime is None else lifetime,
        }
        found["ecc.mode.current"] = fault["mode"]
        found["ecc.mode.pending"] = fault["mode"]
        for (kind, span), count in counts.items():
            for unit in ("device_memory", "dram", "total"):
                found[f"ecc.errors.{kind}.{span}.{unit}"] = str(count)
            found[f"ecc.errors.{kind}.{span}.sram"] = "0"
        exceeded = "Yes" if fault.get("sram_threshold") else "No"
        found["ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"] = exceeded
        for span, units in SRAM.items():
            found |= {f"ecc.errors.uncorrected.{span}.sram.{unit}": "0" for unit in units}
        if fault["mode"] != "Enabled":
            found = {name: value for name, value in found.items() if name.startswith("ecc.mode.")}
    if model["row_remap"]:
        remap = scenario.on("row_remap", gpu.place) or {}
        rows = remap.get("uncorrectable")
        count = rows if rows is not None else int(bool(remap.get("pending") or remap.get("failure")))
        found |= {
            "remapped_rows.correctable": "0",
            "remapped_rows.correctable_inactive": "0",
            "remapped_rows.uncorrectable": str(count),
            "remapped_rows.uncorrectable_inactive": "0",
            "remapped_rows.pending": "Yes" if remap.get("pending") else "No",
            "remapped_rows.failure": "Yes" if remap.get("failure") else "No",
            "remapped_rows.histogram.max": str(model["remap_banks"] - int(bool(count))),
            "remapped_rows.histogram.high": str(int(bool(count) and not remap.get("failure"))),
            "remapped_rows.histogram.partial": "0",
            "remapped_rows.histogram.low": "0",
            "remapped_rows.histogram.none": str(int(bool(remap.get("failure")))),
        }
    else:
        found |= {
            "retired_pages.single_bit_ecc.count": "0",
            "retired_pages.double_bit.count": "0",
            "retired_pages.pending": "No",
        }
    return found


def fabric(scenario: Scenario, gpu: Gpu) -> dict[str, str]:
    """The NVLink fabric; on a single HGX machine the clique is 0 and the cluster's id is all zeros."""
    names = [field.name for field in tables.fields(scenario.driver) if field.name.startswith("fabric.")]
    found = dict.fromkeys(names, "N/A")
    if not scenario.hardware["fabric"]:
        return found
    found |= {
        "fabric.state": "Completed",
        "fabric.status": "Success",
        "fabric.cliqueId": "0",
        "fabric.clusterUuid": NO_FABRIC_ID,
    }
    fault = scenario.on("fabric", gpu.place)
    if fault and fault["seconds"] is None:
        found |= {"fabric.state": fault["state"], "fabric.status": fault["status"]}
    return found


def recovery(scenario: Scenario, gpu: Gpu) -> dict[str, str]:
    """What the driver would have done about the GPU: one field since 570, two before."""
    fault = scenario.on("recovery_action", gpu.place)
    action = fault["action"] if fault else "None"
    drain = "drain" in action.lower()
    return {
        "gpu_recovery_action": action,
        "reset_status.reset_required": "Yes" if fault and not drain else "No",
        "reset_status.drain_and_reset_recommended": "Yes" if fault and drain else "No",
    }
