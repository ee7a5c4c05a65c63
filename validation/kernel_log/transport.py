"""Transport: from a byte stream, or from lines, to raw records that may matter.

A raw record is what one program wrote at once: a line and its continuation lines (indented, as dmesg and
journalctl print them), an object of JSON, or an entry of journalctl's export format. Records without a
needle are passed over unread; memory stays at one block, whatever the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from validation.kernel_log.needles import FIELD, JSON_NEEDLES, NEEDLES, Haystack, has_needle

BLOCK = 1 << 18  # bytes read at once: fits the processor's cache, so that every needle is sought there
CAPACITY = 1 << 20  # the longest record that is read in one piece; what is longer is cut
GLANCE = 1 << 16  # of a block, in which a log of the journal in JSON shows that it is one
MOST_LINES = 200  # the longest record in lines; what is longer goes on as another with the same head
SPACE = b" \t"


def from_stream(readinto: Callable[[memoryview], int | None]) -> Iterator[bytes]:
    """Records of a stream. ``readinto`` fills a buffer and returns how much, and 0 at the end."""
    hay = Haystack(CAPACITY)
    used = 0
    layout: _Layout | None = None
    while size := readinto(hay.view[used : min(used + BLOCK, CAPACITY)]):
        used += size
        layout = layout or _sniff(bytes(hay.view[: min(used, 4096)]))
        cut = layout.boundary(hay.buffer, used)
        if not cut and used == CAPACITY:
            cut = hay.buffer.rfind(b"\n", 0, used) + 1 or used
        if cut:
            yield from _candidates(hay, cut, layout)
            rest = bytes(hay.view[cut:used])
            used = len(rest)
            hay.view[:used] = rest
    if used:
        yield from _candidates(hay, used, layout or _Layout())


def _candidates(hay: Haystack, end: int, layout: _Layout) -> Iterator[bytes]:
    """The records before ``end`` that hold a needle, in their order."""
    kept = hay.buffer[end]
    hay.seal(end)
    needles: Sequence[bytes] = NEEDLES
    if hay.buffer.find(FIELD, 0, min(end, GLANCE)) >= 0:
        needles = NEEDLES + JSON_NEEDLES
    following = {needle: place for needle in needles if (place := hay.find(needle, 0, end)) >= 0}
    done = 0
    while following:
        at = min(following.values())
        start, stop = layout.record(hay.buffer, at, done, end)
        yield bytes(hay.view[start:stop])
        done = max(stop, at + 1)
        for needle, place in tuple(following.items()):
            if place < done:
                following[needle] = hay.find(needle, done, end) if done < end else -1
                if following[needle] < 0:
                    del following[needle]
    hay.buffer[end] = kept


class _Layout:
    """Lines: a record ends before the next line that is not indented."""

    def boundary(self, buffer: bytearray, end: int) -> int:
        """Where the last complete record ends, or 0."""
        newline = buffer.rfind(b"\n", 0, end)
        for _ in range(MOST_LINES):
            if newline < 0:
                return 0
            if newline + 1 < end and buffer[newline + 1] not in SPACE:
                return newline + 1
            newline = buffer.rfind(b"\n", 0, newline)
        return 0

    def record(self, buffer: bytearray, at: int, low: int, end: int) -> tuple[int, int]:
        """The record around ``at``, between ``low`` and ``end``."""
        start = buffer.rfind(b"\n", low, at) + 1 or low
        for _ in range(MOST_LINES):
            if start == low or buffer[start] not in SPACE:
                break
            start = buffer.rfind(b"\n", low, start - 1) + 1 or low
        stop = buffer.find(b"\n", at, end)
        for _ in range(MOST_LINES):
            if stop < 0:
                return start, end
            if stop + 1 >= end or buffer[stop + 1] not in SPACE:
                break
            stop = buffer.find(b"\n", stop + 1, end)
        return start, stop if stop >= 0 else end


class _Marked(_Layout):
    """Records that end with a mark; its last bytes may belong to the next record."""

    def __init__(self, *marks: tuple[bytes, int]) -> None:
        self.marks = marks  # (mark, how many of its bytes end the record)

    def boundary(self, buffer: bytearray, end: int) -> int:
        """Where the last complete record ends, or 0."""
        return self._last(buffer, 0, end, 0)

    def record(self, buffer: bytearray, at: int, low: int, end: int) -> tuple[int, int]:
        """The record around ``at``, between ``low`` and ``end``."""
        stops = ((buffer.find(mark, at, end), size) for mark, size in self.marks)
        stop = min((place + size for place, size in stops if place >= 0), default=end)
        return self._last(buffer, low, at, low), stop

    def _last(self, buffer: bytearray, low: int, end: int, otherwise: int) -> int:
        places = ((buffer.rfind(mark, low, end), size) for mark, size in self.marks)
        return max((place + size for place, size in places if place >= 0), default=otherwise)


def _sniff(head: bytes) -> _Layout:
    """How records are told apart, from how the stream begins."""
    head = head.lstrip(b"\xef\xbb\xbf\r\n\t ")
    if head.startswith(b"__CURSOR="):
        return _Marked((b"\n\n", 2))
    if head[:1] == b"{" and head[1:].lstrip(b" \t\r")[:1] == b"\n":
        return _Marked((b"\n}\n", 3), (b"},{\n", 2))
    return _Layout()


def from_lines(lines: Iterable[bytes | str]) -> Iterator[bytes]:
    """Records of lines; an item may also be a whole record. One line is read ahead, no more."""
    record: list[bytes] = []
    size = 0
    ends: Callable[[bytes], bool] | None = None  # tells the last line of a record that has such a line
    for item in lines:
        line = item.encode("utf-8", "surrogatepass") if isinstance(item, str) else bytes(item)
        line = line.rstrip(b"\r\n")
        if ends is None and record and _indent(line) <= _indent(record[0]):
            yield from _complete(record)
            record, size = [], 0
        if not record:
            ends = _end_of(line)
        record.append(line)
        size += len(line)
        if ends is None:
            if len(record) > MOST_LINES or size > CAPACITY:
                yield from _complete(record)
                record, size = record[:1], 0
        elif (len(record) > 1 and ends(line)) or size > CAPACITY:
            yield from _complete(record)
            record, size = [b"{"] if line.rstrip().endswith(b"},{") else [], 0
    yield from _complete(record)


def _complete(record: list[bytes]) -> Iterator[bytes]:
    whole = b"\n".join(record)
    if has_needle(whole):
        yield whole


def _indent(line: bytes) -> int:
    return len(line) - len(line.lstrip(SPACE))


def _end_of(first: bytes) -> Callable[[bytes], bool] | None:
    """What tells the last line of the record that begins with ``first``; None: the next record does."""
    if first.startswith(b"__CURSOR="):
        return lambda line: not line
    if first.strip() == b"{":
        return lambda line: line.lstrip()[:1] == b"}"
    return None
