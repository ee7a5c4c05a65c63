"""Timestamps of log lines: one form each for people and for comparing."""

from __future__ import annotations

import datetime
import functools
from typing import NamedTuple

MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}
_LEAP_YEAR = 2000  # stands for the year that a line does not give, so that February 29th exists


class When(NamedTuple):
    """When a record was written."""

    text: str | float  # wall time in ISO 8601 as far as the line gives it, or seconds since boot
    seconds: float  # for comparing two of the same clock
    clock: str  # "wall", "year-less", "minutes" (year-less, without seconds), a foreign month, or "boot"

    def apart(self, other: When) -> float | None:
        """Seconds between two times, at least; None when their clocks differ."""
        if self.clock != other.clock:
            return None
        seconds = abs(self.seconds - other.seconds)
        return max(seconds - 60, 0.0) if self.clock == "minutes" else seconds


def since_boot(seconds: float) -> When:
    """A time of the kernel's own clock."""
    return When(seconds, seconds, "boot")


def to_the_minute(month: int, day: int, hour: int, minute: int) -> When | None:
    """A time on the wall of which neither year nor second is known. None when there is no such time."""
    found = wall(None, month, day, hour, minute, 0)
    return found and When(str(found.text)[: -len(":00")], found.seconds, "minutes")


def in_month(name: str, day: int, hour: int, minute: int, second: int, fraction: str) -> When | None:
    """A time on the wall in a month whose name is not English. None when there is no such time."""
    found = wall(None, 1, day, hour, minute, second, fraction)
    return found and When("--" + str(found.text)[len("--01") :], found.seconds, name)


def from_epoch(seconds: int, fraction: str = "") -> When | None:
    """Seconds since 1970 with the digits of their fraction. None when it is no date."""
    try:
        day = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None
    return wall(day.year, day.month, day.day, day.hour, day.minute, day.second, fraction, "Z")


@functools.lru_cache(maxsize=64)  # a flood has thousands of lines a second
def wall(
    year: int | None,
    month: int,
    day: int,
    hour: int,
    minute: int,
    second: int,
    fraction: str = "",
    zone: str = "",
) -> When | None:
    """A time on the wall. None when there is no such time.

    Without a year the text begins with ``--``, as ISO 8601:2000 has it; without a zone it is local time.
    """
    try:
        moment = datetime.datetime(year or _LEAP_YEAR, month, day, hour, minute, min(second, 59))
        offset = _offset(zone)
    except (OverflowError, ValueError):
        return None
    date = moment.strftime("%Y-%m-%d") if year else "--" + moment.strftime("%m-%d")
    text = f"{date}T{hour:02}:{minute:02}:{second:02}{'.' + fraction if fraction else ''}"
    seconds = (moment - datetime.datetime(1970, 1, 1)).total_seconds() - offset
    if fraction:
        seconds += float(f"0.{fraction}")
    return When(text + _zone(zone), seconds, "wall" if year else "year-less")


def _offset(zone: str) -> int:
    """Seconds east of Greenwich; no zone and names of zones count as none."""
    if not zone or zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600 + int(digits[2:4] or 0) * 60
    return seconds if zone[0] == "+" else -seconds


def _zone(zone: str) -> str:
    if zone[:1] in ("+", "-"):
        digits = zone[1:].replace(":", "")
        return f"{zone[0]}{digits[:2]}:{digits[2:4] or '00'}"
    return "Z" if zone in ("Z", "UTC", "GMT") else ""
