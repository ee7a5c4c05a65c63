"""What the gate says of a machine, for people: the verdict first, and not-run reasons in sight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from images.validate.judge import Outcome

STYLES = {"fail": "bold red", "unknown": "yellow", "pass": "green"}
VERDICTS = {
    "healthy": "bold green",
    "degraded": "bold yellow",
    "unhealthy": "bold red",
    "unknown": "bold yellow",
}


def render(outcome: Outcome) -> RenderableType:
    """The report. Checks come failures first, as in the results."""
    head = Text(f"{outcome.verdict.upper()}: {outcome.reason}", style=VERDICTS[outcome.verdict])
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(outcome):
        facts.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    checks = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title=" ")
    for name in ("result", "check", "level", "why"):
        checks.add_column(name, overflow="fold", no_wrap=name == "check")
    for check in outcome.checks:
        word = check["result"]
        if word != "not_run":
            checks.add_row(Text(word, style=STYLES[word]), check["id"], check["level"], Text(_why(check)))
    return Group(head, facts, checks, _not_run(outcome))


def _facts(outcome: Outcome) -> Iterator[tuple[str, str]]:
    yield "host", outcome.host
    yield "image", outcome.image
    gpus = ", ".join(f"{count} x {family}" for family, count in sorted(outcome.gpus.items()))
    yield "GPUs", f"{gpus or 'none seen'} (level {outcome.level})"
    for text in outcome.degraded:
        yield "degraded", text
    for family, digest in sorted(outcome.recorded.items()):
        yield "recorded", f"validated on {family}: {digest}"
    if outcome.not_recorded:
        yield "not recorded", outcome.not_recorded
    yield "evidence", str(outcome.evidence)


def _not_run(outcome: Outcome) -> RenderableType:
    """What was not run, once for each reason: a machine of somebody else's has many of them."""
    groups: dict[str, list[str]] = {}
    for check in outcome.checks:
        if check["result"] == "not_run":
            groups.setdefault(str(check["reason"]), []).append(check["id"])
    if not groups:
        return Group()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title=" ")
    table.add_column("not run, because")
    table.add_column("checks", overflow="fold", style="dim")
    for reason, ids in groups.items():
        table.add_row(Text(reason), Text(", ".join(ids)))
    return table


def _why(check: Mapping[str, Any]) -> str:
    """The reason; for a pass the figures that were measured."""
    if check["reason"]:
        return str(check["reason"])
    data = check.get("data") or {}
    return str(data.get("summary") or "")
