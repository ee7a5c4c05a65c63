"""What the kernel shows of the machine: PCI devices, the driver's modules, and /proc/driver.

On a real machine these cannot be files: ``behind_mounts`` puts them aside, and ``vm.show_kernel`` mounts
them over what the machine has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.gpu_sim import state
from tests.gpu_sim.scenario import Scenario
from tests.gpu_sim.state import Gpu

ASIDE = "/usr/share/gpu-sim/kernel"
SPEED = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}  # GT/s by PCIe generation
NOISE = {  # devices that are no GPUs: a bridge, an NVMe disk, a network card, a VGA card of a server's BMC
    "0000:00:00.0": ("0x8086", "0x09a2", "0x060000", None),
    "0000:00:04.0": ("0x1d0f", "0x8061", "0x010802", "nvme"),
    "0000:00:05.0": ("0x1d0f", "0xec20", "0x020000", "ena"),
    "0000:00:06.0": ("0x1a03", "0x2000", "0x030000", "ast"),
}


class File(NamedTuple):
    """A file to install: its content, or what it links to."""

    path: str  # absolute, on the machine
    content: bytes = b""
    mode: int = 0o644
    link: str | None = None


def text(path: str, content: str, mode: int = 0o644) -> File:
    """A file with a text."""
    return File(path, content.encode(), mode)


def sysfs(scenario: Scenario) -> list[File]:
    """/sys of the machine: PCI devices and modules. To be laid out, or mounted over /sys/bus/pci/devices."""
    loaded = state.module_version(scenario)
    found = []
    for address, (vendor, device, code, driver) in NOISE.items():
        found += _pci(address, vendor=vendor, device=device, code=code, driver=driver)
    for gpu in state.on_bus(scenario):
        found += _gpu(scenario, gpu, "nvidia" if loaded else None)
    for address in state.nvswitches(scenario):
        device = "0x" + scenario.hardware["nvswitch_id"].lower()
        found += _pci(
            address,
            vendor="0x10de",
            device=device,
            code="0x068000",
            driver="nvidia-nvswitch" if loaded else None,
        )
    if loaded:
        for module in ("nvidia", "nvidia_uvm", "nvidia_modeset"):
            found.append(text(f"/sys/module/{module}/version", f"{loaded}\n"))
            found.append(text(f"/sys/module/{module}/initstate", "live\n"))
    return found


def _gpu(scenario: Scenario, gpu: Gpu, driver: str | None) -> list[File]:
    model, fault = scenario.hardware, scenario.on("pcie_link", gpu.place) or {}
    speed = SPEED[fault.get("gen") or model["pcie_gen"]] + " GT/s PCIe"
    width = fault.get("width") or model["pcie_width"]
    if gpu.lost:  # its configuration space reads all ones
        speed, width = "Unknown", 63
    link = {
        "current_link_speed": speed,
        "current_link_width": str(width),
        "max_link_speed": SPEED[model["pcie_gen"]] + " GT/s PCIe",
        "max_link_width": str(model["pcie_width"]),
        "subsystem_vendor": "0x10de",
        "subsystem_device": "0x" + model["subsystem_id"].lower(),
        "numa_node": str(gpu.place * 2 // max(scenario.gpus, 1)),
    }
    device = "0x" + model["device_id"].lower()
    return _pci(gpu.pci, vendor="0x10de", device=device, code="0x030200", driver=driver, **link)


def _pci(
    address: str, *, vendor: str, device: str, code: str, driver: str | None, **more: str
) -> list[File]:
    """A device as the kernel shows it: a folder below /sys/devices, linked from the bus."""
    folder = f"/sys/devices/pci{address[:7]}/{address}"
    found = [
        text(f"{folder}/{name}", f"{value}\n")
        for name, value in {"vendor": vendor, "device": device, "class": code, "enable": "1", **more}.items()
    ]
    if driver:
        found.append(File(f"{folder}/driver", link=f"../../../bus/pci/drivers/{driver}"))
        found.append(text(f"/sys/bus/pci/drivers/{driver}/uevent", ""))
    return [
        *found,
        File(f"/sys/bus/pci/devices/{address}", link=f"../../../devices/pci{address[:7]}/{address}"),
    ]


def procfs(scenario: Scenario) -> list[File]:
    """/proc and /dev as far as the driver shows itself there."""
    loaded = state.module_version(scenario)
    if loaded is None:
        return []
    version = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {loaded}  Release Build  "
    found = [
        text(
            "/proc/driver/nvidia/version", f"{version}(gpu-sim@gpu-sim)\nGCC version:  gcc version 14.2.0\n"
        ),
        text("/dev/nvidiactl", ""),
        text("/dev/nvidia-uvm", ""),
    ]
    for gpu in state.gpus(scenario):
        name = scenario.hardware["name"]
        about = f"Model: \t\t {name}\nIRQ:   \t\t 42\nGPU UUID: \t {gpu.uuid}\n"
        about += f"Bus Type: \t PCIe\nBus Location: \t {gpu.pci}\n"
        found += [
            text(f"/proc/driver/nvidia/gpus/{gpu.pci}/information", about),
            text(f"/dev/nvidia{gpu.index}", ""),
        ]
    return found


def behind_mounts(scenario: Scenario) -> Iterator[File]:
    """The same for a machine whose /sys and /proc are its own: three folders to mount over the real ones."""
    for file in sysfs(scenario):
        parts = file.path.split("/")
        if parts[2] == "devices":  # flat: the links of the bus would lead into the real /sys
            yield file._replace(path=f"{ASIDE}/pci/{parts[4]}/{parts[5]}")
        elif parts[2] == "module":
            yield file._replace(path=f"{ASIDE}/module/{parts[3]}/{parts[4]}")
    for file in procfs(scenario):
        if file.path.startswith("/proc/driver/"):
            yield file._replace(path=file.path.replace("/proc/driver", f"{ASIDE}/driver"))
