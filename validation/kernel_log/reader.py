"""From a record to its findings. The steps before and after know nothing of NVIDIA's messages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from validation.faults import Severity
from validation.kernel_log import driver, pci, xid
from validation.kernel_log.finding import Finding
from validation.kernel_log.model import Record, Writer
from validation.kernel_log.quotes import is_own

MOST_FINDINGS = 16  # in one line; the kernel's longest line has room for fewer
MOST_KNOWN = 256  # messages of which the findings are kept: a flood repeats a few
LONGEST_KNOWN = 1024
MOST_UUIDS = 256  # GPUs remembered
LEAD = 8  # records that may stand between two lines of one message
LEAD_SECONDS = 2.0


class Reader:
    """Finds messages in records, one after another, and remembers what later ones need."""

    def __init__(self) -> None:
        self.uuids: dict[str, str] = {}  # by PCI address: the driver prints it before a GPU's first Xid
        self._about: tuple[str, Record, list[str]] | None = None  # a GPU, and the lines about it so far
        self._lead = 0
        self._known: dict[tuple[str, Writer, str], tuple[Finding, ...]] = {}

    def findings(self, record: Record) -> tuple[Finding, ...]:
        """What a record says. A message that was read before costs nothing."""
        if self._about or len(record.text) > LONGEST_KNOWN:
            return tuple(self._read(record))
        key = (record.text, record.writer, record.program)
        found = self._known.get(key)
        if found is None:
            found = tuple(self._read(record))
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            if self._about is None:
                self._known[key] = found
        return found

    def _read(self, record: Record) -> Iterator[Finding]:
        if self._about:
            self._lead -= 1
            if self._lead < 0 or not self._goes_on(record):
                self._about = None
        for number, line in enumerate(record.text.split("\n")):
            if record.writer is Writer.FABRIC_MANAGER and (match := xid.FABRIC_MANAGER().search(line)):
                yield xid.fabric_manager(match, line)
                continue
            found = list(_coded(record, number, line))
            if found:
                yield from found
            elif "NVRM: " in line:
                yield from self._message(record, number, line)
            elif "AER: " in line or "PCIe Bus Error" in line:
                match = driver.AER().search(line)
                if match and is_own(record, number, line[: match.start()]):
                    found_aer = driver.aer(match, line)
                    if found_aer:
                        yield found_aer

    def _message(self, record: Record, number: int, line: str) -> Iterator[Finding]:
        start = line.index("NVRM: ")
        if not is_own(record, number, line[:start]):
            return
        line = line[start:]
        if match := driver.ABOUT().match(line):
            self._about, self._lead = (pci.normal(match[1]), record, [line]), LEAD
        elif self._about:
            self._about[2].append(line)
        if match := driver.UUID().match(line):
            if len(self.uuids) < MOST_UUIDS:
                self.uuids[pci.normal(match[1])] = match[2]
        elif match := driver.RATE_LIMIT().match(line):
            yield _note("rate_limit", line, pci.normal(match[1]), {"one_of": int(match[2])})
        elif driver.LOADING().match(line):
            yield _note("loaded", line)
        elif found := driver.messages(line):
            if found.pci is None and self._about and found.name in ("fallen_off_bus", "not_supported"):
                found = found._replace(pci=self._about[0])
                found = found._replace(line="\n".join(self._about[2]))
            yield found

    def _goes_on(self, record: Record) -> bool:
        """Whether a record can be a further line of the message about a GPU that was begun."""
        assert self._about
        begun = self._about[1]
        apart = begun.when.apart(record.when) if begun.when and record.when else None
        return begun.writer is record.writer and (apart is None or apart <= LEAD_SECONDS)


def _coded(record: Record, number: int, line: str) -> Iterator[Finding]:
    """Xids and SXids of a line."""
    for word, form, read in (("NVRM: Xid", xid.XID, xid.xid), ("SXid", xid.SXID, xid.sxid)):
        matches = list(islice(form().finditer(line), MOST_FINDINGS)) if word in line else []
        ends = [match.start() for match in matches[1:]] + [len(line)]
        for match, end in zip(matches, ends, strict=False):
            if is_own(record, number, line[: match.start()]):
                found = read(match, line[match.end() : end], line)
                if found:
                    yield found


def _note(kind: str, line: str, where: str | None = None, details: dict[str, Any] | None = None) -> Finding:
    """A finding that is no fault, and changes how others are read."""
    return Finding(kind, None, "", where, Severity.INFO, "", line, details=details or {})
