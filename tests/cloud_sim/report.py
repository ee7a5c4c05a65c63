"""The fault table that ``inv test`` prints: what went wrong, how the build ended, what the user saw."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Table:
    """Rows as they were seen, in the order of the tests."""

    rows: list[tuple[str, int, str]] = field(default_factory=list)

    def add(self, fault: str, code: int, outcome: str) -> None:
        """One fault: the builder's exit code (negative: the signal that ended it) and what came of it."""
        self.rows.append((fault, code, outcome))

    def lines(self) -> list[str]:
        """The table as text."""
        width = max((len(fault) for fault, _, _ in self.rows), default=0)
        return [f"{fault:{width}}  {code:4}  {outcome[:100]}" for fault, code, outcome in self.rows]
