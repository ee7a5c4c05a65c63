"""Reads the tables of test cases in tests/fixtures."""

from __future__ import annotations

from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


def rows(name: str) -> list[list[str]]:
    """The rows of a table with tabs between the cells, without comments and empty lines."""
    lines = (FIXTURES / name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]
