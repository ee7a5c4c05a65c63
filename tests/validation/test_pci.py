"""The PCI bus, laid out as sysfs shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from validation import pci

GPU, SWITCH, NIC = (
    ("0x10de", "0x2330", "0x030200"),
    ("0x10de", "0x22a3", "0x068000"),
    ("0x15b3", "0x1021", "0x020000"),
)


def device(
    root: Path, address: str, ids: tuple[str, str, str], driver: str | None = None, **files: str
) -> Path:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, value in {**dict(zip(("vendor", "device", "class"), ids, strict=True)), **files}.items():
        (folder / name).write_text(f"{value}\n")
    if driver:
        target = root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    return folder


def test_gpus_and_nvswitches(tmp_path: Path) -> None:
    device(tmp_path, "0000:86:00.0", GPU, "nvidia")
    device(tmp_path, "0000:3b:00.0", ("0x10de", "0x1eb8", "0x030000"))  # a VGA controller, nobody has it
    device(tmp_path, "0000:07:00.0", SWITCH, "nvidia-nvswitch")
    device(tmp_path, "0000:1a:00.0", NIC, "mlx5_core")
    device(
        tmp_path, "0000:3b:00.1", ("0x10de", "0x10f8", "0x040300"), "snd_hda_intel"
    )  # the GPU's audio function
    device(
        tmp_path, "0009:00:00.0", ("0x10de", "0x22b1", "0x060400"), "pcieport"
    )  # a PCI bridge of a Grace CPU
    device(tmp_path, "0000:02:00.0", ("0x1002", "0x74a1", "0x038000"), "amdgpu")
    device(tmp_path, "0000:00:02.0", ("0x1234", "0x1111", "0x030000"), "bochs-drm")  # QEMU's VGA
    gpus = pci.nvidia_gpus(str(tmp_path))
    assert [(gpu.address, gpu.pci, gpu.driver) for gpu in gpus] == [
        ("0000:3b:00.0", "0000:3b:00", None),
        ("0000:86:00.0", "0000:86:00", "nvidia"),
    ]
    assert gpus[1].id == "10de:2330"
    (switch,) = pci.nvswitches(str(tmp_path))
    assert (switch.address, switch.driver) == ("0000:07:00.0", "nvidia-nvswitch")


def test_the_link(tmp_path: Path) -> None:
    link = {
        "current_link_speed": "16.0 GT/s PCIe",
        "max_link_speed": "32.0 GT/s PCIe",
        "current_link_width": "16",
        "max_link_width": "16",
        "numa_node": "1",
    }
    device(tmp_path, "0000:3b:00.0", GPU, **link)
    device(
        tmp_path, "0000:4b:00.0", GPU, current_link_speed="Unknown", current_link_width="255", numa_node="-1"
    )
    good, gone = pci.nvidia_gpus(str(tmp_path))
    assert good[6:] == (1, 16.0, 32.0, 16, 16)
    assert gone[6:] == (None,) * 5


def test_virtual_functions_of_a_host_are_not_its_gpus(tmp_path: Path) -> None:
    physical = device(tmp_path, "0000:3b:00.0", GPU, "nvidia")
    virtual = device(tmp_path, "0000:3b:00.4", GPU, "nvidia")
    (virtual / "physfn").symlink_to(physical)
    assert [gpu.address for gpu in pci.nvidia_gpus(str(tmp_path))] == ["0000:3b:00.0"]


def test_a_machine_without_a_bus_and_a_device_that_goes(tmp_path: Path) -> None:
    assert pci.nvidia_gpus(str(tmp_path)) == []
    folder = device(tmp_path, "0000:3b:00.0", GPU)
    (folder / "class").unlink()
    assert pci.nvidia_gpus(str(tmp_path)) == []
    folder = device(tmp_path, "0000:4b:00.0", GPU)
    (folder / "vendor").write_text("nonsense\n")
    assert pci.nvidia_gpus(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("00000000:3B:00.0", "0000:3b:00"),  # nvidia-smi
        ("0000:3B:00.0", "0000:3b:00"),  # libcuda, and nvidia-smi's messages
        ("0000:3b:00", "0000:3b:00"),  # a kernel log's Xid line
        ("00000009:01:00.0", "0009:01:00"),
        ("0009:01:00.0", "0009:01:00"),
        ("000C8000:00:00.0", "c8000:00:00"),  # a domain of more than 16 bits
        ("3b:00.0", "0000:3b:00"),  # lspci on a machine with one domain
        (" 0000:3B:00.0\n", "0000:3b:00"),
        ("[N/A]", "[n/a]"),
        ("", ""),
    ],
)
def test_one_spelling_for_all(text: str, normal: str) -> None:
    assert pci.normal(text) == normal
