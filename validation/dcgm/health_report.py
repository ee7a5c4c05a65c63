"""Judges a ``dcgmi health -c -j`` document.

Its exit code is 0 also for a failure, and the worst Xids stand under a system named "Internal error": that
is what HelperSystemToString calls a fault that is of no single system, and no problem of the tool.

Source: dcgmi/Health.cpp of https://github.com/NVIDIA/DCGM (v3.3.9, v4.6.0); it breaks a long message into
the pieces of "overflow".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from validation.dcgm.diag_verdict import Parts
from validation.dcgm.document import mapping, number, sequence
from validation.dcgm.fault import describe_xid
from validation.judgement import quote

OVERALL = "Overall Health"
HEALTHY, WARNING, FAILURE = "Healthy", "Warning", "Failure"
_XID = re.compile(r"\bXID (\d{1,5})\b", re.IGNORECASE)
_ENTRIES = 2000


def is_health(root: object) -> bool:
    """Whether this JSON value is a report of ``dcgmi health``."""
    body = mapping(root).get("body")
    return isinstance(body, dict) and ("header" in mapping(root) or OVERALL in body)


def judge_health(root: dict[str, Any]) -> Parts:
    """Judges one report. A warning fails, as an entry that says ``warning``: on a machine that is already
    at work, policy may let it degrade.
    """
    body = mapping(root["body"])
    parts = Parts([], [], "no watched system reports a fault", {"kind": "health", "overall": None})
    overall = mapping(body.get(OVERALL)).get("value")
    parts.data["overall"] = quote(overall, 40) if isinstance(overall, str) else None
    for kind, group in list(body.items())[:_ENTRIES]:
        if kind != OVERALL:
            _judge_group(quote(kind, 40), group, parts)
    _judge_overall(overall, body, parts)
    return parts


def _judge_overall(overall: object, body: dict[str, Any], parts: Parts) -> None:
    if overall in (WARNING, FAILURE):
        if not parts.failures:
            message = f"the overall health is {overall}, and no fault is named"
            parts.failures.append({"status": overall, "message": message, **_weight(str(overall))})
    elif overall is None:
        if body and not parts.not_run and not parts.failures:
            why = "this lists the health watches (health -f); ask dcgmi health -c -j"
        else:
            why = "the watches were set or listed, and nothing was checked"
        parts.not_run.append({"reason": f"the report has no overall health: {why}"})
    elif overall != HEALTHY:
        reason = f"the overall health is {quote(str(overall), 40)!r}, which DCGM does not document"
        parts.not_run.append({"reason": reason})


def _judge_group(kind: str, group: object, parts: Parts) -> None:
    """All entities of one kind, "GPU" or "NvSwitch"."""
    children = mapping(group).get("children")
    if not isinstance(children, dict):
        if isinstance(mapping(group).get("value"), str):
            return  # health -f: {"PCIe": {"value": "On"}}
        parts.not_run.append({"reason": f"not as DCGM writes it: {kind} has no entities"})
        return
    for name, entity in list(children.items())[:_ENTRIES]:
        _judge_entity(kind, quote(name, 40), entity, parts)


def _judge_entity(kind: str, name: str, entity: object, parts: Parts) -> None:
    where = f"{kind} {name}"
    gpu = number(name) if kind == "GPU" else None
    place = {"entity": where, **({} if gpu is None else {"gpu": gpu})}
    status = mapping(entity).get("value")
    before = len(parts.failures)
    for system, value, message in _systems(entity):
        _judge_system(where, place, (system, value, message), parts)
    if status in (WARNING, FAILURE):
        if len(parts.failures) == before:
            message = f"{where}: {status}, and no fault is named"
            parts.failures.append({**place, "status": status, "message": message, **_weight(str(status))})
    elif status != HEALTHY and not (status is None and len(parts.failures) > before):
        reason = f"{where}: {quote(str(status), 40)!r} is no health that DCGM documents"
        parts.not_run.append({**place, "reason": reason})


def _systems(entity: object) -> Iterator[tuple[str, object, str]]:
    errors = mapping(mapping(mapping(entity).get("children")).get("Errors"))
    for system, fault in list(mapping(errors.get("children")).items())[:_ENTRIES]:
        pieces = [
            piece for piece in sequence(mapping(fault).get("overflow"))[:100] if isinstance(piece, str)
        ]
        yield quote(system, 40), mapping(fault).get("value"), quote(" ".join(pieces), 1000)


def _judge_system(where: str, place: dict[str, Any], fault: tuple[str, object, str], parts: Parts) -> None:
    system, value, text = fault
    entry = {**place, "system": system}
    if value == HEALTHY:
        return
    if value not in (WARNING, FAILURE):
        reason = f"{where}, {system}: {quote(str(value), 40)!r} is no health that DCGM documents"
        parts.not_run.append({**entry, "reason": reason})
        return
    xid = _XID.search(text)
    message = f"{where}, {system}: {text or value}"
    found = describe_xid(int(xid[1])) if xid else {}
    parts.failures.append({**entry, "status": value, "message": message, **_weight(str(value)), **found})


def _weight(status: str) -> dict[str, Any]:
    if status == WARNING:
        return {"warning": True, "severity": "degraded"}
    return {"severity": "fatal"}
