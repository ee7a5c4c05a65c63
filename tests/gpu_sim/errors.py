"""DCGM's error ids and the error objects made of them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from tests.gpu_sim import tables
from tests.gpu_sim.scenario import Scenario
from tests.gpu_sim.state import Gpu


class Error(NamedTuple):
    """A DCGM error id: how bad, of what kind, and what it says."""

    severity: int
    category: int
    message: str
    step: str


@functools.cache
def known() -> dict[int, Error]:
    """Every error id of ``dcgm_errors.tsv``."""
    found = {}
    for line in (tables.HERE / "dcgm_errors.tsv").read_text().splitlines():
        if line[0].isdigit():
            number, _, severity, category, *texts = line.split("\t")
            message, step = (*texts, "", "")[:2]
            found[int(number)] = Error(int(severity), int(category), message, step)
    return found


def version(scenario: Scenario) -> tuple[int, ...]:
    """``4.4.1`` as numbers."""
    return tuple(int(part) for part in scenario.dcgm.split("."))


def warning(
    number: int, gpu: Gpu, detail: Any, *, text: str | None = None, prefix: str | None = None
) -> dict[str, Any]:
    """One error object: the message, then what DCGM would have done about it."""
    error = known().get(number, Error(3, 0, "", ""))
    message = error.message or "Error {detail} on GPU {gpu}."
    said = text or f"{message} {error.step}".strip().format(
        gpu=gpu.index, detail="1" if detail is None else detail
    )
    return {
        "error_category": error.category,
        "error_id": number,
        "error_severity": error.severity,
        "warning": f"{prefix}: {said}" if prefix else said,
    }
