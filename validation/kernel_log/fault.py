"""A fault while it is open: more records may be joined to it."""

from __future__ import annotations

from typing import Any

from validation.faults import graver
from validation.kernel_log.finding import Finding, Role
from validation.kernel_log.model import Event
from validation.kernel_log.when import When

MOST_RELATED = 32  # codes, and links, that an event names
LONGEST_LINE = 2048
Key = tuple[str, str, str, str, bool]  # kind, code or name, PCI address, part of the device, injected


class OpenFault:
    """All records of one fault so far."""

    def __init__(self, finding: Finding, key: Key, serial: int, pause: float) -> None:
        self.main = _short(finding)  # the record that gives the event its code
        self.key = key
        self.serial = serial
        self.pause = pause  # seconds of silence after which the same code is another fault
        self.severity = finding.severity
        self.action = finding.action
        self.records = 0
        self.counts = dict.fromkeys(Role, 0)  # records with the own code
        self.related: dict[int, None] = {}
        self.links: dict[int, None] = {}
        self.details: dict[str, Any] = {}
        self.first: When | None = None
        self.last: When | None = None
        self._judged = finding.role is not Role.DATA  # a record has said how bad it is

    @property
    def code(self) -> int | None:
        """The code of the event; None when it has none."""
        return self.main.code

    @property
    def codes(self) -> set[int | None]:
        """The code of the event and of what was joined to it."""
        return {self.main.code, *self.related}

    def near(self, when: When | None, seconds: float) -> bool:
        """Whether a time is at most so long from the last record; it may be, without times."""
        apart = self.last.apart(when) if self.last and when else None
        return apart is None or apart <= seconds

    def join(self, finding: Finding, when: When | None, times: int) -> None:
        """Takes another record in."""
        self.records += times
        if when:
            self.first = self.first or when
            self.last = when
        if finding.kind == self.main.kind and finding.code == self.main.code:
            self.counts[finding.role] += times
        elif finding.code is not None and len(self.related) < MOST_RELATED:
            self.related[finding.code] = None
        link = finding.details.get("link")
        if link is not None and len(self.links) < MOST_RELATED:
            self.links[link] = None
        if "target" in finding.details:
            self.details["target"] = finding.details["target"]
        if not self._judged and finding.role is not Role.DATA:
            self.severity, self.action, self._judged = finding.severity, finding.action, True
        elif finding.role is not Role.DATA and graver(self.severity, finding.severity) is not self.severity:
            self.severity, self.action = finding.severity, finding.action

    def promote(self, finding: Finding, key: Key) -> None:
        """Lets another record give the event its code; call ``join`` after it."""
        if self.main.code is not None:
            self.related[self.main.code] = None
        self.related.pop(finding.code or 0, None)
        if graver(self.severity, finding.severity) is finding.severity:
            self.severity, self.action = finding.severity, finding.action
        self.main, self.key = _short(finding), key
        self.counts = dict.fromkeys(Role, 0)

    def absorb(self, other: OpenFault) -> None:
        """Takes over what another, less telling event has of the same fault."""
        self.records += other.records
        self.first = other.first or self.first

    def event(self, uuid: str | None) -> Event:
        """The event as it is now."""
        main = self.main
        details = {**main.details, **self.details}
        if len(self.links) > 1:
            details["links"] = sorted(self.links)
        if self.records > self.count:
            details["records"] = self.records
        if uuid:
            details["uuid"] = uuid
        return Event(
            kind=main.kind,
            code=main.code,
            pci=main.pci,
            severity=self.severity.value,
            action=self.action,
            count=self.count,
            first=self.first.text if self.first else None,
            last=self.last.text if self.last else None,
            line=main.line,
            injected=self.key[-1],
            name=main.name,
            related=tuple(self.related),
            details=details,
        )

    @property
    def count(self) -> int:
        """Records with the own code; a PCIe error that port and device report counts once."""
        counts = self.counts.values()
        return max(max(counts) if self.main.kind in ("aer", "driver", "fallen_off_bus") else sum(counts), 1)


def _short(finding: Finding) -> Finding:
    long = len(finding.line) > LONGEST_LINE
    return finding._replace(line=finding.line[:LONGEST_LINE]) if long else finding
