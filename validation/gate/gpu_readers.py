"""What the GPU checks share: which field of nvidia-smi is whose, and figures held against floors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from validation import gpu_models
from validation.gate.checks import NotRun, Unknown, degraded, record
from validation.gate.gpu_facts import Gpus
from validation.gate.probes import Output
from validation.nvidia_smi import Gpu

#: Check -> what the fields of nvidia-smi begin with that it judges. All other findings are ``gpu.answers``'.
FIELDS: dict[str, tuple[str, ...]] = {
    "gpu.recovery_action": ("gpu_recovery_action", "reset_status."),
    "gpu.ecc": ("ecc.", "inforom."),
    "gpu.row_remap": ("remapped_rows.", "retired_pages."),
    "gpu.event_reasons": ("clocks_event_reasons",),
    "gpu.temperature": ("temperature.",),
}
ELSEWHERE = (
    *(prefix for prefixes in FIELDS.values() for prefix in prefixes),
    "fabric.",
    "persistence_mode",
    "pcie.",
)

#: GT/s of a lane by PCIe generation (PCI Express Base Specification).
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}

#: What probes print beside a figure's unit.
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

#: Files in the evidence folder by probe.
RAW = {
    "gpu_facts": "gpu-facts.json",
    "gpu_memory": "gpu-memory.json",
    "gpu_kernel_log": "kernel-log.jsonl",
    "dcgm_diag": "dcgm-diag.json",
    "dcgm_field_1001": "dcgm-field-1001.txt",
    "dcgm_health": "dcgm-health.json",
}


def require(gpus: Gpus, mine: Callable[[str], bool]) -> None:
    """Fails for findings of nvidia-smi in the fields that ``mine`` takes; passes on what is degraded.

    A finding without a field is taken as the empty one. Raises ``Unknown`` for what was not verified.
    """
    if gpus.judgement is None:
        raise Unknown("nvidia-smi said nothing")
    wrong = [entry["message"] for entry in gpus.judgement.failures if mine(str(entry.get("field") or ""))]
    assert not wrong, "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
    open_ = [entry["reason"] for entry in gpus.judgement.not_run if mine(str(entry.get("field") or ""))]
    if open_:
        raise Unknown("; ".join(open_[:5]))
    degraded(*(text for text in gpus.judgement.degraded if mine(_field_in(text))))


def of_no_other_check(field: str) -> bool:
    """The field is judged by no check of its own."""
    return not field.startswith(ELSEWHERE)


def _field_in(text: str) -> str:
    """The field that a degraded note is about: the first word in it that is one."""
    for word in re.findall(r"[A-Za-z_]+(?:\.[A-Za-z_]+)*", text):
        if word.startswith(ELSEWHERE):
            return str(word)
    return ""


def not_applicable(value: str) -> bool:
    """nvidia-smi says that the model has no such thing."""
    return value.strip("[] ").lower() in (
        "n/a",
        "not supported",
        "requested functionality has been deprecated",
        "",
    )


def number(row: Gpu, field: str) -> float | None:
    """The number in a cell, whatever unit stands behind it."""
    found = _NUMBER.match(row.fields.get(field, ""))
    return float(found[0]) if found else None


def mig(row: Gpu) -> bool:
    """The GPU is divided: CUDA then shows the parts, one to a program."""
    return row.fields.get("mig.mode.current", "").lower() == "enabled"


def wanted_driver(expected: Mapping[str, Any]) -> str | None:
    """The driver version that the image promises."""
    gpu = getattr(expected, "gpu", None) or {}
    return gpu.get("driver")


def links(gpus: Gpus) -> dict[str, dict[str, float | None]]:
    """By bus address: generation and width of the link now, and the most that GPU and slot can."""
    found = {}
    rows = {row.pci: row for row in gpus.rows}
    for device in gpus.bus:
        row = rows.get(device.pci)
        link: dict[str, float | None] = {
            "generation": GENERATIONS.get(device.speed or 0),
            "max_generation": GENERATIONS.get(device.max_speed or 0),
            "width": device.width,
            "max_width": device.max_width,
        }
        if row:
            told = {
                "generation": number(row, "pcie.link.gen.gpucurrent"),
                "max_generation": number(row, "pcie.link.gen.gpumax"),
                "width": number(row, "pcie.link.width.current"),
                "max_width": number(row, "pcie.link.width.max"),
            }
            link |= {name: value for name, value in told.items() if value is not None}
        if any(value is not None for value in link.values()):
            found[device.pci] = link
    return found


def short_links(gpus: Gpus, seen: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """GPUs whose link is less than their model's."""
    found = []
    for address, link in seen.items():
        model = gpus.models.get(address)
        width, most = link["width"], link["max_width"]
        if width is not None and most is not None and width < most:
            found.append(f"PCIe link of {address} has {width:g} of {most:g} lanes")
        generation = link["max_generation"]
        if model and model.pcie_generation and generation and generation < model.pcie_generation:
            found.append(
                f"PCIe link of {address} can do generation {generation:g}; {model.key} can do "
                f"{model.pcie_generation}"
            )
    return found


def settle(judged: Mapping[str, gpu_models.Judgement]) -> None:
    """The result of figures held against floors, by GPU: one below fails, none with a floor is not run."""
    record(figures={name: judgement.reason for name, judgement in judged.items()})
    low = [
        f"{name}: {judgement.reason}" for name, judgement in judged.items() if judgement.verdict == "fail"
    ]
    assert not low, "; ".join(low[:5])
    if not judged:
        raise NotRun("no figure was measured")
    open_ = {judgement.reason for judgement in judged.values() if judgement.verdict == "not_run"}
    if open_ and not any(judgement.verdict == "pass" for judgement in judged.values()):
        raise NotRun("; ".join(sorted(open_)[:3]))
    first = next(judgement.reason for judgement in judged.values() if judgement.verdict == "pass")
    record(summary=f"{len(judged)} x {first}" if len(judged) > 1 else first)


def memory(output: Output) -> dict[str, Any]:
    """What ``python -m validation.cuda --json`` printed. Raises ``Unknown`` for anything else."""
    try:
        document = json.loads(output.text.strip().splitlines()[-1])
        if isinstance(document, dict) and document["verdict"] in ("pass", "fail", "unknown", "not_run"):
            return document
    except (ValueError, KeyError, IndexError):
        pass
    said = output.text.strip().splitlines()[-1:] or ["nothing"]
    raise Unknown(f"the memory check ended with code {output.code} and printed {said[0][:200]!r}")


def in_words(event: Mapping[str, Any]) -> str:
    """An event of the kernel's log for people: what, where, how often, and what to do."""
    name = {"xid": f"Xid {event['code']}", "sxid": f"SXid {event['code']}"}.get(event["kind"], event["kind"])
    where = f" at {event['pci']}" if event.get("pci") else ""
    often = f", {event['count']} times" if event.get("count", 1) > 1 else ""
    injected = " (written by a program, not by the driver)" if event.get("injected") else ""
    action = f": {event['action']}" if event.get("action") else ""
    return f"{name.replace('_', ' ')}{where}{often}{injected}{action}"
