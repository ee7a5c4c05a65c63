"""NVIDIA devices on the PCI bus, read from sysfs: what is there whether or not a driver has it.

A GPU that fell off the bus before the kernel enumerated it is missing here; one that fell off later is
still listed, because the kernel remembers what it found.

Source: https://docs.kernel.org/ABI/testing/sysfs-bus-pci and the class codes of
https://pci-ids.ucw.cz/read/PD
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

DEVICES = "sys/bus/pci/devices"
NVIDIA = 0x10DE
# The upper 16 bits of the class: the programming interface below them says nothing here.
DISPLAY = (0x0300, 0x0302)  # VGA compatible controller, 3D controller
BRIDGE = 0x0680  # "other bridge": an NVSwitch; the PCI bridges of a Grace CPU are 0x0604


class Device(NamedTuple):
    """One function of one device. Speeds in GT/s, widths in lanes; None where sysfs does not say."""

    address: str  # 0000:3b:00.0
    pci: str  # 0000:3b:00: as in a kernel log's Xid line, without the function
    vendor: int
    device: int
    class_code: int  # 24 bits
    driver: str | None  # the kernel driver that has it; None: nobody has
    numa_node: int | None = None
    speed: float | None = None
    max_speed: float | None = None
    width: int | None = None
    max_width: int | None = None

    @property
    def id(self) -> str:
        """Vendor and device as lspci -nn prints them, ``10de:2330``."""
        return f"{self.vendor:04x}:{self.device:04x}"


def nvidia_gpus(root: str = "/") -> list[Device]:
    """The NVIDIA GPUs of this machine, by address.

    Virtual functions of a GPU that this machine itself hands out (vGPU host) are none of its GPUs. A
    machine without a PCI bus has no device. Raises ``OSError`` when sysfs is there and cannot be read.
    """
    return _devices(root, lambda code: code >> 8 in DISPLAY)


def nvswitches(root: str = "/") -> list[Device]:
    """The NVSwitches that this machine sees, by address.

    On HGX B200 and in some clouds the switches are not on the machine's bus. Raises as ``nvidia_gpus``.
    """
    return _devices(root, lambda code: code >> 8 == BRIDGE)


def normal(address: str) -> str:
    """Any spelling of a PCI address as ``dddd:bb:dd``, lower case and without the function.

    nvidia-smi writes ``00000000:3B:00.0``, libcuda ``0000:3B:00.0``, lspci ``3b:00.0``. A domain above
    0xffff keeps its digits, as in the kernel. Anything else comes back in lower case.
    """
    bus = address.strip().lower().partition(".")[0]
    domain, colon, rest = bus.partition(":")
    if not colon:
        return bus
    return f"{domain.lstrip('0'):0>4}:{rest}" if ":" in rest else f"0000:{bus}"


def _devices(root: str, wanted: Callable[[int], bool]) -> list[Device]:
    folder = os.path.join(root, DEVICES)
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        path = os.path.join(folder, name)
        if _hex(path, "vendor") != NVIDIA:
            continue
        class_code = _hex(path, "class")
        if class_code is not None and wanted(class_code) and not os.path.lexists(f"{path}/physfn"):
            found.append(_device(name, path, class_code))
    return found


def _device(name: str, path: str, class_code: int) -> Device:
    try:
        driver = os.path.basename(os.readlink(f"{path}/driver"))
    except OSError:
        driver = None
    numa_node = _number(path, "numa_node")
    return Device(
        name,
        normal(name),
        NVIDIA,
        _hex(path, "device") or 0,
        class_code,
        driver,
        None if numa_node is None or numa_node < 0 else int(numa_node),
        _number(path, "current_link_speed"),
        _number(path, "max_link_speed"),
        _width(path, "current_link_width"),
        _width(path, "max_link_width"),
    )


def _read(path: str, name: str) -> str:
    """A file's text, without the layers of open(): of hundreds of devices each is read."""
    try:
        file = os.open(f"{path}/{name}", os.O_RDONLY)
    except OSError:  # a device may go while we look
        return ""
    try:
        return os.read(file, 256).decode("ascii", errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(file)


def _hex(path: str, name: str) -> int | None:
    try:
        return int(_read(path, name), 16)
    except ValueError:
        return None


def _number(path: str, name: str) -> float | None:
    """The number at the beginning: ``32.0 GT/s PCIe`` -> 32.0; None for ``Unknown``."""
    try:
        return float(_read(path, name).partition(" ")[0])
    except ValueError:
        return None


def _width(path: str, name: str) -> int | None:
    """Lanes; the kernel writes 0, or 255 for a device that answers no more."""
    width = _number(path, name)
    return int(width) if width and width < 255 else None
