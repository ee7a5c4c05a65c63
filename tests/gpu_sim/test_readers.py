"""What the project says of simulated machines: each fault is seen where it shows, and nowhere else.

What a fault must come to is the reader's affair (validation/*, docs); here it is one word each, so that the
simulator and its readers cannot drift apart unseen.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from images import bundle
from tests.gpu_sim import Scenario, kernel_log, smi, tables
from validation import dcgm, nvidia_smi
from validation.kernel_log import events

BOARD = {"gpus": 8, "model": "h100-sxm", "machine_type": "p5.48xlarge", "expect": {"gpus": 8, "gpu": "h100"}}


@pytest.fixture(scope="session")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The boot checks as an image has them."""
    root = tmp_path_factory.mktemp("image")
    bundle.write(bundle.collect(), root)
    return root / "usr/lib/gpu-image/boot-checks.d"


def smi_says(machine: Any) -> str:
    """The verdict on what nvidia-smi prints for the fields that it offers."""
    known = {name for field in tables.fields(machine.scenario.driver) for name in (field.name, field.alias)}
    known -= smi.removed(machine.scenario)
    done = machine.run(*nvidia_smi.command(nvidia_smi.choose(known)))
    return nvidia_smi.judge(done.stdout, expect_gpus=8, exit_code=done.returncode).verdict


def diag_says(machine: Any, level: int) -> str:
    done = machine.run("dcgmi", "diag", "-r", str(level), "-j")
    return dcgm.judge(done.stdout, level=level, expect_gpus=8, exit_code=done.returncode).verdict


def health_says(machine: Any) -> str:
    machine.run("dcgmi", "health", "-s", "a")
    done = machine.run("dcgmi", "health", "-c", "-j")
    return dcgm.judge(done.stdout, exit_code=done.returncode).verdict


def check_says(machine: Any, check: Path) -> str:
    """The check's status; ``degraded`` when it passes with something to tell."""
    facts: dict[str, Any] = {key: "x" for key in ("family", "version", "build_id", "bundle_digest")}
    facts |= {"schema": "gpu-image/image/v1", "services": [], "driver": machine.scenario.driver}
    target = machine.root / "usr/lib/gpu-image/image.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(facts))
    environment = {
        **os.environ,
        "PATH": f"{machine.root}/usr/bin:/usr/bin:/bin",
        "GPU_IMAGE_ROOT": str(machine.root),
    }
    done = subprocess.run([check], env=environment, capture_output=True, text=True, check=False, timeout=60)
    result = json.loads(done.stdout)
    return "degraded" if result["data"].get("degraded") else str(result["status"])


@pytest.mark.parametrize(
    ("driver", "version"), [("580.95.05", "4.4.1"), ("535.183.01", "3.3.9"), ("525.147.05", "4.6.0")]
)
def test_a_healthy_machine_is_healthy(gpu_machine: Any, checks: Path, driver: str, version: str) -> None:
    machine = gpu_machine(**BOARD, driver=driver, dcgm=version)
    offered = nvidia_smi.fields_offered(machine.run("nvidia-smi", "--help-query-gpu").stdout)
    assert offered >= {field.name for field in tables.fields(driver)}
    assert smi_says(machine) == diag_says(machine, 3) == health_says(machine) == "pass"
    assert check_says(machine, checks / "20-gpus") == check_says(machine, checks / "30-gpu-memory") == "pass"
    assert not list(events(kernel_log.dmesg(machine.scenario).splitlines(keepends=True)))


@pytest.mark.parametrize("model", tables.models())
def test_every_model_is_healthy(gpu_machine: Any, model: str) -> None:
    machine = gpu_machine(gpus=8, model=model)
    assert smi_says(machine) == diag_says(machine, 3) == "pass"


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ({"kind": "lost", "gpu": 3}, "fail"),
        ({"kind": "lost", "gpu": 3, "rows": "only"}, "fail"),
        ({"kind": "lost", "gpu": 3, "rows": "fields", "says": "reset"}, "fail"),
        ({"kind": "lost", "gpu": "all"}, "fail"),
        ({"kind": "count_short"}, "fail"),
        ({"kind": "no_devices"}, "fail"),
        ({"kind": "driver_not_loaded"}, "fail"),
        ({"kind": "version_mismatch"}, "fail"),
        ({"kind": "missing", "program": "libnvidia-ml"}, "fail"),
        ({"kind": "row_remap", "failure": True}, "fail"),
        ({"kind": "row_remap", "pending": True}, "fail"),
        ({"kind": "ecc", "uncorrected": 3}, "fail"),
        ({"kind": "throttle", "mask": ["hw_thermal_slowdown"]}, "fail"),
        ({"kind": "throttle", "mask": ["sw_power_cap"]}, "pass"),
        ({"kind": "recovery_action"}, "fail"),
        ({"kind": "fabric", "state": "Completed", "status": "Failure"}, "fail"),
        ({"kind": "nvml_fails", "code": 4}, "unknown"),
        ({"kind": "unknown_field", "fields": ["gpu_recovery_action"]}, "pass"),
    ],
)
def test_what_nvidia_smi_shows(gpu_machine: Any, fault: dict[str, Any], verdict: str) -> None:
    assert smi_says(gpu_machine(fault, **BOARD)) == verdict


@pytest.mark.parametrize("version", ["4.4.1", "3.3.9"])
@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ({"kind": "diag_fails", "gpu": 3}, "fail"),
        ({"kind": "diag_passes_with_error", "gpu": 3}, "fail"),
        ({"kind": "persistence_off"}, "fail"),
        ({"kind": "lost", "gpu": 3}, "fail"),
        ({"kind": "diag_skipped", "tests": ["memory"]}, "unknown"),
        ({"kind": "diag_not_run", "tests": ["memory"], "gpu": [5]}, "unknown"),
        ({"kind": "diag_busy"}, "unknown"),
        ({"kind": "diag_error", "status": -52}, "unknown"),
        ({"kind": "no_host_engine", "embedded": False}, "unknown"),
        ({"kind": "mig", "gpu": "all"}, "unknown"),
    ],
)
def test_what_the_diagnostic_shows(
    gpu_machine: Any, version: str, fault: dict[str, Any], verdict: str
) -> None:
    assert diag_says(gpu_machine(fault, **BOARD, dcgm=version), 2) == verdict


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ({"kind": "health", "gpu": 3, "xid": 79}, "fail"),
        ({"kind": "health", "result": "Warning", "system": "PCIe system", "text": "PCIe replays"}, "fail"),
        ({"kind": "no_host_engine"}, "unknown"),
        ({"kind": "hot"}, "pass"),
    ],
)
def test_what_the_health_report_shows(gpu_machine: Any, fault: dict[str, Any], verdict: str) -> None:
    assert health_says(gpu_machine(fault, **BOARD)) == verdict


@pytest.mark.parametrize("driver", ["580.95.05", "535.183.01"])
@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ({"kind": "lost", "gpu": 2}, [("xid", 79, "0000:53:00", "fatal")]),
        ({"kind": "count_short", "gpu": 1, "log": True}, [("fallen_off_bus", None, "0000:4b:00", "fatal")]),
        ({"kind": "row_remap", "failure": True}, [("xid", 64, "0000:43:00", "fatal")]),
        ({"kind": "ecc", "uncorrected": 1}, [("xid", 48, "0000:43:00", "fatal")]),
        ({"kind": "xid", "code": 31, "gpu": 7}, [("xid", 31, "0000:7b:00", "warn")]),
        ({"kind": "version_mismatch"}, [("driver", None, None, "fatal")]),
        ({"kind": "hot"}, []),
    ],
)
def test_what_the_kernel_log_shows(driver: str, fault: dict[str, Any], found: list[Any]) -> None:
    log = kernel_log.dmesg(Scenario(gpus=8, driver=driver, faults=[fault]))
    seen = list(events(log.splitlines(keepends=True)))
    assert [(event.kind, event.code, event.pci, event.severity) for event in seen] == found
    assert not any(event.injected for event in seen)
