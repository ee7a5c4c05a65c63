"""What a check script printed, made into a result; and the verdict over all results. Pure."""

from __future__ import annotations

import enum
import json
import signal
from collections.abc import Sequence
from typing import Any, NamedTuple

from validation.boot_checks.check import Result, Status, name_of, unknown
from validation.boot_checks.supervisor import Ended


class Verdict(str, enum.Enum):
    """The state of the machine; there are no others."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"  # every check passed, and one says that the machine gives less than it should
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


class CheckResult(NamedTuple):
    """The result of one check as it stands in the report."""

    check: str
    status: Status
    reason: str
    data: dict[str, Any]
    script: str | None = None  # path on the machine; None: the runner's own check
    sha256: str | None = None  # of the script that ran
    seconds: float | None = None
    stderr: str | None = None  # the end of what it printed there


class BadOutput(Exception):
    """A script printed something that is no result; the message says what is wrong with it."""


def of_script(ended: Ended, *, script: str, sha256: str | None) -> CheckResult:
    """The result of a script that ran; whatever is wrong with it is ``unknown`` with a reason."""
    check = name_of(script)
    try:
        if ended.problem:
            raise BadOutput(ended.problem)
        check, result = parse(ended.stdout, exit_code=ended.exit_code)
    except BadOutput as error:
        result = unknown(str(error))
    stderr = ended.stderr.decode(errors="replace").strip() or None
    return CheckResult(check, *result, script, sha256, ended.seconds, stderr)


def parse(stdout: bytes, *, exit_code: int | None) -> tuple[str, Result]:
    """Name and result from the one JSON object that a check prints. Raises ``BadOutput``."""
    if exit_code is None or exit_code < 0:
        raise BadOutput(f"it died by {_signal_name(-(exit_code or 0))}")
    if not stdout.strip():
        raise BadOutput(f"it printed nothing (exit code {exit_code})")
    try:
        document = json.loads(stdout, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadOutput(f"it did not print one JSON object (exit code {exit_code}): {error}") from None
    if not isinstance(document, dict):
        raise BadOutput(f"it did not print one JSON object (exit code {exit_code})")
    name, status = document.get("check"), document.get("status")
    reason, data = document.get("reason"), document.get("data", {})
    if not isinstance(name, str) or not name:
        raise BadOutput("its JSON has no 'check', the name")
    if status not in list(Status):
        raise BadOutput(f"its JSON has no valid 'status': {json.dumps(status)[:80]}")
    status = Status(status)
    if not isinstance(reason, str) or (not reason and status is not Status.PASS):
        raise BadOutput(f"its JSON says {status.value} and has no 'reason'")
    if not isinstance(data, dict):
        raise BadOutput("its JSON has a 'data' that is no object")
    if exit_code != status.exit_code:
        raise BadOutput(f"it says {status.value}, but its exit code is {exit_code}, not {status.exit_code}")
    return name, Result(status, reason, data)


def verdict(results: Sequence[CheckResult]) -> tuple[Verdict, str]:
    """The verdict over all results and one line that says why; the worst result decides.

    A machine on which no script passed is not healthy: then nothing has been seen to work.
    """
    for status, outcome in ((Status.FAIL, Verdict.UNHEALTHY), (Status.UNKNOWN, Verdict.UNKNOWN)):
        if found := [result for result in results if result.status is status]:
            return outcome, "; ".join(f"{result.check}: {result.reason}" for result in found)
    scripts = [result for result in results if result.script]
    passes = [result for result in scripts if result.status is Status.PASS]
    if not passes:
        return Verdict.UNKNOWN, "no check passed" if scripts else "there are no checks"
    if degraded := [(result.check, why) for result in passes for why in _degraded(result)]:
        return Verdict.DEGRADED, "; ".join(f"{check}: {why}" for check, why in degraded)
    not_run = len(scripts) - len(passes)
    also = f", {not_run} not run" if not_run else ""
    return Verdict.HEALTHY, f"{len(passes)} of {len(scripts)} checks passed{also}"


def _degraded(result: CheckResult) -> list[str]:
    reasons = result.data.get("degraded")
    if not reasons:
        return []
    return [str(reason) for reason in reasons] if isinstance(reasons, list) else [str(reasons)]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
