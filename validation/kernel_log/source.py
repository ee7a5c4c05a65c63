"""Opens what the command reads, and says in words what is wrong with it."""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Callable

# What begins like this is no text; how to make text of it.
_NOT_TEXT = {
    b"\x1f\x8b": "compressed with gzip: zcat FILE | python -m validation.kernel_log",
    b"\xfd7zXZ\0": "compressed with xz: xzcat FILE | python -m validation.kernel_log",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: zstdcat FILE | python -m validation.kernel_log",
    b"BZh": "compressed with bzip2: bzcat FILE | python -m validation.kernel_log",
    b"LPKSHHRH": "a journal: journalctl --file=FILE -o json | python -m validation.kernel_log",
}


class Unreadable(Exception):
    """The log cannot be read; the message says what, why and what to do."""


class Source:
    """A log: a file, a pipe, or the kernel's own buffer (/dev/kmsg), which is read up to its end."""

    def __init__(self, path: str) -> None:
        self.name = "standard input" if path == "-" else path
        self._file = 0
        try:
            kmsg = path != "-" and _is_kmsg(os.stat(path))
            if path != "-":  # reading /dev/kmsg would wait for the next message
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if kmsg else 0))
            mode = os.fstat(self._file).st_mode
        except (OSError, ValueError) as error:
            raise Unreadable(f"{self.name}: {_why(error)}") from None
        if stat.S_ISDIR(mode):
            raise Unreadable(f"{self.name}: it is a folder; name the log in it")
        self._kmsg = kmsg
        self._fresh = True

    def readinto(self, buffer: memoryview) -> int:
        """Fills a buffer and returns how many bytes, 0 at the end. Raises ``Unreadable``."""
        while True:
            try:
                size = os.readv(self._file, [buffer])
            except BlockingIOError:
                if self._kmsg:
                    return 0
                select.select([self._file], [], [])  # standard input that somebody made non-blocking
                continue
            except OSError as error:
                if self._kmsg and error.errno == errno.EPIPE:  # overwritten before we came to it
                    continue
                raise Unreadable(f"{self.name}: {_why(error)}") from None
            if self._fresh:
                self._fresh = False
                self._refuse(bytes(buffer[: min(size, 8)]))
            return size

    def _refuse(self, head: bytes) -> None:
        for mark, what in _NOT_TEXT.items():
            if head.startswith(mark):
                raise Unreadable(f"{self.name}: it is {what}")


def _is_kmsg(status: os.stat_result) -> bool:
    """Whether a file is /dev/kmsg, by its device number (Documentation/admin-guide/devices.txt of Linux)."""
    return stat.S_ISCHR(status.st_mode) and (os.major(status.st_rdev), os.minor(status.st_rdev)) == (1, 11)


def reader(path: str) -> Callable[[memoryview], int]:
    """``readinto`` of the log at ``path``; ``-`` is standard input. Raises ``Unreadable``."""
    return Source(path).readinto


def _why(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    if isinstance(error, PermissionError):
        return f"{text}; the kernel log needs root: sudo dmesg | python -m validation.kernel_log"
    return text
