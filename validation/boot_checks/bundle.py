"""The bundle: everything under ``/usr/lib/gpu-image`` but ``image.json``, which contains its digest.

The build computes the digest from the checkout, the machine from its disk, both with ``digest``.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from validation.boot_checks import image


class Entry(NamedTuple):
    """One file of the bundle, as its digest sees it."""

    path: str  # absolute, on the machine
    mode: str  # four octal digits, "0755"
    sha256: str  # hex


def digest(entries: Iterable[Entry]) -> str:
    """``sha256:<hex>`` over the sorted lines ``MODE SHA256 PATH``, whatever the order of ``entries``."""
    lines = sorted(f"{entry.mode} {entry.sha256} {entry.path}\n" for entry in entries)
    return "sha256:" + hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def on_disk() -> list[Entry]:
    """The bundle as it lies on this machine's disk. Raises ``OSError`` for what cannot be read.

    Compiled Python (``__pycache__``) does not count: it is made on the machine from the sources. The build
    makes it so that Python takes it only for a source with the same hash.
    """
    top = image.at(image.BUNDLE)
    entries = []
    for path in _walk(top):
        name = image.BUNDLE + path[len(top) :]
        if name != image.IMAGE:
            status = os.lstat(path)
            content = _content(path, status.st_mode)
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            entries.append(Entry(name, mode, hashlib.sha256(content).hexdigest()))
    return entries


def _walk(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                yield entry.path
            elif entry.name != "__pycache__":
                yield from _walk(entry.path)


def _content(path: str, mode: int) -> bytes:
    """What a file holds. A link or device is never in a bundle, so it need only make the digest differ."""
    if stat.S_ISREG(mode):
        with open(path, "rb") as file:
            return file.read()
    return os.fsencode(os.readlink(path)) if stat.S_ISLNK(mode) else b""
