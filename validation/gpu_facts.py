"""What this machine shows of its GPUs: ``python -m validation.gpu_facts`` prints one JSON object.

For a reader that runs elsewhere (the gate): it judges, this only looks. Keys: ``gpus`` and ``nvswitches``
(``pci.Device``), ``expected`` (``expect.Expectation``), ``module`` (loaded, version), ``libraries`` (soname
-> version; null: not there), ``smi`` (text, exit_code, problem), ``simulated`` (null on real hardware).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from validation import driver, expect, nvidia_smi, pci
from validation.boot_checks import image

PATIENCE = 60.0  # seconds for nvidia-smi: 8 A100 without persistence mode took 30 (Azure/aks-gpu#105)
#: Where tests say that the GPUs are not real.
SIMULATED = "usr/share/gpu-sim/scenario.json"


def collect(root: str = "/") -> dict[str, Any]:
    """The facts of the machine whose paths start from ``root``. Never raises for what it finds there."""
    gpus, problem = _devices(root)
    document: dict[str, Any] = {
        "schema": "gpu-image/gpu-facts/v1",
        "gpus": gpus["gpus"],
        "nvswitches": gpus["nvswitches"],
        "bus_problem": problem,
        "expected": expect.expected_gpus(root)._asdict(),
        "module": {"loaded": driver.module_loaded(root), "version": driver.module_version(root)},
        "libraries": {
            name: driver.library_version(driver.library(name, root))
            for name in (driver.NVML, driver.LIBCUDA)
        },
        "simulated": _simulated(root),
        "smi": None,
    }
    if document["gpus"] or document["module"]["loaded"]:
        output = nvidia_smi.query(timeout=PATIENCE)
        document["smi"] = {
            "text": output.text or output.stderr,
            "exit_code": output.exit_code,
            "problem": output.problem,
        }
    return document


def _devices(root: str) -> tuple[dict[str, list[dict[str, Any]]], str | None]:
    try:
        found = {"gpus": pci.nvidia_gpus(root), "nvswitches": pci.nvswitches(root)}
    except OSError as error:
        return {"gpus": [], "nvswitches": []}, f"the PCI bus cannot be read: {error.strerror}"
    return {name: [device._asdict() for device in devices] for name, devices in found.items()}, None


def _simulated(root: str) -> str | None:
    path = os.path.join(root, SIMULATED)
    return f"{path} is there" if os.path.exists(path) else None


if __name__ == "__main__":
    json.dump(collect(image.root()), sys.stdout)
