"""Heads of text lines: what dmesg, journalctl, syslog and container runtimes put before a message.

Transports are stacked: a pod prints ``journalctl -k``, the container runtime puts its time before each
line, someone greps it out of a file. So heads are taken off one after another until none is left.
"""

from __future__ import annotations

from validation.kernel_log.lazy import pattern
from validation.kernel_log.model import Writer
from validation.kernel_log.when import MONTHS, When, from_epoch, in_month, since_boot, to_the_minute, wall

MOST_HEADS = 8
KERNEL_TAGS = ("kernel", "klogd")
OWN_TEXT = ("NVRM: ", "nvidia-nvswitch")  # how the driver's messages begin
_FABRIC_MANAGERS = ("nv-fabricmanager", "nvidia-fabricmanager")
_FACILITY = "(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|ntp|res\\d+|local\\d)"
_LEVEL = "(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)"
_CLOCK = r"(\d\d):(\d\d):(\d\d)"
_DATE = r"(\d{4})-(\d\d)-(\d\d)"
_OFFSET = r"[+-]\d\d(?::?\d\d)?"
_ISO = rf"{_DATE}[T ]{_CLOCK}(?:([.,])(\d{{1,9}}))?(?: ?(Z|UTC|GMT|{_OFFSET}))?(?![\w:.])"
_MONTH = "([A-Z][a-z]{2})"

_KMSG = pattern(r"(\d{1,5}),\d+,(\d{1,18})(?:,[^;\n]*)?;")
_PRIORITY = pattern(r"<(\d{1,4})>")
_RFC5424 = pattern(rf"1 (?:-|{_ISO}) \S+ (\S+) \S+ \S+ (?:-|(?:\[(?:[^\]\\]|\\.)*\])+)(?: \ufeff?|$)")
_CONTAINER = pattern(rf"{_ISO} (?:stdout|stderr) [FP] ")
_ISO_HEAD = pattern(rf"{_ISO} ?")
_EPOCH = pattern(r"(\d{9,11})\.(\d{1,9}) ")
_BOOT = pattern(r"\[ *(\d{1,12}\.\d{1,9})(?: <[ \d.]+>)?\] ?(?:\[ *[TC]\d+\] ?)?")
_CTIME = pattern(rf"\[[A-Z][a-z]{{2}} {_MONTH} +(\d\d?) {_CLOCK} (\d{{4}})\] ?")
_FABRIC = pattern(rf"\[{_MONTH} +(\d\d?) (\d{{4}}) {_CLOCK}\] \[\w+\] \[tid \d+\] ?")
_ISO_BRACKETS = pattern(rf"\[{_ISO}\]:? ?")
_RELTIME = pattern(rf"\[{_MONTH} ?(\d\d?) (\d\d):(\d\d)(?::\d\d)?\] ")  # the first record of a minute
_BRACKETS = pattern(  # dmesg with reltime or delta; any other, where the driver's text follows
    r"\[<? *\+?[\d.]+>?\] "
    r"|\[[^\]\[\n]{0,40}\]:? *(?=NVRM: |nvidia-nvswitch|kernel: )"
)
_DECODED = pattern(rf"{_FACILITY}\s*:{_LEVEL}\s*: ?")
_TALOS = pattern(rf"(?:[^\s\[]+: )?{_FACILITY}: +{_LEVEL}: +(?=\[\d{{4}}-)")
_WEEKDAY = pattern(rf"[^\s\d]{{1,6}} {_DATE} {_CLOCK}(?:([.,])(\d{{1,9}}))? ([A-Z]{{1,5}}|{_OFFSET}) ")
_SYSLOG = pattern(rf"(?:(\d{{4}}) )?{_MONTH} +(\d\d?) (?:(\d{{4}}) )?{_CLOCK}(?:\.(\d{{1,9}}))? ")
# What journalctl prints in other languages: "jan. 29 20:50:17", "Okt 29 20:50:17", "4月 20 19:55:29".
_LOCALE = pattern(rf"(?:(\d\d?)月|([^\W\d]\S{{0,11}})) +(\d\d?) {_CLOCK}(?:\.(\d{{1,9}}))? ")
_TAG = pattern(r"(?:[^\s:\[\]]+ )?(?:kernel|klogd)(?:\[\d*\])?: ?")
_HOST_AND_TAG = pattern(r"(?:\S+ +){0,2}?([^\s:\[\]()]{1,64})(?:\[\d*\])?:(?: |$)")
_HOST_AND_SURE_TAG = pattern(r"[^\s:\[\]]+ (?:(kernel)(?:\[\d*\])?|([^\s:\[\]]{1,64})\[\d+\]): ?")
_COMPOSE = pattern(r"[\w./-]+ *\| ")
_TIME_FOLLOWS = (
    rf"(?={_MONTH} +\d\d? \d\d:|\d{{4}}-\d\d-\d\d[T ]|\[ *\d+\.\d+\] |\[[A-Z][a-z]{{2}} {_MONTH} |<\d)"
)
# What grep -n and -C, and what pdsh and its like print before each line.
_FILE = pattern(r"(?=[^\s:]{0,200}[./])[^\s:]{1,400}[:-](?:\d+[:-])?" + _TIME_FOLLOWS)
_NUMBER = pattern(r"\d{1,9}[:-]" + _TIME_FOLLOWS)
_NODE = pattern(r"(?=[a-zA-Z_-]*[\d.])[\w.-]{1,253}: " + _TIME_FOLLOWS)


class Heads:
    """Takes heads off a line; afterwards it holds what they said."""

    def __init__(self) -> None:
        self.when: When | None = None
        self.writer = Writer.NOBODY
        self.program = ""
        self.when_read = False  # ``when`` is when it was read: what the line itself says is better
        self.escaped = False  # the text has control characters as \xNN, as /dev/kmsg gives them

    def strip(self, line: str) -> str:
        """The line without its heads."""
        for _ in range(MOST_HEADS):
            rest = self._one(line)
            if rest is None:
                break
            line = rest
        return line

    def facility(self, number: int) -> None:
        """A syslog facility: only the kernel can write with 0, so anything else was written by a program."""
        self.written_by(Writer.USER if number else Writer.KERNEL)

    def tag(self, name: str) -> str:
        """A syslog identifier. Returns what it takes back into the text.

        journald takes the first word of what a program writes to /dev/kmsg for its identifier when it
        ends with a colon: "NVRM: Xid" is shown as the program NVRM that says "Xid".
        """
        if name in KERNEL_TAGS:
            self.written_by(Writer.KERNEL)
            return ""
        if name in _FABRIC_MANAGERS:
            self.writer, self.program = Writer.FABRIC_MANAGER, name
            return ""
        self.written_by(Writer.USER)
        if name == "NVRM" or name.startswith("nvidia-nvswitch"):
            return f"{name}: "
        self.program = name
        return ""

    def written_by(self, writer: Writer) -> None:
        """Notes who wrote it; evidence for a program outweighs all else."""
        if self.writer not in (Writer.USER, Writer.FABRIC_MANAGER):
            if writer is Writer.RING and self.writer is Writer.KERNEL:
                return
            self.writer = writer

    def _one(self, line: str) -> str | None:
        start = line[:1]
        if start == "[":
            return self._bracket(line)
        if start.isdigit():
            return self._digit(line)
        if start == "<":
            match = _PRIORITY().match(line)
            if match:
                self.facility(int(match[1]) >> 3)
                return line[match.end() :]
            return None
        return self._letter(line) if not line.startswith(OWN_TEXT) else None

    def _bracket(self, line: str) -> str | None:
        if match := _BOOT().match(line):
            if self.when is None or self.when_read:
                self.when, self.when_read = since_boot(float(match[1])), False
            return self._ring(line[match.end() :])
        if match := _CTIME().match(line):
            month, day, hour, minute, second, year = match.groups()
            self._date(year, month, day, hour, minute, second)
            return self._ring(line[match.end() :])
        if match := _FABRIC().match(line):
            month, day, year, hour, minute, second = match.groups()
            self._date(year, month, day, hour, minute, second)
            self.writer = Writer.FABRIC_MANAGER
            return line[match.end() :]
        if match := _ISO_BRACKETS().match(line):
            self._iso(match.groups())
            rest = line[match.end() :]
            return self._ring(rest) if rest.startswith((*OWN_TEXT, "[")) else rest  # many programs do so
        if match := _RELTIME().match(line):
            month, *numbers = match.groups()
            self.when = to_the_minute(MONTHS.get(month, 0), *map(int, numbers)) or self.when
            return self._ring(line[match.end() :])
        if match := _BRACKETS().match(line):
            return self._ring(line[match.end() :])
        return None

    def _digit(self, line: str) -> str | None:
        if match := _KMSG().match(line):
            self.facility(int(match[1]) >> 3)
            self.when = since_boot(int(match[2]) / 1e6)
            self.escaped = True
            return line[match.end() :]
        if match := _RFC5424().match(line):
            if match[1]:
                self._iso(match.groups())
            return self.tag(match[10]) + line[match.end() :]
        if match := _CONTAINER().match(line):
            self._iso(match.groups())
            self.when_read = True
            return line[match.end() :]
        if match := _ISO_HEAD().match(line):
            self._iso(match.groups())
            rest = line[match.end() :]
            return self._ring(rest) if match[7] == "," and match[9] else self._tagged(rest)
        if match := _EPOCH().match(line):
            self.when = from_epoch(int(match[1]), match[2]) or self.when
            return self._tagged(line[match.end() :])
        return self._syslog(line) or self._talos(line) or self._grepped(line)

    def _letter(self, line: str) -> str | None:
        if match := _DECODED().match(line):
            self.facility(0 if match[1] == "kern" else 1)
            return line[match.end() :]
        if match := _WEEKDAY().match(line):
            self._iso(match.groups())
            return self._tagged(line[match.end() :])
        rest = self._syslog(line) or self._talos(line)
        if rest is not None:
            return rest
        if match := _TAG().match(line):
            self.written_by(Writer.KERNEL)
            return line[match.end() :]
        if match := _COMPOSE().match(line):
            return line[match.end() :]
        return self._grepped(line)

    def _grepped(self, line: str) -> str | None:
        if self.writer is Writer.USER:
            return None  # a program that prints what it found: a quotation
        if match := _FILE().match(line) or _NUMBER().match(line):
            return line[match.end() :]
        if self.writer is Writer.NOBODY and (match := _NODE().match(line)):
            return line[match.end() :]
        return None

    def _syslog(self, line: str) -> str | None:
        match = _SYSLOG().match(line)
        if not match or match[2] not in MONTHS:
            return self._locale(line)
        before, month, day, after, hour, minute, second, fraction = match.groups()
        self._date(before or after, month, day, hour, minute, second, fraction or "")
        return self._tagged(line[match.end() :])

    def _locale(self, line: str) -> str | None:
        match = _LOCALE().match(line)
        if not match:
            return None
        month, name, *numbers, fraction = match.groups()
        day, hour, minute, second = map(int, numbers)
        if month:
            found = wall(None, int(month), day, hour, minute, second, fraction or "")
        else:
            found = in_month(name, day, hour, minute, second, fraction or "")
        self.when, self.when_read = found or self.when, False
        return self._tagged(line[match.end() :])

    def _talos(self, line: str) -> str | None:
        match = _TALOS().match(line)
        if not match:
            return None
        self.facility(0 if match[1] == "kern" else 1)
        return line[match.end() :]

    def _tagged(self, rest: str) -> str:
        """What follows a time on the wall: host and identifier, unless the kernel's text begins at once."""
        if rest.startswith(OWN_TEXT) or _BOOT().match(rest):
            return rest
        match = _HOST_AND_TAG().match(rest)
        return self.tag(match[1]) + rest[match.end() :] if match else rest

    def _ring(self, rest: str) -> str:
        """What follows a time of the kernel's buffer: a message, or (journalctl short-monotonic) a tag."""
        self.written_by(Writer.RING)
        match = _HOST_AND_SURE_TAG().match(rest)
        return self.tag(match[1] or match[2]) + rest[match.end() :] if match else rest

    def _iso(self, groups: tuple[str | None, ...]) -> None:
        year, month, day, hour, minute, second = (int(part or 0) for part in groups[:6])
        found = wall(year, month, day, hour, minute, second, groups[7] or "", groups[8] or "")
        self.when, self.when_read = found or self.when, False

    def _date(
        self, year: str | None, month: str, day: str, hour: str, minute: str, second: str, fraction: str = ""
    ) -> None:
        numbers = int(day), int(hour), int(minute), int(second)
        found = wall(int(year) if year else None, MONTHS.get(month, 0), *numbers, fraction)
        self.when, self.when_read = found or self.when, False
