"""The sub-code table of Xid 144-150 (NVLink 5), as mirrored in leptonai/gpud's catalog_generated.go.

A line carries a unit, a severity word and registers: ``145, RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082
0x00000040 ...)``. The first register (intrinfo) says by bits which unit it was, in one of two layouts: V1
before driver 575, V2 since. The second (error status) is a bit mask, in 149 and 150 a number. Word and
table can disagree; both are kept, and the graver counts: a link that is said to be lost by either is lost.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from validation.faults.catalog import data, fault_of
from validation.faults.model import Fault, Severity, graver

CODES = range(144, 151)
_NUMBERED = (149, 150)  # their error status is a number, not a bit mask


class Decoded(NamedTuple):
    """What the table says about one line: the gravest row that fits, and the layout that it was found by."""

    fault: Fault
    layout: str  # "v1", "v2", "v1/v2" (both fit), or "" (found by the unit's name alone)


class _Row(NamedTuple):
    entry: dict[str, Any]
    units: frozenset[str]
    status: int
    layouts: dict[str, tuple[int, int]]  # name: (mask, value)


@functools.cache
def _rows(code: int) -> tuple[_Row, ...]:
    found = []
    for entry in data()["nvlink5"]:
        if entry["code"] == code:
            layouts = {name: _bits(entry[name]) for name in ("v1", "v2")}
            units = frozenset(entry["unit"].split("/"))
            found.append(_Row(entry, units, int(entry["status"], 16), layouts))
    return tuple(found)


def _bits(pattern: str) -> tuple[int, int]:
    """A pattern of 0, 1 and - (any), highest bit first, as mask and value."""
    mask = int(pattern.replace("0", "1").replace("-", "0"), 2)
    return mask, int(pattern.replace("-", "0"), 2)


def rows(code: int, unit: str | None = None, status: int | None = None) -> list[Fault]:
    """The rows of a code, narrowed to a unit and an error status where given."""
    found = [row for row in _rows(code) if unit is None or _same_unit(row, unit)]
    return [fault_of("nvlink5", row.entry) for row in found if status is None or _same_status(row, status)]


def decode(code: int, unit: str, intrinfo: int | None, status: int) -> Decoded | None:
    """The row that fits a line best; None when the table has none.

    A row whose unit and register layout both fit beats one with the layout alone, that one with the unit
    alone. Several bits of the error status: the gravest row.
    """
    fitting = [row for row in _rows(code) if _same_status(row, status)]
    by_unit = [row for row in fitting if _same_unit(row, unit)]
    by_layout = [row for row in fitting if _layout(row, intrinfo)]
    both = [row for row in by_unit if row in by_layout]
    for chosen in (both, by_layout, by_unit):
        if chosen:
            gravest = graver(*(Severity(row.entry["severity"]) for row in chosen))
            row = next(row for row in chosen if row.entry["severity"] == gravest.value)
            return Decoded(fault_of("nvlink5", row.entry), _layout(row, intrinfo))
    return None


def _same_unit(row: _Row, unit: str) -> bool:
    return not row.units.isdisjoint(unit.upper().split("/"))


def _same_status(row: _Row, status: int) -> bool:
    if row.status == status:
        return True
    return row.entry["code"] not in _NUMBERED and bool(row.status & status)


def _layout(row: _Row, intrinfo: int | None) -> str:
    if intrinfo is None:
        return ""
    return "/".join(name for name, (mask, value) in row.layouts.items() if intrinfo & mask == value)
