"""The cases of ``kmsg_cases.tsv``: one record each, with what must come of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FIXTURES = Path(__file__).parents[2] / "fixtures" / "kernel_log"


class Case(NamedTuple):
    """A record and what is expected of it."""

    text: str  # may have several lines
    code: int | None
    pci: str
    kind: str
    severity: str
    source: str


def load() -> list[Case]:
    found = []
    for line in (FIXTURES / "kmsg_cases.tsv").read_text().splitlines():
        if line.startswith(("#", "line\t")):
            continue
        text, code, pci, note, source = line.split("\t")
        notes = dict(part.split("=", 1) for part in note.split(";") if part.startswith(("kind=", "sev=")))
        text = text.replace("\\n", "\n")
        found.append(Case(text, int(code) if code else None, pci, notes["kind"], notes["sev"], source))
    return found


CASES = load()
