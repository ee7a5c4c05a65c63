"""A machine with GPUs laid out in a folder: PCI bus, driver, libraries, and an nvidia-smi that says as told.

The simulator (tests/gpu_sim) is a machine with everything in it; of this one single parts can be wrong.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from validation.boot_checks.check import Result

CHECKOUT = Path(__file__).resolve().parents[3]
DRIVER = "580.95.05"
LIBRARIES = f"usr/lib/{os.uname().machine}-linux-gnu"
# One row of a healthy H100: some of the fields of driver 580, and what a capture of it has there.
HEALTHY = {
    "driver_version": DRIVER,
    "count": "8",
    "index": "0",
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "",
    "pci.bus_id": "",
    "persistence_mode": "Enabled",
    "gpu_recovery_action": "None",
    "ecc.mode.current": "Enabled",
    "ecc.errors.uncorrected.volatile.total": "0",
    "remapped_rows.pending": "No",
    "remapped_rows.failure": "No",
    "temperature.gpu": "33",
    "clocks_event_reasons.active": "0x0000000000000001",
    "mig.mode.current": "Disabled",
    "fabric.state": "N/A",
    "fabric.status": "N/A",
}
# Answers with smi/help to --help-query-gpu, and otherwise by smi/1, smi/2, ... and at last smi/last, each a
# bash script; it counts the questions in smi/asked.
NVIDIA_SMI = """#!/bin/bash
cd {folder} || exit 99
[ "$1" = --help-query-gpu ] && exec cat help
[[ "$1" == --query-gpu=* && "$2" == --format=csv && $# == 2 ]] || {{ echo "not expected: $*"; exit 2; }}
echo "$*" >>asked
number=$(wc -l <asked)
[ -e "$number" ] || number=last
exec bash "./$number"
"""


def address(place: int) -> str:
    """Of the GPU at that place on the bus."""
    return f"0000:{0x43 + 8 * place:02x}:00.0"


class GpuMachine:
    """A machine with ``count`` healthy GPUs under ``root``; what a test does not want it changes."""

    def __init__(self, root: Path, count: int = 8) -> None:
        self.root = root
        self.image(driver=DRIVER)
        for place in range(count):
            self.device(address(place))
        self.put("sys/module/nvidia/version", f"{DRIVER}\n")
        for name in ("libnvidia-ml", "libcuda"):
            self.library(name, DRIVER)
        folder = root / "smi"
        folder.mkdir()
        (folder / "help").write_text("".join(f'"{field}"\nWhat it is.\n\n' for field in HEALTHY))
        self.nvidia_smi(NVIDIA_SMI.format(folder=folder))
        self.says(self.csv(range(count)))

    def image(self, *, driver: str | None) -> None:
        texts = {key: "x" for key in ("family", "version", "build_id", "bundle_digest")}
        self.put("usr/lib/gpu-image/image.json", json.dumps({**texts, "services": [], "driver": driver}))

    def nvidia_smi(self, text: str) -> None:
        self.put("usr/bin/nvidia-smi", text)
        (self.root / "usr/bin/nvidia-smi").chmod(0o755)

    def put(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def device(self, name: str, *, driver: str | None = "nvidia", kind: str = "0x030200") -> None:
        folder = f"sys/bus/pci/devices/{name}"
        for file, value in {"vendor": "0x10de", "device": "0x2330", "class": kind}.items():
            self.put(f"{folder}/{file}", f"{value}\n")
        link = self.root / folder / "driver"
        link.unlink(missing_ok=True)
        if driver:
            link.symlink_to(f"../../../../bus/pci/drivers/{driver}")

    def gone_from_bus(self, *places: int) -> None:
        for place in places:
            (self.root / "sys/bus/pci/devices" / address(place)).rename(self.root / f"gone{place}")

    def library(self, name: str, version: str, folder: str = LIBRARIES) -> None:
        for old in (self.root / folder).glob(f"{name}.so*"):
            old.unlink()
        self.put(f"{folder}/{name}.so.{version}", "")
        (self.root / folder / f"{name}.so.1").symlink_to(f"{name}.so.{version}")

    def expect(self, text: object) -> None:
        self.put("etc/gpu-image/expect.json", text if isinstance(text, str) else json.dumps(text))

    def machine_type(self, name: str) -> None:
        document = {"ds": {"meta_data": {"instance-type": name}}, "v1": {"cloud_name": "aws"}}
        self.put("run/cloud-init/instance-data.json", json.dumps(document))

    def csv(self, places: Iterable[int], **changes: Mapping[int, str] | str) -> str:
        """The answer of nvidia-smi for these GPUs; a change is for all of them, or by place."""
        rows = [", ".join(HEALTHY)]
        for index, place in enumerate(places):
            row = {**HEALTHY, "index": str(index)}
            row["uuid"] = f"GPU-{place:08x}-0000-4000-8000-000000000000"
            row["pci.bus_id"] = f"0000{address(place)}".upper()
            for name, change in changes.items():
                field = next(field for field in HEALTHY if field.replace(".", "_") == name)
                value = change if isinstance(change, str) else change.get(place)
                if value is not None:
                    row[field] = value
            rows.append(", ".join(row.values()))
        return "\n".join(rows) + "\n"

    def says(self, text: str, *, code: int = 0, when: int | str = "last") -> None:
        """What nvidia-smi prints and exits with, to question number ``when`` or to all others."""
        (self.root / f"smi/{when}.out").write_text(text)
        self.does(f"cat {when}.out; exit {code}", when=when)

    def does(self, script: str, *, when: int | str = "last") -> None:
        """What nvidia-smi does, in bash."""
        (self.root / f"smi/{when}").write_text(script)

    @property
    def asked(self) -> int:
        """How often nvidia-smi was asked."""
        file = self.root / "smi/asked"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def result(self, monkeypatch: pytest.MonkeyPatch, script: str = "20-gpus") -> Result:
        """What the check finds, run in this process."""
        monkeypatch.setenv("GPU_IMAGE_ROOT", str(self.root))
        monkeypatch.setenv("PATH", f"{self.root}/usr/bin:/usr/bin:/bin")
        found = load(script).check()
        assert isinstance(found, Result)
        json.dumps(found.data, allow_nan=False)
        return found


def load(script: str) -> ModuleType:
    """A check of this checkout as a module."""
    path = CHECKOUT / "validation/boot_checks/boot-checks.d" / script
    before = [*sys.path]
    loader = importlib.machinery.SourceFileLoader(script, str(path))
    spec = importlib.util.spec_from_loader(script, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.path[:] = before
    return module
