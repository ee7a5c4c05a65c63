from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from images.clouds.local import layout
from tests.images.clouds.local.conftest import FILES, Made


def tool(*args: str | Path) -> str:
    return subprocess.run([str(arg) for arg in args], check=True, capture_output=True, text=True).stdout


def test_sfdisk_reads_the_partition_table(made: Made) -> None:
    table = json.loads(tool("sfdisk", "-J", made.raw))["partitiontable"]
    assert table["label"] == "gpt"
    assert table["id"].lower() == made.ids.disk
    found = {part["node"].removeprefix(str(made.raw)): part for part in table["partitions"]}
    assert {node: (part["name"], part["start"]) for node, part in found.items()} == {
        "1": ("root", 66 * 2048),
        "14": ("bios", 2048),
        "15": ("efi", 2 * 2048),
    }
    assert found["1"]["type"] == layout.TYPE_ROOT


def test_the_root_file_system_passes_fsck_and_has_its_uuid(made: Made, tmp_path: Path) -> None:
    part = tmp_path / "part"
    with made.raw.open("rb") as disk:
        disk.seek(layout.ROOT_START)
        part.write_bytes(disk.read(93 << 20))
    tool("e2fsck", "-fn", part)
    assert f"Filesystem UUID:          {made.ids.root}\n" in tool("dumpe2fs", "-h", part)


def test_the_efi_partition_holds_shim_grub_and_a_configuration(made: Made, tmp_path: Path) -> None:
    image = f"{made.raw}@@{layout.ESP_START}"
    listing = tool("mdir", "-b", "-/", "-i", image)
    assert sorted(listing.split()) == [
        "::/EFI/",
        "::/EFI/BOOT/",
        "::/EFI/BOOT/BOOTX64.EFI",
        "::/EFI/BOOT/grubx64.efi",
        "::/EFI/debian/",
        "::/EFI/debian/grub.cfg",
    ]
    assert tool("mtype", "-i", image, "::/EFI/BOOT/BOOTX64.EFI") == "MZ shim"
    assert f"search.fs_uuid {made.ids.root} root" in tool("mtype", "-i", image, "::/EFI/debian/grub.cfg")
    assert tool(
        "blkid", "-p", "-O", str(layout.ESP_START), "-s", "UUID", "-o", "value", made.raw
    ).strip() == (made.ids.esp)


def test_the_boot_sector_points_to_the_core(made: Made) -> None:
    disk = made.raw.read_bytes()[: 3 << 20]
    boot = FILES["boot/grub/i386-pc/boot.img"][3]
    assert boot is not None
    assert disk[:0x5C] == boot[:0x5C]
    # grub-core/boot/i386/pc/boot.S: kernel_sector at 0x5c, the jump of boot_drive_check at 0x66
    assert disk[0x5C:0x64] == (2048).to_bytes(8, "little")
    assert disk[0x66:0x68] == b"\x90\x90"
    assert disk[510:512] == b"\x55\xaa"
    core = disk[1 << 20 :]
    # grub-core/boot/i386/pc/diskboot.S: the last 12 bytes of the first sector are the block list
    assert core[500:512] == (2049).to_bytes(8, "little") + (2).to_bytes(2, "little") + b"\x20\x08"
    assert core[512:1500] == b"\xc3" * 988


def test_a_core_too_big_for_its_partition_is_refused(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(4 << 20))
    with pytest.raises(ValueError, match="1048577 bytes"):
        layout.install_bios_grub(raw, boot=bytes(512), core=bytes((1 << 20) + 1))
    assert not any(raw.read_bytes())


def test_identifiers_follow_from_the_digest() -> None:
    assert layout.Ids.from_digest("a") == layout.Ids.from_digest("a")
    assert layout.Ids.from_digest("a") != layout.Ids.from_digest("b")
