"""Reads what ``nvidia-smi --query-gpu=... --format=csv`` printed. Pure: text in, values out.

nvidia-smi separates cells by ", ", quotes nothing, and puts error messages between the rows.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from validation.judgement import quote
from validation.nvidia_smi.fields import QUERY, canonical
from validation.nvidia_smi.messages import LOST, Message, bus, explain

ROWS = 4096
LINES = 20_000
IGNORED = 1000  # lines before the header that are nothing to us, as a login banner
MESSAGE_LENGTH = 1000  # characters of a line in which a message is looked for
LINE_LENGTH = 100_000  # characters; the widest query of driver 580 has 5,000
NO_UUID = "GPU-00000000-0000-0000-0000-000000000000"  # what a capture has whose uuids were taken out
_NAME = re.compile(r"[A-Za-z][\w.]*(?:\s*\[[^\]]{0,20}\])?")
_FAMILIES = re.compile(
    r"(?:pci|pcie|vgpu_\w+|accounting|driver_model|inforom|gom|fan|clocks\w*|memory|utilization|encoder|"
    r"dramEncryption|ecc|retired_pages|remapped_rows|temperature|power|module|power_smoothing|mig|gsp|c2c|"
    r"protected_memory|fabric|platform|reset_status|enforced)\.\w"
)
_SINGLE = frozenset(
    {*(field for field in QUERY if "." not in field), "serial", "pstate", "hostname", "compute_mode"}
)
_ALARMING = re.compile(r"unable|fail|error|lost|cannot|could ?n|not |warn|invalid|denied|no ", re.IGNORECASE)


class Gpu(NamedTuple):
    """One row. ``fields``: every cell by the canonical name of its column, as printed, without spaces."""

    index: int | None  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    name: str | None
    uuid: str | None
    pci: str | None  # 0000:3b:00, lower case, without function
    fields: dict[str, str]

    def __str__(self) -> str:
        return f"GPU {self.index}" if self.index is not None else f"the GPU {self.pci or self.uuid or '?'}"

    @property
    def identity(self) -> tuple[str, ...] | None:
        """What tells this GPU from the others; None if nothing that was asked does."""
        told = (self.uuid, self.pci) if self.uuid or self.pci else (self.fields.get("serial"),)
        if not any(told):
            told = (None if self.index is None else str(self.index),)
        return tuple(part or "" for part in told) if any(told) else None


class Query(NamedTuple):
    """``header``: the canonical names of the columns, empty without a header. ``messages``: the lines that
    are no rows. ``problems``: why the text is not what nvidia-smi prints for a query.
    """

    header: list[str]
    gpus: list[Gpu]
    messages: list[Message]
    problems: list[str]

    @property
    def lost(self) -> list[Message]:
        """The messages about single GPUs that do not answer."""
        return [message for message in self.messages if message.kind == LOST]


def parse(text: str) -> Query:
    """Reads a query's output, or whatever nvidia-smi printed instead; never raises."""
    query = Query([], [], [], [])
    lines = text.lstrip("\ufeff").split("\n", LINES)
    if len(lines) > LINES:
        query.problems.append(f"more than {LINES} lines")
    ignored = 0
    for line in lines[:LINES]:
        plain = line.strip()[: LINE_LENGTH + 1]
        if len(plain) > LINE_LENGTH:
            query.problems.append(f"a line of more than {LINE_LENGTH} characters")
        elif columns := _header(plain):
            if not query.header:
                query.header.extend(columns)
            elif columns != query.header:
                query.problems.append("the text holds queries of different fields")
                break
        elif plain:
            ignored += not _line(plain, query)
        if max(len(query.gpus), len(query.messages)) > ROWS or len(query.problems) > 20 or ignored > IGNORED:
            query.problems.append("far more lines than a machine has GPUs")
            break
    return query


def _header(line: str) -> list[str] | None:
    """The columns, if the line is a header: every cell reads like a field, and one is known."""
    cells = [cell.strip() for cell in line.split(",")]
    if not all(_NAME.fullmatch(cell) for cell in cells):
        return None
    columns = [canonical(cell) for cell in cells]
    return columns if any(column in _SINGLE or _FAMILIES.match(column) for column in columns) else None


def _line(line: str, query: Query) -> bool:
    """One line that is no header: a row, a message, or something else. False if it says nothing."""
    columns = query.header
    cells = _cells(line, columns)
    message = None if cells and _identified(columns, cells) else explain(line[:MESSAGE_LENGTH])
    if message:
        query.messages.append(message)
    elif cells:
        fields = dict(zip(columns, cells, strict=True))
        query.gpus.append(_gpu(fields))
        for column, cell in zip(columns, cells, strict=True):
            # Twice by its old and its new name is ordinary; a PCIe link can change between the two readings.
            if fields[column] != cell and not column.startswith("pcie."):
                query.problems.append(f"{column} is there twice, {cell[:20]!r} and {fields[column][:20]!r}")
    elif _looks_like_row(line):
        what = "is not as long as the header" if columns else "stands there without a header"
        query.problems.append(f"a row {what}: {quote(line, 80)!r}")
    elif columns or _ALARMING.search(line):
        query.problems.append(f"a line that is no row and no message of nvidia-smi: {quote(line, 80)!r}")
    else:
        return False
    return True


def _cells(line: str, columns: list[str]) -> list[str] | None:
    """The cells of a row, as many as there are columns. A name may hold commas; nothing else does."""
    cells = [cell.strip() for cell in line.split(",")]
    extra = len(cells) - len(columns)
    if columns and extra > 0 and "name" in columns:
        at = columns.index("name")
        joined = [*cells[:at], ", ".join(cells[at : at + extra + 1]), *cells[at + extra + 1 :]]
        return joined if _identified(columns, joined) else None
    return cells if columns and not extra else None


def _identified(columns: list[str], cells: list[str]) -> bool:
    """Whether a uuid or a bus id stands where the header has it: then the line is a row for certain."""
    row = dict(zip(columns, cells, strict=False))
    return row.get("uuid", "").startswith(("GPU-", "MIG-")) or bus(row.get("pci.bus_id")) is not None


def _looks_like_row(line: str) -> bool:
    return line.count(",") >= 2 or "GPU-" in line


def _gpu(fields: dict[str, str]) -> Gpu:
    index = fields.get("index", "")
    return Gpu(
        int(index) if index.isascii() and index.isdigit() and len(index) <= 4 else None,
        _value(fields, "name"),
        None if fields.get("uuid") == NO_UUID else _value(fields, "uuid"),
        bus(fields.get("pci.bus_id")),
        fields,
    )


def _value(fields: dict[str, str], name: str) -> str | None:
    value = fields.get(name, "")
    return quote(value, 100) if value and not value.startswith("[") else None
