"""Small shared objects with the vendor's names: compiled where there is a C compiler for the architecture.

Where there is none, a file stands in their place that has an ELF header and nothing behind it: its name,
links and architecture are right, and nothing can load it.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import threading
from pathlib import Path

from images.run import run
from tests.apt_fixture.catalog import FILES, Variables, substitute

MULTIARCH = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
MACHINE = {"amd64": 62, "arm64": 183}  # e_machine of elf.h: EM_X86_64, EM_AARCH64
FLAGS = ("-shared", "-Os", "-fPIC", "-nostdlib", "-s", "-Wall", "-Wextra", "-Werror")
STUB = "native/stub.c"
#: A stub is compiled once and then named: so long is the name that it is compiled with.
ROOM = "stub" + "_" * 60


class Libraries:
    """Makes libraries and remembers them; several threads may ask."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, ...], bytes] = {}
        self._lock = threading.Lock()

    @staticmethod
    def compiler(arch: str) -> str | None:
        """The C compiler for ``arch``, if there is one."""
        native = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine)
        name = os.environ.get("CC", "cc") if arch == native else f"{MULTIARCH[arch]}-gcc"
        return shutil.which(name)

    def get(self, soname: str, source: str, *, arch: str, variables: Variables, place: str) -> bytes:
        """The library ``soname`` for ``arch``, of the C file ``source`` with its variables filled in."""
        compiler = self.compiler(arch)
        if compiler is None:
            return header_only(arch)
        text = substitute((FILES / source).read_text(), variables, place)
        name = ROOM if source == STUB else soname
        key = (compiler, name, text)
        with self._lock:
            if key not in self._made:
                self._made[key] = _compile(compiler, name, text)
            made = self._made[key]
        if name == soname:
            return made
        return made.replace(ROOM.encode(), soname.encode().ljust(len(ROOM), b"\0"))


def _compile(compiler: str, soname: str, text: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "library.c"), Path(folder, "library.so")
        source.write_text(text)
        run([compiler, *FLAGS, f"-Wl,-soname,{soname}", "-o", out, source])
        return out.read_bytes()


def header_only(arch: str) -> bytes:
    """An ELF header of a shared object (64 bits, little endian) without sections or segments."""
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    shared_object = 3
    rest = struct.pack("<HHIQQQIHHHHHH", shared_object, MACHINE[arch], 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0)
    return identity + rest + b"gpu-image fixture: nothing\0"
