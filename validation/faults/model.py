"""The types of the fault catalog."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Severity(str, enum.Enum):
    """How bad a fault is. Not StrEnum: the machine may have Python 3.10."""

    FATAL = "fatal"  # take the GPU out of use
    DEGRADED = "degraded"  # the machine works, and stays below what it should give
    WARN = "warn"  # counts when it comes back, see ``Fault.repeat``
    INFO = "info"  # record only
    UNKNOWN = "unknown"  # nobody documents it, or the line does not say: alert, never drain on one


# An unknown fault is worth a look: it stands above one that needs none, below what is known to matter.
_ORDER = (Severity.INFO, Severity.UNKNOWN, Severity.WARN, Severity.DEGRADED, Severity.FATAL)


def graver(*severities: Severity) -> Severity:
    """The gravest of the given: info < unknown < warn < degraded < fatal."""
    return max(severities, key=_ORDER.index)


class Fault(NamedTuple):
    """One entry of the catalog. A code that is not in it gives an entry with ``Severity.UNKNOWN``."""

    kind: str  # "xid", "sxid", "nvlink5", "dcgm" or "kernel"
    code: int | None  # None: a kernel message without a code
    name: str  # NVIDIA's mnemonic; "" for an unknown code
    meaning: str  # in our own words
    bucket: str  # NVIDIA's own immediate action (DCGM: its severity); "" when it names none
    severity: Severity  # ours; what holds when the line says nothing, where ``decided_by`` is not "code"
    action: str  # what to do
    repeat: str | None  # "N in H h" on one GPU or link: what makes a fault count that does not count alone
    investigate: str = ""  # NVIDIA's investigatory action
    # "code"; "line": the word in it; "nvlink5": that word and the sub-code table; "target": that of Xid 154
    decided_by: str = "code"
    aka: tuple[str, ...] = ()  # other names of the same
    details: tuple[tuple[str, str], ...] = ()  # what else is known, as (what, text)
    disagreements: tuple[tuple[str, str], ...] = ()  # (who, what) of sources that differ from NVIDIA
    sources: tuple[str, ...] = ()  # titles with URL or file

    @property
    def threshold(self) -> tuple[int, float] | None:
        """``repeat`` as (how often, within how many hours)."""
        if self.repeat is None:
            return None
        count, _, hours, _ = self.repeat.split()
        return int(count), float(hours)
