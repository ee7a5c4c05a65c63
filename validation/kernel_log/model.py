"""The types that the steps hand on: record, and event."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

from validation.kernel_log.when import When


class Writer(enum.Enum):
    """Who wrote a record, as far as the transport tells."""

    KERNEL = "kernel"
    RING = "ring"  # only a timestamp of the kernel's buffer: almost always the kernel
    USER = "user"  # a program, by syslog or by /dev/kmsg
    FABRIC_MANAGER = "fabric manager"  # reports errors of NVSwitches in a log of its own
    NOBODY = "nobody"  # a bare line


class Record(NamedTuple):
    """One record without what the transport put around it. ``text`` may have several lines."""

    text: str
    when: When | None
    writer: Writer
    program: str  # "" when unknown
    times: int  # how often it was written; more than 1 where syslog counted repetitions


class Event(NamedTuple):
    """One fault, from all records that speak of it."""

    kind: str  # "xid", "sxid", "fallen_off_bus", "aer" or "driver"
    code: int | None  # Xid or SXid
    pci: str | None  # "0000:3b:00": lower case, domain of four digits, no function; None: no line said it
    severity: str  # of the gravest record: "fatal", "degraded", "warn", "info" or "unknown"
    action: str  # what to do, by the fault catalog
    count: int  # type: ignore[assignment]  # records with this event's own code; others: ``related``
    first: str | float | None  # ISO 8601 as far as the line gives it, else seconds since boot, else None
    last: str | float | None
    line: str  # the kernel's text of the record that gave the event its code
    injected: bool  # a program wrote it, not the kernel: a test, or a forgery
    name: str = ""  # NVIDIA's mnemonic, or the catalog's name of a message without a code
    related: tuple[int, ...] = ()  # codes of other records that were joined to it
    details: Mapping[str, Any] = {}  # what else the lines said; keys: --help

    def document(self) -> dict[str, Any]:
        """The event for JSON: its fields, and its details beside them."""
        fields = {key: value for key, value in self._asdict().items() if key != "details"}
        return {**fields, "related": list(self.related), **self.details}
