"""A tiny root file system with the boot loader's files in their places, and a disk made of it."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from images.clouds.local import layout

SIZE = 256 << 20  # two block groups, so the second has a backup of the superblock
CANARY = b"canary-7f3a91c2"
#: path -> (mode, uid, gid, content); a content of None is a folder.
FILES: dict[str, tuple[int, int, int, bytes | None]] = {
    "boot/grub/i386-pc/boot.img": (0o644, 0, 0, bytes(range(256)) * 2),
    "boot/grub/i386-pc/core.img": (0o644, 0, 0, b"\xc3" * 1500),
    "usr/lib/shim/shimx64.efi.signed": (0o644, 0, 0, b"MZ shim"),
    "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed": (0o644, 0, 0, b"MZ grub"),
    "var/lib/dpkg/status": (
        0o644,
        0,
        0,
        b"Package: bash\nStatus: install ok installed\nVersion: 5.2.37-2+b5\nDescription: sh\n a shell\n\n"
        b"Package: gone\nStatus: deinstall ok config-files\nVersion: 1.0-1\n\n"
        b"Package: held\nStatus: hold ok installed\nVersion: 2:3.4~rc1-1\n",
    ),
    "etc/shadow": (0o640, 0, 42, b"root:*:1::::::\n"),
    "etc/ssh": (0o755, 0, 0, None),
    "etc/with space": (0o755, 0, 0, None),
    "etc/with space/file": (0o600, 1000, 1001, b"secret\n"),
    "usr/bin/sudo": (0o4755, 0, 0, b"#!"),
    "var/log/canary.log": (0o600, 0, 0, b"x" * 5000 + CANARY + b"\n"),
}


def write_tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for name, (mode, uid, gid, content) in FILES.items():
            member = tarfile.TarInfo("./" + name)
            member.mode, member.uid, member.gid = mode, uid, gid
            member.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            member.size = len(content or b"")
            tar.addfile(member, io.BytesIO(content or b""))


@dataclass(frozen=True)
class Made:
    raw: Path
    ids: layout.Ids


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("disk")
    work = folder / "work"
    work.mkdir()
    write_tar(folder / "root.tar")
    ids = layout.Ids.from_digest("aa" * 32)
    layout.write_disk(folder / "root.tar", folder / "disk.raw", ids=ids, size_bytes=SIZE, work=work)
    return Made(folder / "disk.raw", ids)
