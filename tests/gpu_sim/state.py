"""What each GPU of a scenario is like: where it is, who sees it, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.gpu_sim import tables
from tests.gpu_sim.scenario import Scenario, hit

#: Real UUIDs are random; every simulated one begins like this, so that evidence made here can be told apart.
UUID_PREFIX = "GPU-51515151-"


@dataclass(frozen=True)
class Gpu:
    """One GPU. ``place`` is its place on the healthy machine's bus, ``index`` what nvidia-smi calls it."""

    place: int
    index: int
    lost: dict[str, Any] | None

    @property
    def bus(self) -> int:
        return 0x43 + 8 * self.place

    @property
    def pci(self) -> str:
        """As sysfs calls it: ``0000:43:00.0``."""
        return f"0000:{self.bus:02x}:00.0"

    @property
    def bus_id(self) -> str:
        """As nvidia-smi prints it: ``00000000:43:00.0``."""
        return f"00000000:{self.bus:02X}:00.0"

    @property
    def uuid(self) -> str:
        return f"{UUID_PREFIX}0000-4000-8000-{self.place:012x}"

    @property
    def mig_uuid(self) -> str:
        """Of its first MIG instance."""
        return f"MIG-51515151-0000-5000-8000-{self.place:012x}"

    @property
    def serial(self) -> str:
        return f"{5151515150000 + self.place}"


def gpus(scenario: Scenario) -> list[Gpu]:
    """The GPUs that the driver knows, lost ones included, but not those that are gone from the bus."""
    gone = set(gone_places(scenario))
    places = [place for place in range(scenario.gpus) if place not in gone]
    return [Gpu(place, index, scenario.on("lost", place)) for index, place in enumerate(places)]


def gone_places(scenario: Scenario) -> list[int]:
    """The GPUs that are not even on the bus."""
    gone: set[int] = set()
    for fault in scenario.having("lost"):
        if not fault["bus"]:
            gone.update(hit(fault, scenario.gpus))
    for fault in scenario.having("count_short"):
        chosen = hit(fault, scenario.gpus)
        gone.update(chosen or range(scenario.gpus - fault["by"], scenario.gpus))
    return sorted(gone)


def on_bus(scenario: Scenario) -> list[Gpu]:
    """The GPUs that sysfs shows."""
    return gpus(scenario)


def cuda(scenario: Scenario) -> list[Gpu]:
    """The GPUs that CUDA offers, in its order."""
    seen = [gpu for gpu in gpus(scenario) if not gpu.lost]
    split = [gpu for gpu in seen if (mig := scenario.on("mig", gpu.place)) and mig["instances"]]
    # A GPU in MIG mode is none for CUDA; of all instances of all GPUs it shows one.
    seen = split[:1] or [gpu for gpu in seen if not scenario.on("mig", gpu.place)]
    for fault in scenario.having("cuda_fewer"):
        seen = seen[: max(len(seen) - fault["by"], 0)]
    return seen


def nvswitches(scenario: Scenario) -> list[str]:
    """The PCI addresses of the NVSwitches: of a whole board of eight only."""
    count = scenario.hardware["nvswitches"] if scenario.gpus >= 8 else 0
    return [f"0000:{0x05 + place:02x}:00.0" for place in range(count)]


def fabric_of(scenario: Scenario, gpu: Gpu) -> dict[str, Any] | None:
    """The fault of this GPU's fabric, if it has a fabric."""
    return scenario.on("fabric", gpu.place) if scenario.hardware["fabric"] else None


def module_version(scenario: Scenario) -> str | None:
    """The version of the loaded kernel module; None: no module is loaded."""
    if scenario.one("driver_not_loaded"):
        return None
    mismatch = scenario.one("version_mismatch")
    return mismatch["module"] if mismatch else scenario.driver


def spelling(driver: str, gpu: Gpu) -> str:
    """How a message of nvidia-smi names a GPU: three spellings are public, their dates guesses."""
    address = f"0000:{gpu.bus:02X}:00.0"
    number = tables.branch(driver)
    return (
        f"GPU {address}"
        if number < 520
        else f"GPU{address}"
        if number < 545
        else f"GPU{gpu.index}: {address}"
    )
