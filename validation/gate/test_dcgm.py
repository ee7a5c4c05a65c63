"""DCGM's diagnostic, judged from its document and not from its exit code, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from validation import dcgm
from validation.dcgm import messages
from validation.gate import dcgm_figures, gpu_readers
from validation.gate.checks import NotRun, Unknown, degraded, record
from validation.gate.gpu_facts import Gpus
from validation.gate.machine import Machine
from validation.gate.test_gpu import gpu_check
from validation.judgement import Judgement

NO_DCGMI, NOT_ASKED = 127, 126  # codes of the probe


def judged(machine: Machine, gpus: Gpus, expected: Mapping[str, Any]) -> Judgement:
    """The diagnostic's document. Raises ``NotRun`` where it was not asked or DCGM is not installed."""
    level = (getattr(expected, "gpu", None) or {}).get("diag_level") or 0
    output = machine.output("dcgm_diag")
    if output.code == NOT_ASKED:
        raise NotRun("no diagnostic was asked for (level 0)")
    if output.code == NO_DCGMI:
        raise NotRun("dcgmi is not installed")
    return dcgm.judge(output.text, level=level, expect_gpus=len(gpus.bus), exit_code=output.code)


@gpu_check("dcgm.diag", "dcgm_diag", "gpu_facts")
def test_diag(machine: Machine, gpus: Gpus, expected: Mapping[str, Any]) -> None:
    """Every test of the level passed on every GPU, and nothing was skipped."""
    found = judged(machine, gpus, expected)
    record(judgement=found.document())
    assert found.verdict != "fail", found.reason
    if found.verdict != "pass":
        raise Unknown(found.reason)
    record(summary=found.reason)


@gpu_check("dcgm.field_1001", "dcgm_field_1001", "gpu_facts")
def test_field_1001(machine: Machine, gpus: Gpus) -> None:
    """Field 1001 (DCGM_FI_PROF_GR_ENGINE_ACTIVE) can be watched: profiling works on this machine."""
    output = machine.output("dcgm_field_1001")
    if output.code == NO_DCGMI:
        raise NotRun("dcgmi is not installed")
    values, problem = dcgm_figures.watched(output.text)
    record(values=values)
    if "not supported" in output.text.lower():
        raise NotRun("DCGM's profiling does not support this GPU or driver")
    if problem or output.code:
        raise Unknown(problem or f"dcgmi dmon ended with code {output.code}")
    assert len(values) >= len(gpus.bus), f"values of {len(values)} of {len(gpus.bus)} GPUs"


@gpu_check("dcgm.health", "dcgm_health", "gpu_facts")
def test_health(machine: Machine, gpus: Gpus) -> None:
    """The health watches of DCGM, where somebody has set them, have seen no fault.

    They are not set for this: a watch stays in the host engine, and has seen nothing yet.
    """
    output = machine.output("dcgm_health")
    if output.code == NO_DCGMI:
        raise NotRun("dcgmi is not installed")
    found = dcgm.judge(output.text, exit_code=output.code)
    record(judgement=found.document(), gpus=len(gpus.bus))
    fatal = [str(entry["message"]) for entry in found.failures if not entry.get("warning")]
    assert not fatal, "; ".join(fatal)
    if found.failures:
        degraded(*(str(entry["message"]) for entry in found.failures))
        return
    for nobody in (messages.NOT_WATCHED, messages.NO_ENGINE):
        if found.reason.startswith(nobody):
            raise NotRun(f"nobody watches this machine by DCGM: {nobody}")
    if found.verdict != "pass":
        raise Unknown(found.reason)


@pytest.mark.parametrize(
    "metric",
    [
        pytest.param(metric, marks=gpu_check(f"dcgm.{metric}", "dcgm_diag", "gpu_facts"), id=metric)
        for metric in dcgm_figures.METRICS
    ],
)
def test_figures(machine: Machine, gpus: Gpus, expected: Mapping[str, Any], metric: str) -> None:
    """What the diagnostic measured is not below the floor of the GPU's model and form factor."""
    found = judged(machine, gpus, expected)
    figures = dcgm_figures.of(found.data, metric)
    if not figures:
        raise NotRun(f"DCGM measures it from level {dcgm_figures.METRICS[metric].level} on, if at all")
    record(measured=figures)
    gpu_readers.settle(dcgm_figures.against_floors(figures, metric, gpus))
