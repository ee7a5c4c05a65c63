"""Finding: what one record says, before records of one fault are joined."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from validation.faults import Fault, Severity


class Role(enum.Enum):
    """What a record is among those of one error."""

    FIRST = "first"
    FURTHER = "further"  # says more of an error that another record began
    DATA = "data"  # says nothing of how bad it is


class Finding(NamedTuple):
    """One message of interest in a record."""

    kind: str  # as ``Event.kind``
    code: int | None
    name: str
    pci: str | None
    severity: Severity
    action: str
    line: str
    part: str = ""  # of the device: MIG instance ("5/2"), NVLink number of a switch, kind of PCIe error
    role: Role = Role.FIRST
    details: dict[str, Any] = {}  # noqa: RUF012 (never changed)


def of(fault: Fault, kind: str, pci: str | None, line: str, **others: Any) -> Finding:
    """A finding with the severity and action of the catalog."""
    basis = Finding(kind, fault.code, fault.name, pci, fault.severity, fault.action, line)
    return basis._replace(**others)
