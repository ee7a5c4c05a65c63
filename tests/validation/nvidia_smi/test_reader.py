"""The csv of a query as values."""

from __future__ import annotations

import pytest

from tests.validation.rows import FIXTURES
from validation import nvidia_smi
from validation.nvidia_smi.messages import bus


def parse(name: str) -> nvidia_smi.Query:
    return nvidia_smi.parse((FIXTURES / f"nvidia_smi/{name}").read_text(encoding="utf-8"))


def test_a_row() -> None:
    query = parse("capture_h200.csv")
    (gpu,) = query.gpus
    assert (gpu.index, gpu.name, gpu.pci) == (0, "NVIDIA H200", "0000:83:00")
    assert gpu.uuid is None  # the capture's uuid is taken out
    assert gpu.fields["memory.total"] == "143771 MiB"
    assert gpu.fields["clocks_event_reasons.active"] == "0x0000000000000001"
    assert gpu.fields["platform.chassis_serial_number"] == ""
    assert (query.messages, query.problems, len(query.header)) == ([], [], 214)


def test_a_lost_gpu_is_a_message_with_its_address() -> None:
    query = parse("smi_query_h200_lost_gpu.csv")
    assert [gpu.pci for gpu in query.gpus] == ["0000:43:00", "0000:53:00"]
    assert [message.pci for message in query.lost] == ["0000:4b:00"]


def test_a_comma_in_a_name_shifts_no_column() -> None:
    (gpu,) = parse("name_with_comma.csv").gpus
    assert gpu.name == "NVIDIA H200, Engineering Sample"
    assert gpu.fields["fabric.status"] == "Success"


def test_old_names_are_read_as_the_new_ones() -> None:
    (gpu,) = parse("old_driver.csv").gpus
    assert gpu.fields["clocks_event_reasons.active"] == "0x0000000000000001"
    assert gpu.fields["pcie.link.gen.gpucurrent"] == "1"


@pytest.mark.parametrize(
    ("address", "pci"),
    [
        ("00000000:3B:00.0", "0000:3b:00"),
        ("0000:3b:00.0", "0000:3b:00"),
        ("000015B5:00:00.0", "15b5:00:00"),
        ("0001ABCD:00:00.0", "1abcd:00:00"),
        ("3B:00.0", "0000:3b:00"),
        ("[N/A]", None),
        ("", None),
        (None, None),
    ],
)
def test_addresses(address: str | None, pci: str | None) -> None:
    assert bus(address) == pci
