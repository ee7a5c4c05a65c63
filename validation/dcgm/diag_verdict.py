"""Judges the runs of a ``dcgmi diag -j`` document.

Every test of the level on every GPU must be there with Pass and no error object. Neither the exit code nor
the status words alone would do: a skipped test exits with 0, and a test can say Pass beside an error object
(https://github.com/NVIDIA/DCGM/issues/284).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from validation.dcgm import messages, suites
from validation.dcgm.diag_reader import GPU, Entity, Error, Result, Run, Test, is_run, read
from validation.dcgm.fault import describe
from validation.dcgm.figures import LIMIT, figures
from validation.judgement import counted, gpus, quote

STATUSES = ("Pass", "Fail", "Skip")  # there are no others: a warning is printed as Fail
# DCGM_FR_TEST_DISABLED, _ECC_UNSUPPORTED, _CONCURRENT_GPUS, _L1TAG_UNSUPPORTED, _TEST_SKIPPED
NOT_TESTED = frozenset({48, 60, 68, 78, 117})
# Severities of dcgmlib/dcgm_errors.h at which a skipped test has still found something: isolate, triage,
# reset. The others (monitor, unknown, config) only say why it was skipped.
FOUND = frozenset({2, 4, 6})


class Parts(NamedTuple):
    """What follows from a document or a part of it; ``passed`` is the reason if nothing else follows."""

    failures: list[dict[str, Any]]
    not_run: list[dict[str, Any]]
    passed: str
    data: dict[str, Any]


def judge_run(root: dict[str, Any], *, level: int | None, expect_gpus: int | None) -> Parts:
    """Judges one run. Without ``level`` it must be complete for its own tests and for level 1."""
    run = read(root)
    present = {test.canonical for test in run.tests}
    asked = level or suites.level_of(run.major, present)
    parts = Parts([], [], "", _data(run, asked, present))
    if run.runtime_error is not None:
        _judge_error(run.runtime_error, parts)
        if not run.tests:
            return parts
    elif not run.tests and not run.problems:
        parts.not_run.append({"reason": "the document holds no tests: nothing was tested"})
        return parts
    for test in run.tests:
        _judge_test(test, run, parts)
    for name in suites.required(run.major, asked):
        if name not in present:
            what = f"a test of level {asked}"
            parts.not_run.append(
                {"test": name, "status": "missing", "reason": f"{name}, {what}, is not in the document"}
            )
    _judge_count(run, expect_gpus, parts)
    parts.not_run.extend({"reason": f"not as DCGM writes it: {problem}"} for problem in run.problems)
    tests = counted(len(run.tests) - len(parts.data["not_applicable"]), "test")
    return parts._replace(passed=f"level {asked}: {tests} passed on {counted(len(run.gpus), 'GPU')}")


def judge_iterations(root: dict[str, Any], *, level: int | None, expect_gpus: int | None) -> Parts:
    """Judges a document of ``dcgmi diag --iterations``: each iteration, and what it says over all."""
    failures: list[dict[str, Any]] = []
    not_run: list[dict[str, Any]] = []
    data: dict[str, Any] = {}
    counts = set()
    passed = ""
    iterations = root["iterations"] if isinstance(root["iterations"], list) else []
    for number, iteration in enumerate(iterations, start=1):
        if not isinstance(iteration, dict) or not is_run(iteration):
            not_run.append({"iteration": number, "reason": f"iteration {number} has no result"})
            continue
        parts = judge_run(iteration, level=level, expect_gpus=expect_gpus)
        failures += [{"iteration": number, **entry} for entry in parts.failures]
        not_run += [{"iteration": number, **entry} for entry in parts.not_run]
        data, passed = data or parts.data, passed or parts.passed
        counts.add(tuple(parts.data["gpus"]))
    if not iterations:
        not_run.append({"reason": "no iteration: nothing was tested"})
    if len(counts) > 1:
        not_run.append({"reason": "the iterations were not about the same GPUs"})
    _judge_overall(root, failures, not_run)
    data = {**data, "iterations": len(iterations)}
    return Parts(failures, not_run, f"{counted(len(iterations), 'iteration')}, {passed}", data)


def _judge_overall(
    root: dict[str, Any], failures: list[dict[str, Any]], not_run: list[dict[str, Any]]
) -> None:
    overall, warning = root.get("Overall Result"), root.get("Warning")
    if overall == "Pass":
        return
    reason = f"the overall result is {quote(str(overall), 30)!r}"
    if isinstance(warning, str) and warning:
        reason += f": {quote(warning)}"
    if overall == "Fail" and not failures and not not_run and not warning:
        failures.append({"message": reason + ", though no iteration says so", "severity": "fatal"})
    elif not failures:
        not_run.append({"reason": reason})


def _data(run: Run, level: int, present: set[str]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for test in run.tests:
        for result in test.results:
            where = {"test": test.canonical, **({"entity": str(result.entity)} if result.entity else {})}
            found += [{**where, **figure} for figure in figures(result.info)]
            if len(found) > LIMIT:
                break
    return {
        "kind": "diag",
        "level": level,
        "dcgm_version": run.dcgm_version,
        "driver_version": run.driver_version,
        "gpus": run.gpus,
        "tests": [test.canonical for test in run.tests],
        "not_applicable": [],
        "absent": suites.absent(run.major, level, present),
        "figures": found[:LIMIT],
    }


def _judge_error(text: str, parts: Parts) -> None:
    message = messages.explain(text)
    said = quote(text)
    if message and message.broken:
        parts.failures.append({"message": f"{message.reason}: {said}", "severity": "fatal"})
    else:
        why = f"{message.reason}: " if message else ""
        parts.not_run.append({"reason": f"the diagnostic was not run: {why}{said}"})


def _judge_test(test: Test, run: Run, parts: Parts) -> None:
    before = len(parts.failures), len(parts.not_run)
    skipped: list[Result] = []
    for result in test.results:
        if result.status == "Skip" and not _found(result):
            skipped.append(result)
        else:
            _judge_result(test, result, parts)
    if test.canonical in suites.OWN_TERMS and len(skipped) == len(test.results):
        parts.data["not_applicable"].append(test.name)
    else:
        if skipped:
            _add_skipped(test, skipped, parts)
        _judge_matrix(test, run, parts)
    said = parts.failures[before[0] :], parts.not_run[before[1] :]
    _judge_summary(test, run, parts, failed=bool(said[0]), complete=not said[1] and not skipped)


def _judge_result(test: Test, result: Result, parts: Parts) -> None:
    """One result that is not a plain Skip."""
    if result.status not in STATUSES:
        why = f"{_where(test, result.entity)}: {result.status!r} is no status that DCGM documents"
        parts.not_run.append({**_place(test, result.entity), "status": result.status, "reason": why})
        return
    errors = [error for error in result.errors if result.status == "Fail" or error.id not in NOT_TESTED]
    for error in errors:
        parts.failures.append(_failure(test, result, error))
    if result.status == "Fail" and not errors:
        parts.failures.append(_failure(test, result, None))
    if result.status == "Pass" and len(errors) < len(result.errors):
        why = f"{_where(test, result.entity)} says Pass, and that something was not tested"
        parts.not_run.append({**_place(test, result.entity), "status": "Pass", "reason": why})


def _found(result: Result) -> bool:
    return any(error.severity in FOUND and error.id not in NOT_TESTED for error in result.errors)


def _failure(test: Test, result: Result, error: Error | None) -> dict[str, Any]:
    where = _where(test, result.entity)
    entry = {**_place(test, result.entity), "status": result.status}
    if error is None:
        return {**entry, "message": f"{where} failed without saying why", "severity": "fatal"}
    beside = "" if result.status == "Fail" else f" (status {result.status} beside an error)"
    return {**entry, "message": f"{where} failed{beside}: {error.text}", **describe(error)}


def _add_skipped(test: Test, skipped: Iterable[Result], parts: Parts) -> None:
    """One entry for all entities that skipped a test: eight lines of the same would hide the others."""
    skipped = list(skipped)
    numbers = [result.entity.id for result in skipped if result.entity and result.entity.kind == GPU]
    others = [str(result.entity) for result in skipped if result.entity and result.entity.kind != GPU]
    where = ", ".join([gpus(numbers)] * bool(numbers) + others[:8])
    texts = [error.text for result in skipped for error in result.errors]
    texts += [text for result in skipped for text in _texts(result.info)]
    why = f": {texts[0]}" if texts else ""
    entry = {"test": test.name, "status": "Skip", **({"gpus": sorted(numbers)} if numbers else {})}
    parts.not_run.append({**entry, "reason": f"{test.name} was skipped{where and ' on ' + where}{why}"})


def _judge_matrix(test: Test, run: Run, parts: Parts) -> None:
    """Every GPU must have one result, except of a test that is about the machine or about other things."""
    seen: dict[Entity | None, int] = {}
    for result in test.results:
        seen[result.entity] = seen.get(result.entity, 0) + 1
    for entity, count in seen.items():
        if count > 1:
            where = _where(test, entity)
            parts.not_run.append({**_place(test, entity), "reason": f"{where} has {count} results"})
    kinds = {entity.kind if entity else None for entity in seen}
    if test.canonical in suites.DEPLOYMENT or test.canonical in suites.OWN_TERMS:
        per_gpu = GPU in kinds and test.canonical not in suites.DEPLOYMENT
    else:
        per_gpu = not kinds or GPU in kinds or None in kinds
    missing = [gpu for gpu in run.gpus if Entity(GPU, gpu) not in seen] if per_gpu else []
    if missing or not seen:
        on = f" on {gpus(missing)}" if missing else ""
        entry = {"test": test.name, "status": "missing", **({"gpus": missing} if missing else {})}
        parts.not_run.append({**entry, "reason": f"{test.name} was not run{on}"})


def _judge_summary(test: Test, run: Run, parts: Parts, *, failed: bool, complete: bool) -> None:
    """What DCGM 4 says of the test as a whole. It repeats the errors of the results; others count."""
    summary = test.summary
    if summary is None:
        if run.major == 4 and test.canonical not in suites.OWN_TERMS and complete:
            reason = f"{test.name} has no summary, which DCGM leaves out for a test that was not run"
            parts.not_run.append({"test": test.name, "status": "missing", "reason": reason})
        return
    known = {(error.id, error.text) for result in test.results for error in result.errors}
    errors = [error for error in summary.errors if (error.id, error.text) not in known]
    alone = summary._replace(entity=None, errors=errors)
    if summary.status == "Skip" and not _found(alone):
        if complete and test.canonical not in suites.OWN_TERMS:
            _add_skipped(test, [alone], parts)
    elif summary.status != "Fail" or errors or not failed:
        _judge_result(test, alone, parts)


def _judge_count(run: Run, expect: int | None, parts: Parts) -> None:
    count = len(run.gpus)
    if expect is not None and count != expect:
        what = f"{counted(count, 'GPU')} in the document, {expect} expected"
        if run.listed and count < expect:
            parts.failures.append({"message": what, "severity": "fatal", "action": "find the missing GPU"})
        else:
            parts.not_run.append({"reason": what})
    elif not run.listed and expect is None and run.tests:
        reason = "the document does not list its GPUs: say with --expect-gpus how many there should be"
        parts.not_run.append({"reason": reason})
    elif not count and run.tests and expect is None:
        parts.not_run.append({"reason": "no GPU was tested"})


def _place(test: Test, entity: Entity | None) -> dict[str, Any]:
    if entity is None:
        return {"test": test.name}
    gpu = {"gpu": entity.id} if entity.kind == GPU else {}
    return {"test": test.name, "entity": str(entity), **gpu}


def _where(test: Test, entity: Entity | None) -> str:
    return f"{test.name} on {entity}" if entity else test.name


def _texts(info: object) -> list[str]:
    entries = info if isinstance(info, list) else [info]
    return [quote(entry) for entry in entries[:10] if isinstance(entry, str) and entry]
