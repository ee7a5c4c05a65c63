"""Record: from the raw bytes of a record to its text, its writer and its time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from validation.kernel_log import journal
from validation.kernel_log.heads import Heads
from validation.kernel_log.lazy import pattern
from validation.kernel_log.model import Record, Writer

LONGEST = 1 << 16  # bytes of a record that are read; the kernel's own longest is 1 KiB
MOST_WRAPPERS = 3  # JSON in JSON
_REPEATED = pattern(r"message repeated (\d{1,9}) times: \[ ?(.*?)\]?$", re.DOTALL)
_COLOUR = pattern(r"\x1b\[[0-9;]{0,16}m")
_ESCAPES = pattern(r"(?:\\x[0-9a-fA-F]{2})+")


def parse(raw: bytes) -> Iterator[Record]:
    """The records in a raw record: one, or several where all lines of a log are indented alike."""
    fields = journal.fields_of(raw)
    if fields is not None:
        inner = fields.get("dmesg")  # a whole document of dmesg --json
        for part in inner if isinstance(inner, list) else [fields]:
            heads = Heads()
            text = journal.message(part, heads) if isinstance(part, dict) else None
            if text is not None:
                yield _record(text, heads)
        return
    text = _clean(raw[:LONGEST].decode("utf-8", "backslashreplace"))
    if text[:1] in (" ", "\t"):
        for line in text.split("\n"):
            yield _record(line.strip(), Heads())
    else:
        yield _record(text, Heads())


def _record(text: str, heads: Heads) -> Record:
    """One record from its text with heads; what ``heads`` knows already comes from around it."""
    text = _clean(text[:LONGEST])
    for _ in range(MOST_WRAPPERS):
        first, newline, rest = text.partition("\n")
        first = heads.strip(first) if heads.writer is Writer.NOBODY else _without_clock(first, heads)
        text = first + newline + rest
        if not text.startswith("{"):
            break
        fields = journal.fields_of(text.encode("utf-8", "backslashreplace"))
        inner = journal.message(fields, heads) if fields else None
        if inner is None:
            break
        text = _clean(inner[:LONGEST])
    times = 1
    if "message repeated" in text and (repeated := _REPEATED().match(text)):
        times, text = max(int(repeated[1]), 1), _without_clock(repeated[2], heads)
    if heads.escaped:  # lines that follow are properties of the device (" SUBSYSTEM=pci"), not text
        text = _ESCAPES().sub(_unescape, text.partition("\n")[0])
    text = text.replace("#012", "\n")  # how rsyslog writes a line break
    if "\n" in text:
        text = "\n".join(line.strip() for line in text.split("\n"))
    return Record(text.strip(), heads.when, heads.writer, heads.program, times)


def _without_clock(line: str, heads: Heads) -> str:
    """A message whose writer is known, without a kernel timestamp that stands in the message itself."""
    return heads.strip(line) if line.startswith("[") else line


def _clean(text: str) -> str:
    """Without byte order mark, carriage returns, NUL bytes of a log that a crash cut, and colours."""
    text = text.lstrip("\ufeff\0").replace("\r", "").replace("\0", "")
    return _COLOUR().sub("", text) if "\x1b" in text else text


def _unescape(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("\\x", "")).decode("utf-8", "backslashreplace")
