"""Structured transports: journalctl -o json, json-pretty, export and verbose, and JSON of containers.

Formats: https://systemd.io/JOURNAL_EXPORT_FORMATS/ and systemd.journal-fields(7).
"""

from __future__ import annotations

import json
import re
from typing import Any

from validation.kernel_log.heads import Heads
from validation.kernel_log.model import Writer
from validation.kernel_log.when import from_epoch, since_boot

_VERBOSE = re.compile(rb"[A-Z][a-z]{2} \d{4}-\d\d-\d\d [\d:.]+ \S+ \[s=[0-9a-f]+;")
_DECODER = json.JSONDecoder(strict=False)
_HEAD = "__HEAD"
_FIELD = re.compile(rb"[A-Z_][A-Z0-9_]{0,63}")


def fields_of(raw: bytes) -> dict[str, Any] | None:
    """The fields of a structured record, or None when it is a text line."""
    start = raw.lstrip(b"\x1e \t\r\n")
    if start.startswith((b"{", b"data: {")):  # the latter: json-sse
        return _json(start.removeprefix(b"data: "))
    if start.startswith((b"__CURSOR=", b"_", b"MESSAGE")) and _FIELD.match(start):
        return _export(start)
    if b" [s=" in start[:64] and _VERBOSE.match(start):
        first, *lines = start.decode("utf-8", "backslashreplace").split("\n")
        return {_HEAD: first, **dict(line.strip().split("=", 1) for line in lines if "=" in line)}
    return None


def message(fields: dict[str, Any], heads: Heads) -> str | None:
    """The text of a structured record; ``heads`` learns who wrote it and when. None when it holds none."""
    if "MESSAGE" in fields:
        _journal(fields, heads)
        text = _text(fields["MESSAGE"])
        name = fields.get("SYSLOG_IDENTIFIER")
        if heads.writer is Writer.USER and isinstance(name, str):
            return heads.tag(name) + text
        return text
    if isinstance(fields.get("log"), str):  # a container's own log file
        heads.strip(f"{fields.get('time', '')} ")
        heads.when_read = True
        return str(fields["log"]).rstrip("\n")
    if isinstance(fields.get("msg"), str) and ("pri" in fields or "sequence" in fields):  # dmesg --json
        if fields.get("fac", "kern") != "kern":
            heads.facility(1)
        elif isinstance(fields.get("pri"), int):
            heads.facility(fields["pri"] >> 3)
        else:
            heads.written_by(Writer.RING)
        seconds = _number(fields.get("time"))
        heads.when = since_boot(seconds) if seconds is not None else None
        return str(fields["msg"])
    return None


def _journal(fields: dict[str, Any], heads: Heads) -> None:
    name = fields.get("SYSLOG_IDENTIFIER")
    if isinstance(name, str) and name in ("nv-fabricmanager", "nvidia-fabricmanager"):
        heads.tag(name)
    elif "_TRANSPORT" not in fields and name is None:
        pass  # journalctl --output-fields=MESSAGE: nobody tells who wrote it
    elif fields.get("_TRANSPORT", "kernel" if name == "kernel" else "") != "kernel":
        heads.written_by(Writer.USER)  # syslog, stdout, journal: whatever it calls itself, it is a program
    else:
        heads.facility(int(_number(fields.get("SYSLOG_FACILITY")) or 0))
    if _HEAD in fields:
        heads.strip(fields[_HEAD])
        return
    for key in ("__REALTIME_TIMESTAMP", "_SOURCE_REALTIME_TIMESTAMP"):
        microseconds = _number(fields.get(key))
        if microseconds is not None:
            seconds, rest = divmod(int(microseconds), 1_000_000)
            heads.when = from_epoch(seconds, f"{rest:06}")
            if heads.when:
                return
    for key in ("_SOURCE_MONOTONIC_TIMESTAMP", "__MONOTONIC_TIMESTAMP"):
        microseconds = _number(fields.get(key))
        if microseconds is not None:
            heads.when = since_boot(microseconds / 1e6)
            return


def _text(value: Any) -> str:
    """A field's value: text, an array of bytes (not printable), an array of values, or null (too long)."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if all(isinstance(part, int) and 0 <= part < 256 for part in value):
            return bytes(value).decode("utf-8", "backslashreplace")
        return "\n".join(_text(part) for part in value[:64])
    return ""


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        return None
    return number if abs(number) < 1e18 else None  # NaN fails too


def _json(raw: bytes) -> dict[str, Any] | None:
    """The first object, whatever follows it; the first of ``dmesg --json`` stands inside another."""
    text = raw.decode("utf-8", "backslashreplace")
    start = 0
    for _ in range(3):
        try:
            document, _ = _DECODER.raw_decode(text, start)
        except (RecursionError, ValueError):
            start = text.find("{", start + 1)
            if start < 0:
                return None
        else:
            return document if isinstance(document, dict) else None
    return None


def _export(raw: bytes) -> dict[str, Any]:
    """``FIELD=value`` lines; what is not plain text follows the name as length (64 bit) and bytes."""
    found: dict[str, Any] = {}
    at = 0
    while at < len(raw):
        end = raw.find(b"\n", at)
        end = len(raw) if end < 0 else end
        name, equals, value = raw[at:end].partition(b"=")
        at = end + 1
        if not equals and _FIELD.fullmatch(name):
            size = int.from_bytes(raw[at : at + 8], "little")
            value = raw[at + 8 : at + 8 + size]
            at += 8 + min(size, len(raw)) + 1
        found[name.decode("latin-1")] = value.decode("utf-8", "backslashreplace")
    return found
