"""Copies of the public tables that the catalog is compared with; each file names its sources."""

from __future__ import annotations

from pathlib import Path

FIXTURES = Path(__file__).parents[2] / "fixtures" / "faults"


def table(name: str) -> list[dict[str, str]]:
    lines = (FIXTURES / name).read_text().splitlines()
    head, *rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return [dict(zip(head, row + [""] * (len(head) - len(row)), strict=True)) for row in rows]
