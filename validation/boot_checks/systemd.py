"""Reader of ``systemctl show``: running it and reading what it printed are two functions."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import NamedTuple

PROPERTIES = ("Id", "LoadState", "ActiveState", "SubState", "Result", "Job", "Before")


class Unit(NamedTuple):
    """One unit as systemd sees it (properties of its D-Bus interface org.freedesktop.systemd1)."""

    name: str
    load: str  # loaded, not-found, masked, bad-setting, error
    active: str  # active, reloading, inactive, failed, activating, deactivating, ...
    sub: str
    result: str  # why a service failed: exit-code, timeout, signal, ...
    has_job: bool  # something is queued for it: it is about to change
    before: frozenset[str]  # units ordered after it


class NoAnswer(Exception):
    """systemd could not be asked; the message says why."""


def show(names: Sequence[str], *, timeout: float) -> list[Unit]:
    """The units with these names, in the same order; one that does not exist has ``load`` not-found.

    ``timeout`` in seconds. Raises ``NoAnswer`` when systemctl is missing, fails (no systemd, no bus),
    hangs or prints something else.
    """
    command = ["systemctl", "show", f"--property={','.join(PROPERTIES)}", "--", *names]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode:
            raise NoAnswer(f"systemctl: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
        units = parse(done.stdout)
    except (OSError, ValueError) as error:
        raise NoAnswer(f"systemctl: {error}") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"systemctl: no answer within {timeout:g} s") from None
    if len(units) != len(names):
        raise NoAnswer(f"systemctl was asked for {len(names)} units and showed {len(units)}")
    return units


def parse(text: str) -> list[Unit]:
    """The units in what ``systemctl show`` printed: ``Key=value`` lines, an empty line between two units.

    Raises ``ValueError`` for a block without the properties that were asked for.
    """
    units = []
    for block in text.strip().split("\n\n"):
        values = dict(line.partition("=")[::2] for line in block.splitlines())
        if "Id" not in values or not values.get("ActiveState"):
            raise ValueError(f"systemctl show printed something unexpected: {block[:80]!r}")
        units.append(
            Unit(
                name=values["Id"],
                load=values.get("LoadState", ""),
                active=values["ActiveState"],
                sub=values.get("SubState", ""),
                result=values.get("Result", ""),
                has_job=values.get("Job", "") not in ("", "0"),
                before=frozenset(values.get("Before", "").split()),
            )
        )
    return units
