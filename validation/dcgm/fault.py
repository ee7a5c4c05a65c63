"""What an error object of DCGM means: its numbers in the words of the fault catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from validation.dcgm.diag_reader import Error

# dcgmErrorSeverity_enum of dcgmlib/dcgm_errors.h (NVIDIA/DCGM v4.6.0), and the catalog's word for each, for
# an error that the catalog does not know.
SEVERITIES = {
    1: ("monitor", "warn"),
    2: ("isolate", "fatal"),
    3: ("unknown", "unknown"),
    4: ("triage", "fatal"),
    5: ("config", "warn"),
    6: ("reset", "fatal"),
}


def describe(error: Error) -> dict[str, Any]:
    """``error_id`` and DCGM's own severity as the document has them; name, meaning, severity and action."""
    from validation import faults  # here: a document without an error need not load the catalog

    entry: dict[str, Any] = {}
    word, severity = "", "unknown"
    if error.severity is not None:
        word, severity = SEVERITIES.get(error.severity, (f"severity {error.severity}", "unknown"))
        entry["dcgm_severity"] = word
    if error.id is None:
        return {**entry, "severity": severity}
    fault = faults.dcgm_error(error.id)
    known = fault.severity is not faults.Severity.UNKNOWN
    return {
        "error_id": error.id,
        **({"name": fault.name} if fault.name else {}),
        "meaning": fault.meaning,
        **entry,
        "severity": fault.severity.value if known else severity,
        "action": fault.action,
    }


def describe_xid(code: int) -> dict[str, Any]:
    """The Xid that a health report names, and what to do about it."""
    from validation import faults

    fault = faults.xid(code)
    return {"xid": code, "meaning": fault.meaning, "action": fault.action}
