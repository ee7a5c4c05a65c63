"""What a record must contain to be worth reading, and a fast search for it.

An ordinary kernel log has millions of lines and a handful of ours, so reading it is searching it. libc's
``strstr`` is vectorised and several times as fast as ``bytes.find`` (which is used where ``ctypes`` or libc
are missing, and for blocks that hold NUL bytes, at which ``strstr`` would stop).
"""

from __future__ import annotations

from typing import Any

NEEDLES = (
    b"NVRM",  # the driver: Xid and its own messages
    b"SXid",  # NVSwitch
    b"AER:",  # PCIe errors, as the root port reports them
    b"Bus Error",  # "PCIe Bus Error", the same with the erring device
    b"NVSwitch",  # the fabric manager's own log
)
# A message that is not plain text, as journalctl -o json and json-pretty print it: byte numbers.
JSON_NEEDLES = (b'"MESSAGE":[', b'"MESSAGE" : [')
FIELD = b'"MESSAGE"'


def has_needle(data: bytes) -> bool:
    """Whether a record holds any needle."""
    return any(needle in data for needle in NEEDLES) or any(needle in data for needle in JSON_NEEDLES)


class Haystack:
    """A buffer to read into and to search; one byte longer than its capacity, for ``strstr``'s end mark."""

    def __init__(self, capacity: int) -> None:
        self.buffer = bytearray(capacity + 1)
        self.view = memoryview(self.buffer)
        self.capacity = capacity
        self._strstr: Any = None
        self._address = 0
        self._seals = 0
        self._plain = True

    def seal(self, end: int) -> None:
        """Ends the text at ``end``: what stands after it is not searched. Call it after every change."""
        self._seals += 1
        if self._seals == 2:  # for one block, loading ctypes takes longer than it saves
            self._strstr, self._address = _libc(self.buffer)
        self._plain = self._strstr is None or self.buffer.find(b"\0", 0, end) >= 0
        self.buffer[end] = 0

    def find(self, needle: bytes, start: int, end: int) -> int:
        """Where the needle stands first at or after ``start``, or -1. ``end`` must be what was sealed."""
        if self._plain:
            return self.buffer.find(needle, start, end)
        found: int | None = self._strstr(self._address + start, needle)
        return -1 if found is None else found - self._address


def _libc(buffer: bytearray) -> tuple[Any, int]:
    """libc's ``strstr`` and the buffer's address; (None, 0) where there is no such thing."""
    try:
        import ctypes

        strstr = ctypes.CDLL(None).strstr
        address = ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
    except (ImportError, OSError, AttributeError):
        return None, 0
    strstr.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    strstr.restype = ctypes.c_void_p
    return strstr, address
