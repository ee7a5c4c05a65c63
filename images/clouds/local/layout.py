"""Puts a root file system on a bootable disk without loop devices, mounts or root.

GPT with the partition numbers of Debian's own cloud images: 14 is GRUB's core for BIOS, 15 the EFI system
partition (shim and the signed GRUB, so it boots with Secure Boot too), 1 the ext4 root, last on the disk so
that it can grow. ``mke2fs -d`` fills the root in place; mtools fills the EFI partition.
"""

from __future__ import annotations

import os
import shlex
import shutil
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path

from images import run

SECTOR = 512
MIB = 1 << 20
BIOS_START, BIOS_SIZE = 1 * MIB, 1 * MIB
ESP_START, ESP_SIZE = 2 * MIB, 64 * MIB
ROOT_START = 66 * MIB
GPT_BACKUP = 1 * MIB  # room for the backup table at the end of the disk

# https://uapi-group.org/specifications/specs/discoverable_partitions_specification/
TYPE_BIOS = "21686148-6449-6E6F-744E-656564454649"
TYPE_ESP = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
TYPE_ROOT = "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709"


@dataclass(frozen=True)
class Ids:
    """Identifiers of the disk and its file systems; ``esp`` is a FAT volume id as fstab writes it."""

    disk: str
    root: str
    esp: str

    @classmethod
    def from_digest(cls, digest: str) -> Ids:
        """The same digest gives the same identifiers."""
        space = uuid.UUID("6d2d4e3a-8f0e-5b3f-9a53-0a4c6c1b7f10")
        esp = uuid.uuid5(space, digest + "/esp").hex[:8].upper()
        return cls(
            disk=str(uuid.uuid5(space, digest + "/disk")),
            root=str(uuid.uuid5(space, digest + "/root")),
            esp=f"{esp[:4]}-{esp[4:]}",
        )


def partition_table(ids: Ids, size_bytes: int) -> str:
    """The disk's GPT as sfdisk reads it. ``size_bytes`` is the whole disk's, a multiple of 1 MiB."""
    root_size = size_bytes - ROOT_START - GPT_BACKUP

    def line(number: int, start: int, size: int, kind: str, name: str) -> str:
        return f'{number} : start={start // SECTOR}, size={size // SECTOR}, type={kind}, name="{name}"'

    return "\n".join(
        [
            "label: gpt",
            f"label-id: {ids.disk}",
            line(1, ROOT_START, root_size, TYPE_ROOT, "root"),
            line(14, BIOS_START, BIOS_SIZE, TYPE_BIOS, "bios"),
            line(15, ESP_START, ESP_SIZE, TYPE_ESP, "efi"),
            "",
        ]
    )


def write_disk(tar: Path, raw: Path, *, ids: Ids, size_bytes: int, work: Path) -> Path:
    """Writes ``raw``, a bootable disk with the root file system in ``tar``; returns the unpacked root.

    ``work`` is an empty folder for the root and for scratch files; the caller removes it. As an ordinary
    user owners and device nodes are faked with fakeroot, so the unpacked root's owners are the user's.
    """
    root = work / "root"
    root.mkdir()
    with raw.open("wb") as file:
        file.truncate(size_bytes)
    run.run(["sfdisk", "--quiet", raw], input=partition_table(ids, size_bytes))
    _root_file_system(tar, root, raw, ids, size_bytes)
    _efi_partition(root, raw, ids, work)
    core = (root / "boot/grub/i386-pc/core.img").read_bytes()
    boot = (root / "boot/grub/i386-pc/boot.img").read_bytes()
    install_bios_grub(raw, boot=boot, core=core)
    return root


def _root_file_system(tar: Path, root: Path, raw: Path, ids: Ids, size_bytes: int) -> None:
    blocks = (size_bytes - ROOT_START - GPT_BACKUP) // 4096
    unpack = ["tar", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-xpf", str(tar), "-C", str(root)]
    # metadata_csum_seed and orphan_file: off, so that the readers of older distributions open the disk.
    mke2fs = ["mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-L", "root", "-U", ids.root]
    mke2fs += ["-O", "^metadata_csum_seed,^orphan_file"]
    mke2fs += ["-E", f"offset={ROOT_START},hash_seed={ids.root},root_owner=0:0,assume_storage_prezeroed=1"]
    mke2fs += ["-d", str(root), str(raw), str(blocks)]
    script = f"{shlex.join(unpack)} && {shlex.join(mke2fs)}"
    owner = [] if os.geteuid() == 0 else ["fakeroot", "--"]
    run.run([*owner, "sh", "-c", script])


def _efi_partition(root: Path, raw: Path, ids: Ids, work: Path) -> None:
    """The EFI system partition: shim starts the signed GRUB, which finds the root by its UUID."""
    esp = work / "esp.img"
    config = work / "grub.cfg"
    config.write_text(
        f"search.fs_uuid {ids.root} root\nset prefix=($root)/boot/grub\nconfigfile $prefix/grub.cfg\n"
    )
    serial = ids.esp.replace("-", "")
    run.run(
        ["mformat", "-i", esp, "-C", "-F", "-T", str(ESP_SIZE // SECTOR), "-N", serial, "-v", "EFI", "::"]
    )
    run.run(["mmd", "-i", esp, "::/EFI", "::/EFI/BOOT", "::/EFI/debian"])
    for source, target in (
        (root / "usr/lib/shim/shimx64.efi.signed", "EFI/BOOT/BOOTX64.EFI"),
        (root / "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed", "EFI/BOOT/grubx64.efi"),
        (config, "EFI/debian/grub.cfg"),
    ):
        run.run(["mcopy", "-i", esp, source, f"::/{target}"])
    with raw.open("r+b") as disk, esp.open("rb") as source_file:
        disk.seek(ESP_START)
        shutil.copyfileobj(source_file, disk, MIB)


def install_bios_grub(raw: Path, *, boot: bytes, core: bytes) -> None:
    """Writes GRUB's ``boot.img`` and ``core.img`` to the disk, as grub-bios-setup does.

    The offsets are those of GRUB's ``include/grub/i386/pc/boot.h``: the boot sector holds the core's first
    sector at 0x5c and a jump at 0x66 that only hard disks turn into NOPs; the core's first sector ends in a
    block list (sector as 64 bit, length in sectors as 16 bit, segment) that points to the rest of the core.
    """
    if len(core) > BIOS_SIZE:
        raise ValueError(f"GRUB's core has {len(core)} bytes, the partition {BIOS_SIZE}")
    first = BIOS_START // SECTOR
    sectors = -(-len(core) // SECTOR)
    sector = bytearray(boot[:440])
    struct.pack_into("<Q", sector, 0x5C, first)
    sector[0x66:0x68] = b"\x90\x90"
    body = bytearray(core.ljust(sectors * SECTOR, b"\0"))
    struct.pack_into("<QHH", body, SECTOR - 12, first + 1, sectors - 1, 0x820)
    with raw.open("r+b") as disk:
        disk.write(sector)
        disk.seek(BIOS_START)
        disk.write(body)
