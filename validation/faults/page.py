"""An entry of the catalog as text, for the person who has to decide at night."""

from __future__ import annotations

import textwrap
from typing import Any

from validation.faults.catalog import what_nvidia_says
from validation.faults.model import Fault, Severity

_TITLES = {"xid": "Xid", "sxid": "SXid", "nvlink5": "Xid", "dcgm": "DCGM error", "kernel": "kernel message"}
_WHAT = {
    Severity.FATAL: "take it out of use",
    Severity.DEGRADED: "works, but gives less than it should",
    Severity.WARN: "counts when it comes back",
    Severity.INFO: "record only",
    Severity.UNKNOWN: "cannot be judged by the code alone",
}
_DECIDED = {
    "line": "the word in the line (Fatal, Non-fatal); the above holds when there is none",
    "nvlink5": "the word in the line and the sub-code table, the graver of the two",
    "target": "the target number in the line, not the words beside it",
}
_WIDTH = 100
_MARGIN = 13


def text(fault: Fault) -> str:
    """The entry as lines, most needed first."""
    title = _TITLES[fault.kind] + (f" {fault.code}" if fault.code is not None else "")
    title += ", sub-code" if fault.kind == "nvlink5" else ""
    verdict = f"{fault.severity.value.upper()}: {_WHAT[fault.severity]}"
    lines = [f"{title}  {fault.name}".rstrip(), verdict, ""]
    lines += _row("meaning", fault.meaning)
    lines += _row("do", fault.action)
    if fault.severity is Severity.FATAL:
        lines += _row("counts", "at once")
    elif fault.repeat:
        lines += _row("counts", f"when it comes {fault.repeat} on one GPU or link")
    if fault.decided_by in _DECIDED:
        lines += _row("severity by", _DECIDED[fault.decided_by])
    if fault.decided_by == "nvlink5":
        lines += _row("sub-codes", f"explain nvlink5 {fault.code} [UNIT [STATUS]]")
    if fault.bucket:
        lines += _row("NVIDIA", _bucket(fault.bucket))
    if fault.investigate and fault.investigate != fault.bucket:
        lines += _row("then", _bucket(fault.investigate))
    for who, says in fault.disagreements:
        lines += _row("disagrees", f"{who}: {says}")
    if fault.aka:
        lines += _row("also called", ", ".join(fault.aka))
    for what, detail in fault.details:
        lines += _row("detail", f"{what}: {detail}")
    for source in fault.sources:
        lines += _row("source", source)
    return "\n".join(lines) + "\n"


def line(fault: Fault) -> str:
    """The entry in one line: code, severity, name, meaning."""
    code = "" if fault.code is None else str(fault.code)
    said = fault.meaning
    if fault.kind == "nvlink5":
        detail = dict(fault.details)
        where = f"status {detail['error status']}, sub-code {detail['sub-code']}"
        said = f"{where}: {fault.bucket}, {fault.investigate}"
    return f"{code:>6} {fault.severity.value:<9} {fault.name}: {said}"


def document(fault: Fault) -> dict[str, Any]:
    """The entry for programs."""
    return {
        **fault._asdict(),
        "details": dict(fault.details),
        "disagreements": dict(fault.disagreements),
    }


def _bucket(bucket: str) -> str:
    words = what_nvidia_says(bucket)
    return bucket if words == bucket else f"{bucket}: {words}"


def _row(what: str, content: str) -> list[str]:
    return textwrap.wrap(
        content,
        _WIDTH,
        initial_indent=f"{what:<{_MARGIN}}",
        subsequent_indent=" " * _MARGIN,
        break_long_words=False,
        break_on_hyphens=False,
    )
