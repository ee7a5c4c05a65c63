"""Grouping: from findings to events, one for each fault.

What belongs to one fault:

- the same code on the same GPU (MIG instance, link of an NVSwitch), until it pauses for ``REPEAT`` seconds;
- codes that tell one fault in different words (``FAMILIES``), and Xid 45 and 154, which follow a fault,
  within ``FOLLOW`` seconds on the same GPU; an Xid 45 that names its cause, as long as the cause is open;
- further records of a SXid, and "fallen off the bus" lines of a GPU that also has an Xid 79.

An Xid 154 with target 0x0 (recovered) ends what the GPU had before, a load of the driver all of it. Records
without a timestamp are always near. Memory is bounded: of more than ``MOST_OPEN`` faults, the one that was
silent longest is given out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf

from validation.faults import Severity, graver
from validation.kernel_log.fault import Key, OpenFault
from validation.kernel_log.finding import Finding, Role
from validation.kernel_log.model import Event
from validation.kernel_log.when import When

REPEAT = 60.0  # seconds; the longest known pause within one fault are the 45 s between two GSP timeouts
FOLLOW = 10.0  # seconds; after a fault the driver removes channels and judges the GPU within a few seconds
SWEEP = 1.0  # seconds of the log between two looks for faults that are over
MOST_OPEN = 1024
MOST_SOUGHT = 64  # faults of one GPU that are looked at for company

# Codes that tell one fault, the one that names it best first.
FAMILIES = (
    (48, 95, 140, 94, 64, 63, 171, 172),  # an uncorrectable memory error and what came of it
    (79, 120, 119),  # a GPU, or its firmware, that does not answer
)
NVLINK5 = tuple(range(144, 151))  # here the gravest names it best
REMOVED, RECOVERY, SMOOTHING_ON, SMOOTHING_OFF, OFF_BUS, GSP_TIMEOUT = 45, 154, 162, 163, 79, 119
SMOOTHED = "none: Xid 162 followed, power smoothing is on again"
Device = tuple[str, bool]  # PCI address ("" when unknown), injected


class Groups:
    """Joins findings. ``add`` and ``close`` give out the events that are over."""

    def __init__(self) -> None:
        self.uuids: dict[str, str] = {}  # of GPUs by PCI address, for the events
        self._open: dict[Key, OpenFault] = {}  # the one that was silent longest first
        self._by_device: dict[Device, dict[Key, None]] = {}
        self._serial = 0
        self._swept: When | None = None

    def add(self, finding: Finding, when: When | None, times: int, *, injected: bool) -> Iterator[Event]:
        """Joins one finding, seen ``times`` times."""
        yield from self._sweep(when)
        device = (finding.pci or "", injected)
        if finding.kind == "loaded":
            yield from self.close()
            return
        if finding.kind == "rate_limit":
            self._rate_limit(device, finding)
            return
        if finding.kind == "aer" and not finding.name:
            self._foreign(device, when)
            return
        name = str(finding.code) if finding.code is not None else finding.name
        key: Key = (finding.kind, name, device[0], finding.part, injected)
        if finding.details.get("target") == 0:
            key = ("xid", "recovered", *key[2:])
            yield from self._give_out(k for k in list(self._by_device.get(device, ())) if k != key)
        fault = self._home(finding, key, device, when)
        if fault is None:
            if key in self._open:  # of long ago
                yield from self._give_out([key])
            if len(self._open) >= MOST_OPEN:
                yield from self._give_out([next(iter(self._open))])
            fault = self._begin(finding, key)
            if finding.code == OFF_BUS:
                self._absorb_off_bus(fault, device, when)
        fault.join(finding, when, times)
        self._touch(fault)
        if finding.code == SMOOTHING_ON and fault.code == SMOOTHING_OFF:
            fault.severity, fault.action = Severity.INFO, SMOOTHED
            yield from self._give_out([fault.key])

    def close(self) -> Iterator[Event]:
        """Gives out all that is open."""
        yield from self._give_out(list(self._open))

    def _home(self, finding: Finding, key: Key, device: Device, when: When | None) -> OpenFault | None:
        """The open fault that a finding belongs to."""
        same = self._open.get(key)
        if same and not same.near(when, same.pause):
            same = None
        if finding.kind == "sxid":
            if finding.role is Role.DATA:
                return self._switch(finding, device, when)
            return same if finding.role is Role.FIRST else same or self._switch(finding, device, when)
        if finding.kind == "fallen_off_bus":
            lost = (f for f in self._of(device) if OFF_BUS in f.codes and f.near(when, REPEAT))
            return next(lost, same)
        if finding.kind == "driver" and finding.role is Role.FURTHER:
            return self._named_device(finding, key, same, when)
        if finding.kind != "xid":
            return same
        if finding.code == SMOOTHING_ON:
            return next((f for f in self._of(device) if f.code == SMOOTHING_OFF), same)
        if finding.code == REMOVED or (finding.code == RECOVERY and finding.details.get("target")):
            return self._cause(finding, device, when) or same
        return same or self._relative(finding, key, device, when)

    def _cause(self, finding: Finding, device: Device, when: When | None) -> OpenFault | None:
        """The fault that an Xid 45 or 154 follows."""
        named = finding.details.get("caused_by")
        for fault in self._of(device):
            if fault.main.kind != "xid" or fault.code == RECOVERY or fault.code == finding.code:
                continue
            if _elsewhere(fault.main, finding):
                continue
            if fault.near(when, FOLLOW if named is None else REPEAT) and named in (None, *fault.codes):
                return fault
        return None

    def _relative(self, finding: Finding, key: Key, device: Device, when: When | None) -> OpenFault | None:
        """The fault that a finding tells in other words; it may name it better than what came before."""
        family = next((f for f in (*FAMILIES, NVLINK5) if finding.code in f), ())
        for fault in self._of(device):
            if fault.main.kind != "xid" or fault.code not in family or not fault.near(when, FOLLOW):
                continue
            if fault.code == finding.code and fault.main.part != finding.part:
                continue  # another MIG instance
            if _elsewhere(fault.main, finding):
                continue
            if family is NVLINK5:
                better = graver(fault.severity, finding.severity) is not fault.severity
            else:
                better = family.index(finding.code or 0) < family.index(fault.code or 0)
            if better and key not in self._open:
                self._forget(fault)
                fault.promote(finding, key)
                self._remember(fault)
            return fault
        return None

    def _switch(self, finding: Finding, device: Device, when: When | None) -> OpenFault | None:
        """The SXid that a further record belongs to: the last of its code when the link does not tell."""
        errors = (f for f in self._of(device) if f.main.kind == "sxid" and f.code == finding.code)
        return next((f for f in errors if f.near(when, FOLLOW)), None)

    def _named_device(
        self, finding: Finding, key: Key, same: OpenFault | None, when: When | None
    ) -> OpenFault | None:
        """The message whose further line says which GPU it is about."""
        nameless = self._open.get((key[0], key[1], "", key[3], key[4]))
        if nameless is None or not nameless.near(when, FOLLOW):
            return same
        self._forget(nameless)
        if same:
            same.absorb(nameless)
            return same
        nameless.main = nameless.main._replace(pci=finding.pci, line=f"{nameless.main.line}\n{finding.line}")
        nameless.key = key
        self._remember(nameless)
        return nameless

    def _absorb_off_bus(self, fault: OpenFault, device: Device, when: When | None) -> None:
        """The second line of an Xid 79 may come first."""
        off = self._open.get(("fallen_off_bus", "fallen_off_bus", device[0], "", device[1]))
        if off and off.near(when, REPEAT):
            self._forget(off)
            fault.absorb(off)

    def _rate_limit(self, device: Device, finding: Finding) -> None:
        for fault in self._of(device):
            if GSP_TIMEOUT in fault.codes:
                fault.details["printed_one_of"] = finding.details["one_of"]
                fault.pause = REPEAT * finding.details["one_of"]

    def _foreign(self, device: Device, when: When | None) -> None:
        """The device in an error that a port has reported belongs to another driver: not our subject."""
        for fault in list(self._of(device)):
            if fault.main.kind == "aer" and fault.near(when, FOLLOW):
                self._forget(fault)

    def _of(self, device: Device) -> Iterator[OpenFault]:
        """Open faults of a device, the one that was last heard of first."""
        keys = self._by_device.get(device, {})
        return (self._open[key] for key in islice(reversed(keys), MOST_SOUGHT))

    def _begin(self, finding: Finding, key: Key) -> OpenFault:
        self._serial += 1
        fault = OpenFault(finding, key, self._serial, inf if finding.code == SMOOTHING_OFF else REPEAT)
        self._remember(fault)
        return fault

    def _touch(self, fault: OpenFault) -> None:
        self._forget(fault)
        self._remember(fault)

    def _remember(self, fault: OpenFault) -> None:
        self._open[fault.key] = fault
        self._by_device.setdefault((fault.key[2], fault.key[4]), {})[fault.key] = None

    def _forget(self, fault: OpenFault) -> None:
        del self._open[fault.key]
        device = (fault.key[2], fault.key[4])
        keys = self._by_device[device]
        del keys[fault.key]
        if not keys:
            del self._by_device[device]

    def _sweep(self, when: When | None) -> Iterator[Event]:
        if when is None:
            return
        apart = self._swept.apart(when) if self._swept else None
        if apart is None or apart >= SWEEP:
            self._swept = when
            yield from self._give_out([k for k, f in self._open.items() if not f.near(when, f.pause)])

    def _give_out(self, keys: Iterable[Key]) -> Iterator[Event]:
        over = [self._open[key] for key in keys]
        for fault in sorted(over, key=lambda fault: fault.serial):
            self._forget(fault)
            yield fault.event(self.uuids.get(fault.main.pci or ""))


def _elsewhere(one: Finding, other: Finding) -> bool:
    """Whether two findings name different MIG instances ("5" and "5/2", a part of it, are not different)."""
    return bool(one.part and other.part) and one.part.split("/")[0] != other.part.split("/")[0]
