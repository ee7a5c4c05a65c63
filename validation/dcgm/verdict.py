"""The verdict over a text that dcgmi printed: finds out what it is and asks the right reader."""

from __future__ import annotations

from typing import Any

from validation.dcgm import messages
from validation.dcgm.diag_reader import is_run
from validation.dcgm.diag_verdict import Parts, judge_iterations, judge_run
from validation.dcgm.document import Found, find, mapping
from validation.dcgm.exit_status import exit_status
from validation.dcgm.health_report import is_health, judge_health
from validation.judgement import INPUT_LIMIT, PASS, Judgement, decide, quote, unknown

LEVELS = (1, 2, 3, 4)


def judge(
    text: str,
    *,
    level: int | None = None,
    expect_gpus: int | None = None,
    exit_code: int | None = None,
) -> Judgement:
    """Judges a document of ``dcgmi diag -j`` or ``dcgmi health -c -j``, found out from the text.

    ``level`` (1 to 4) is the one that was asked for; without it a diagnostic must be complete for its own
    tests. ``expect_gpus`` is how many GPUs the machine should have. ``exit_code`` is dcgmi's, if it is
    known: it never makes a pass, and takes one away that it contradicts. Never raises for a text.
    """
    if level is not None and level not in LEVELS:
        raise ValueError(f"level {level}: dcgmi diag has the levels 1 to 4")
    status = None if exit_code is None else exit_status(exit_code)
    if len(text) > INPUT_LIMIT:
        return unknown(f"more than {INPUT_LIMIT // 2**20} MiB: nothing that dcgmi prints is as long")
    found = find(text)
    judged = [_judge_root(root, level, expect_gpus) for root in found.roots]
    if not judged or not any(judged):
        judgement = _without_document(text, found)
    else:
        judgement = _merged([parts for parts in judged if parts], found)
    if status is None or status.code == 0:
        return judgement
    return _with_exit_code(judgement, str(status))


def _judge_root(root: object, level: int | None, expect_gpus: int | None) -> Parts | None:
    if "iterations" in mapping(root):
        return judge_iterations(mapping(root), level=level, expect_gpus=expect_gpus)
    if is_run(root):
        return judge_run(mapping(root), level=level, expect_gpus=expect_gpus)
    if is_health(root):
        parts = judge_health(mapping(root))
        if level is not None:
            reason = f"level {level} was asked, and this is a health report: no test was run"
            parts.not_run.append({"reason": reason})
        if expect_gpus is not None:
            reason = "a health report does not list the healthy GPUs, so it cannot tell how many there are"
            parts.not_run.append({"reason": reason})
        return parts
    return None


def _merged(judged: list[Parts], found: Found) -> Judgement:
    """The judgement over all documents of a text: each must pass."""
    failures = [entry for parts in judged for entry in parts.failures]
    not_run = [entry for parts in judged for entry in parts.not_run]
    not_run += [{"reason": f"beside the document is {what}"} for what in found.broken]
    message = messages.explain(found.rest)
    if message and message.broken:
        failures.append({"message": f"{message.reason}: {quote(found.rest)}", "severity": "fatal"})
    data: dict[str, Any] = {}
    for parts in reversed(judged):
        data.update(parts.data)
    return decide(
        passed="; ".join(parts.passed for parts in judged), failures=failures, not_run=not_run, data=data
    )


def _without_document(text: str, found: Found) -> Judgement:
    """The judgement over a text that holds no document of dcgmi."""
    data = {"kind": None}
    if not text.strip():
        return unknown("an empty text: dcgmi printed nothing, or was ended before it did", **data)
    message = messages.explain(text if not found.roots else found.rest)
    if message:
        said = f"{message.reason} ({quote(text, 120)})"
        if message.broken:
            return decide(passed="", failures=[{"message": said, "severity": "fatal"}], data=data)
        return unknown(said, **data)
    if found.roots:
        return unknown("JSON, but neither a diagnostic nor a health report of dcgmi", **data)
    if found.broken:
        return unknown(found.broken[0], **data)
    return unknown(f"no JSON document and no message of dcgmi: {quote(text, 120)!r}", **data)


def _with_exit_code(judgement: Judgement, status: str) -> Judgement:
    data = {**judgement.data, "exit_code": status}
    if judgement.verdict == PASS:
        reason = f"the document shows no fault, and dcgmi ended with {status}"
        return decide(passed="", not_run=[{"reason": reason}], data=data)
    return judgement._replace(reason=f"{judgement.reason} ({status})", data=data)
