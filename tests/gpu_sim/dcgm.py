"""What DCGM has to say: the result of every test on every GPU, and what its health watches have seen.

Texts are those of NVIDIA/DCGM v4.6.0: ``dcgm_errors.tsv`` and, for health, modules/health/
DcgmHealthWatch.cpp; the documents are put together on the machine, by ``guest/dcgmi.py``.
"""

from __future__ import annotations

from typing import Any

from tests.gpu_sim import errors, health, state
from tests.gpu_sim.scenario import Scenario, hit
from tests.gpu_sim.state import Gpu

#: 4.x: tests with their category and the level from which they run (nvvs/src/NvidiaValidationSuite.cpp).
TESTS_4 = {
    "software": ("Deployment", 1),
    "memory": ("Hardware", 2),
    "diagnostic": ("Hardware", 3),
    "pulse_test": ("Hardware", 4),
    "eud": ("Hardware", 3),
    "cpu_eud": ("Hardware", 3),
    "pcie": ("Integration", 2),
    "nvbandwidth": ("Integration", 3),
    "nccl_tests": ("Integration", 3),
    "memory_bandwidth": ("Stress", 3),
    "memtest": ("Stress", 4),
    "targeted_power": ("Stress", 3),
    "targeted_stress": ("Stress", 3),
}
#: 3.x: the same by the names it has for them, in the order of its categories (dcgmi/Diag.cpp of v3.3.9).
TESTS_3 = {
    "PCIe": ("Integration", 2, "pcie"),
    "GPU Memory": ("Hardware", 2, "memory"),
    "Diagnostic": ("Hardware", 3, "diagnostic"),
    "Pulse Test": ("Hardware", 4, "pulse_test"),
    "EUD Test": ("Hardware", 3, "eud"),
    "Targeted Stress": ("Stress", 3, "targeted_stress"),
    "Targeted Power": ("Stress", 3, "targeted_power"),
    "Memory Bandwidth": ("Stress", 3, "memory_bandwidth"),
    "Memtest": ("Stress", 4, "memtest"),
}
DEPLOYMENT_3 = (
    "Denylist",
    "NVML Library",
    "CUDA Main Library",
    "Permissions and OS Blocks",
    "Persistence Mode",
    "Environment Variables",
    "Page Retirement/Row Remap",
    "Graphics Processes",
    "Inforom",
    "Fabric Manager",
)
#: Which of 3.x's deployment tests finds an error that 4.x's "software" reports, under that name.
SUBTESTS = {
    29: "Persistence Mode",
    80: "Page Retirement/Row Remap",
    85: "Page Retirement/Row Remap",
    112: "Fabric Manager",
    118: "Page Retirement/Row Remap",
}


def answers(scenario: Scenario) -> dict[str, Any]:
    """All that the simulated dcgmi needs, for ``machine.json``."""
    seen = [gpu for gpu in state.gpus(scenario) if not gpu.lost]
    if any(
        scenario.one(kind) for kind in ("driver_not_loaded", "version_mismatch", "no_devices", "nvml_fails")
    ):
        seen = []
    engine = scenario.one("no_host_engine")
    embedded = (engine or {"embedded": True})["embedded"] and not scenario.one("driver_not_loaded")
    return {
        "version": scenario.dcgm,
        "driver": scenario.driver,
        "gpus": [
            {
                "id": gpu.index,
                "name": scenario.hardware["name"],
                "bus_id": gpu.bus_id,
                "uuid": gpu.uuid,
                "device_id": scenario.hardware["device_id"].lower(),
                "serial": gpu.serial,
            }
            for gpu in seen
        ],
        "nvswitches": len(state.nvswitches(scenario)),
        "host_engine": engine is None,
        "embedded": embedded,
        "error": run_error(scenario, seen),
        "tests": tests(scenario, seen),
        "health": health.incidents(scenario, seen),
        "watches": scenario.health_watches,
        "profiling": (scenario.one("profiling") or {"status": None})["status"],
    }


def run_error(scenario: Scenario, seen: list[Gpu]) -> dict[str, Any] | None:
    """Why a diagnostic cannot be run at all: DCGM's status, which is also the exit code, and more text."""
    failed = scenario.one("diag_error")
    if scenario.one("diag_busy"):
        return {"status": -39, "text": None}
    if failed:
        return {"status": failed["status"], "text": failed["text"]}
    mig = [gpu.index for gpu in seen if scenario.on("mig", gpu.place)]
    if mig:  # the text is that of NVIDIA/DCGM issues 31, 70 and 94; the status is a guess
        said = "'s MIG configuration is incompatible with the diagnostic because it prevents access to the "
        said += "entire GPU."
        return {"status": -30, "text": None, "more": "\n".join(f"GPU {number}{said}" for number in mig)}
    return None if seen else {"status": -35, "text": None}


def tests(scenario: Scenario, seen: list[Gpu]) -> list[dict[str, Any]]:
    """Every test that this version knows, with its level, its category and a result for each GPU."""
    if errors.version(scenario)[0] < 4:
        found = [_deployment_3(scenario, seen, name) for name in DEPLOYMENT_3]
        order = [(name, category, level, plain) for name, (category, level, plain) in TESTS_3.items()]
    else:
        found = []
        order = [(name, category, level, name) for name, (category, level) in TESTS_4.items()]
    for name, category, level, plain in order:
        if plain in ("eud", "cpu_eud") and not scenario.eud:
            continue
        if plain in ("memory_bandwidth", "pulse_test") and not scenario.proprietary:
            continue
        if plain == "nccl_tests" and errors.version(scenario) < (4, 6):
            continue
        results = [result(scenario, gpu, plain) for gpu in seen]
        if plain == "cpu_eud":
            results = []
        found.append({"name": name, "category": category, "level": level, "results": results})
    if scenario.info_limit is not None:
        _keep_infos(found, scenario.info_limit)
    return found


def result(scenario: Scenario, gpu: Gpu, test: str) -> dict[str, Any]:
    """One test on one GPU."""
    found: dict[str, Any] = {
        "gpu": gpu.index,
        "status": "Pass",
        "warnings": [],
        "info": infos(scenario, gpu, test),
    }
    for fault in scenario.having("diag_skipped"):
        if _about(fault, scenario, gpu, test):
            found |= {"status": "Skip", "info": []}
    if test == "eud":
        found |= {"status": "Skip", "info": []}
    for fault in scenario.having("diag_not_run"):
        if _about(fault, scenario, gpu, test):
            found |= {"status": "Not Run", "info": []}
    if found["status"] != "Pass":
        return found
    for number, detail in own_errors(scenario, gpu).get(test, ()):
        prefix = SUBTESTS.get(number) if test == "software" else None
        found["warnings"].append(errors.warning(number, gpu, detail, prefix=prefix))
        found["status"] = "Fail"
    for kind, status in (("diag_fails", "Fail"), ("diag_passes_with_error", "Pass")):
        for fault in scenario.having(kind):
            if fault["test"] == test and gpu.place in hit(fault, scenario.gpus):
                found["warnings"].append(
                    errors.warning(fault["error_id"], gpu, fault["detail"], text=fault["text"])
                )
                found["status"] = status if found["status"] == "Pass" else found["status"]
    return found


def _about(fault: dict[str, Any], scenario: Scenario, gpu: Gpu, test: str) -> bool:
    of_test = fault["tests"] == "all" or test in fault["tests"]
    return of_test and gpu.place in hit(fault, scenario.gpus)


def own_errors(scenario: Scenario, gpu: Gpu) -> dict[str, list[tuple[int, Any]]]:
    """What DCGM's tests find by themselves on a GPU with faults of other kinds."""
    found: dict[str, list[tuple[int, Any]]] = {}
    if not scenario.persistence or scenario.on("persistence_off", gpu.place):
        found.setdefault("software", []).append((29, None))
    remap = scenario.on("row_remap", gpu.place)
    if remap and (remap["failure"] or remap["pending"]):
        found.setdefault("software", []).append((80 if remap["failure"] else 85, None))
    ecc = scenario.on("ecc", gpu.place)
    if ecc and ecc["sram_threshold"]:
        found.setdefault("software", []).append((118, 1))
    fabric = state.fabric_of(scenario, gpu)
    if fabric and fabric["seconds"] is None:
        found.setdefault("software", []).append((112, fabric["state"].lower()))
    link = scenario.on("pcie_link", gpu.place)
    if link and link["width"] and link["width"] < 16:
        found.setdefault("pcie", []).append((46, link["width"]))
    if link and link["gen"] and link["gen"] < 3:
        found.setdefault("pcie", []).append((45, link["gen"]))
    return found


def infos(scenario: Scenario, gpu: Gpu, test: str) -> list[str]:
    """The figures that a test prints when it passes, in DCGM's words."""
    model, figures = scenario.hardware, scenario.hardware["figures"]
    usable = (model["memory_mib"] - model["reserved_mib"]) * 1024**2
    number = gpu.index
    said = {
        "memory": [f"Allocated {int(usable * 0.984)} bytes (98.4%)"],
        "pcie": [
            f"GPU to Host bandwidth:\t\t{figures['d2h']:.2f} GB/s",
            f"Host to GPU bandwidth:\t\t{figures['h2d']:.2f} GB/s",
            f"bidirectional bandwidth:\t{figures['bidir']:.2f} GB/s",
            f"GPU to Host latency:\t\t{figures['d2h_us']:.3f} us",
            f"Host to GPU latency:\t\t{figures['h2d_us']:.3f} us",
            f"bidirectional latency:\t\t{figures['bidir_us']:.3f} us",
        ],
        "diagnostic": [
            f"Allocated space for 138 output matricies from {int(usable * 0.89)} bytes available.",
            "Running with precisions: FP64 1, FP32 1, FP16 1",
            f"GPU {number} calculated at approximately {figures['gigaflops']:.2f} gigaflops "
            "during this test",
        ],
        "targeted_stress": [f"GPU {number} relative stress level\t{figures['stress']:.0f}"],
        "targeted_power": [
            f"GPU {number} max power: {figures['power_max']:.1f} W "
            f"average power usage: {figures['power_avg']:.1f} W"
        ],
    }
    return said.get(test, [])


def _keep_infos(found: list[dict[str, Any]], limit: int) -> None:
    for test in found:
        left = limit
        for entry in test["results"]:
            entry["info"] = entry["info"][:left]
            left -= len(entry["info"])


def _deployment_3(scenario: Scenario, seen: list[Gpu], name: str) -> dict[str, Any]:
    """3.x has one result for all GPUs; an error in it names the GPU by a number, not by a text."""
    found: dict[str, Any] = {"gpu": None, "status": "Pass", "warnings": [], "info": []}
    if name == "Fabric Manager" and not scenario.hardware["fabric"]:
        found["status"] = "Skip"
    if any(fault["tests"] == "all" for fault in scenario.having("diag_skipped")):
        found["status"] = "Skip"
    if any(fault["tests"] == "all" for fault in scenario.having("diag_not_run")):
        found["status"] = "Not Run"
    for gpu in seen if found["status"] == "Pass" else ():
        own = own_errors(scenario, gpu).get("software", ())
        told = [
            (fault["error_id"], fault["detail"], "Fail" if kind == "diag_fails" else found["status"])
            for kind in ("diag_fails", "diag_passes_with_error")
            for fault in scenario.having(kind)
            if fault["test"] == "software" and gpu.place in hit(fault, scenario.gpus)
        ]
        for number, detail, status in [(*error, "Fail") for error in own] + told:
            if SUBTESTS.get(number, "Permissions and OS Blocks") == name:
                found["gpu"] = gpu.index
                found["warnings"].append(errors.warning(number, gpu, detail))
                found["status"] = status if found["status"] == "Pass" else "Fail"
    return {"name": name, "category": "Deployment", "level": 1, "results": [found]}
