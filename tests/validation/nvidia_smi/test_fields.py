"""Which fields are asked of which driver, and one name for each."""

from __future__ import annotations

import pytest

from tests.validation.rows import FIXTURES
from validation import nvidia_smi
from validation.nvidia_smi.fields import canonical


def help_of(driver: str) -> str:
    return (FIXTURES / f"nvidia_smi/help_query_gpu_{driver}.txt").read_text(encoding="utf-8")


def test_what_580_offers() -> None:
    offered = nvidia_smi.fields_offered(help_of("580.173.02"))
    header = (FIXTURES / "nvidia_smi/capture_h200.csv").read_text(encoding="utf-8").split("\n")[0]
    asked = {column.split(" [")[0] for column in header.split(", ")}
    assert asked <= offered  # that capture asked for every field of that help
    assert {"clocks_throttle_reasons.active", "gpu_name", "gpu.power.current_limit"} <= offered
    assert not {"0: Default", "1: Exclusive_Thread", "--query-gpu", "completed"} & offered
    # R570 replaced the reset_status fields by the recovery action.
    gone = {"reset_status.reset_required", "reset_status.drain_and_reset_recommended"}
    assert nvidia_smi.choose(offered) == [field for field in nvidia_smi.QUERY if field not in gone]


def test_what_535_offers() -> None:
    offered = nvidia_smi.fields_offered(help_of("535.129.03"))
    chosen = nvidia_smi.choose(offered)
    assert set(chosen) <= offered
    assert {"reset_status.reset_required", "clocks_event_reasons.active", "fabric.state"} <= set(chosen)
    missing = {
        "gpu_recovery_action",
        "remapped_rows.pending",
        "fabric.cliqueId",
        "inforom.checksum_validation",
    }
    assert not missing & set(chosen)


def test_an_older_driver_is_asked_by_its_own_names() -> None:
    offered = {"uuid", "pci.bus_id", "clocks_throttle_reasons.active", "pcie.link.gen.current"}
    assert nvidia_smi.choose(offered) == [
        "uuid",
        "pci.bus_id",
        "clocks_throttle_reasons.active",
        "pcie.link.gen.current",
    ]


@pytest.mark.parametrize("text", ["", "No devices were found\n", '"0: Default" means\n', "\x00" * 1000])
def test_no_help_offers_nothing(text: str) -> None:
    assert nvidia_smi.fields_offered(text) == set()


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("power.draw [W]", "power.draw"),
        ("clocks_event_reasons_counters.hw_thermal_slowdown [us]",
         "clocks_event_reasons_counters.hw_thermal_slowdown"),
        ("clocks_throttle_reasons.hw_slowdown", "clocks_event_reasons.hw_slowdown"),
        ("pcie.link.gen.current", "pcie.link.gen.gpucurrent"),
        ("gpu_bus_id", "pci.bus_id"),
        (" memory.total [MiB] ", "memory.total"),
        ("something.new", "something.new"),
    ],
)  # fmt: skip
def test_one_name_for_a_field(printed: str, name: str) -> None:
    assert canonical(printed) == name


def test_the_command() -> None:
    assert nvidia_smi.command(["uuid", "count"]) == [
        "nvidia-smi",
        "--query-gpu=uuid,count",
        "--format=csv",
    ]
