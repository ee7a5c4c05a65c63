"""Reads one run out of a ``dcgmi diag -j`` document of DCGM 3 or 4. Pure: JSON in, values out.

Sources: the writers, HelperJsonBuildOutput in dcgmi/Diag.cpp of https://github.com/NVIDIA/DCGM (v3.3.9 and
v4.6.0), nvvs/include/NvvsJsonStrings.h and testing/python3/dcgm_diag_schema.json. NVIDIA publishes no stable
schema, so everything that is not as these write it becomes a problem, and a document with a problem is
never passed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from validation.dcgm import suites
from validation.dcgm.document import mapping, number, sequence
from validation.judgement import quote

KEYS = {"DCGM GPU Diagnostic": 3, "DCGM Diagnostic": 4}
GPU = "GPU"
GPU_GROUP = 1  # DCGM_FE_GPU
GPU_LIMIT = 256
TEST_LIMIT = 200


class Entity(NamedTuple):
    """What a result is about; ``kind`` is DCGM's word, "GPU" or "CPU"."""

    kind: str
    id: int

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class Error(NamedTuple):
    """One error object; the numbers are those of dcgmlib/dcgm_errors.h, None where the document has none."""

    id: int | None
    severity: int | None
    text: str


class Result(NamedTuple):
    """One result of a test; without an entity it is about the machine."""

    entity: Entity | None
    status: str
    errors: list[Error]
    info: object


class Test(NamedTuple):
    """``name`` as printed, ``canonical`` as in ``suites``; ``summary`` None: DCGM 4 left it out."""

    name: str
    canonical: str
    results: list[Result]
    summary: Result | None


class Run(NamedTuple):
    """One run. ``major`` is DCGM's format, 3 or 4. ``listed``: the document says which GPUs it was about."""

    major: int
    gpus: list[int]
    listed: bool
    tests: list[Test]
    runtime_error: str | None
    dcgm_version: str | None
    driver_version: str | None
    serials: dict[int, str]
    problems: list[str]


def is_run(root: object) -> bool:
    """Whether this JSON value is the document of one run."""
    return any(key in mapping(root) for key in KEYS)


def read(root: dict[str, Any]) -> Run:
    """One run; never raises. Call it for what ``is_run``."""
    key = next(key for key in KEYS if key in root)
    body, problems = mapping(root[key]), []
    if not isinstance(root[key], dict):
        problems.append(f"{key!r} is no object")
    tests = list(itertools.islice(_tests(body, problems), TEST_LIMIT + 1))
    if len(tests) > TEST_LIMIT:
        problems.append(f"more than {TEST_LIMIT} tests")
    names = {test.canonical for test in tests}
    major = 3 if KEYS[key] == 3 or (names & set(suites.DEPLOYMENT) and "software" not in names) else 4
    metadata = mapping(root.get("metadata"))
    gpus, listed, serials = (_gpus_4 if major == 4 else _gpus_3)(root, tests, problems)
    error = body.get("runtime_error")
    return Run(
        major,
        gpus,
        listed,
        tests[:TEST_LIMIT],
        str(error) if error is not None else None,
        _text(metadata.get("version", root.get("version", body.get("version")))),
        _text(metadata.get("Driver Version Detected", root.get("Driver Version Detected"))),
        serials,
        problems[:20],
    )


def _tests(body: dict[str, Any], problems: list[str]) -> Iterator[Test]:
    seen = set()
    if "test_categories" in body and not isinstance(body["test_categories"], list):
        problems.append("'test_categories' is no array")
    for category in sequence(body.get("test_categories")):
        if not isinstance(category, dict) or not isinstance(category.get("tests"), list):
            problems.append("a category without tests")
        for test in sequence(mapping(category).get("tests")):
            name = mapping(test).get("name")
            if not isinstance(name, str) or not name.strip():
                problems.append("a test without a name")
                continue
            found = Test(quote(name, 60), suites.canonical(name[:60]), [], None)
            if found.canonical in seen:
                problems.append(f"the test {found.name} is there twice")
            seen.add(found.canonical)
            results = test.get("results")
            if results is not None and not isinstance(results, list):
                problems.append(f"the results of {found.name} are no array")
            # DCGM 3 leaves null in the place of a GPU on which the test was not run.
            for entry in sequence(results):
                if entry is not None:
                    found.results.append(_result(entry, found.name, problems))
            summary = test.get("test_summary")
            if summary is not None:
                found = found._replace(summary=_result(summary, f"the summary of {found.name}", problems))
            yield found


def _result(entry: object, where: str, problems: list[str]) -> Result:
    if not isinstance(entry, dict):
        problems.append(f"a result of {where} is no object")
    fields = mapping(entry)
    status = fields.get("status")
    if not isinstance(status, str):
        problems.append(f"a result of {where} without a status")
    return Result(
        _entity(fields, where, problems),
        quote(status, 30) if isinstance(status, str) else "",
        list(_errors(fields.get("warnings"), where, problems)),
        fields.get("info"),
    )


def _entity(fields: dict[str, Any], where: str, problems: list[str]) -> Entity | None:
    kind: object = None
    value: object = None
    if "entity_id" in fields or "entity_group" in fields or "entity_group_id" in fields:
        kind, value = _group(fields, problems), fields.get("entity_id")
    elif "gpu_id" in fields or "gpu_ids" in fields:  # early DCGM 3: "gpu_ids", of one GPU
        kind, value = GPU, fields.get("gpu_id", fields.get("gpu_ids"))
    elif "cpu_id" in fields:
        kind, value = "CPU", fields["cpu_id"]
    else:
        return None
    plain = number(value)
    if kind is None or plain is None:
        problems.append(f"a result of {where} is about no entity that can be read")
        return None
    return Entity(str(kind), plain)


def _group(fields: dict[str, Any], problems: list[str]) -> str | None:
    """DCGM's word for the kind of an entity; its number must say the same."""
    word, code = fields.get("entity_group"), number(fields.get("entity_group_id"))
    if word is not None and not isinstance(word, str):
        return None
    if code is not None and word is not None and (code == GPU_GROUP) != (word == GPU):
        problems.append(f"the entity group {quote(word, 20)!r} has the number {code}")
    if word is None and code is not None:
        return GPU if code == GPU_GROUP else f"entity group {code}"
    return quote(word, 20) if word else None


def _errors(value: object, where: str, problems: list[str]) -> Iterator[Error]:
    """The error objects of a result. DCGM 3 writes the text of a deployment test's under "warnings"."""
    if value is None:
        return
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, dict):
            text = entry.get("warning", entry.get("warnings"))
            yield Error(
                number(entry.get("error_id")),
                number(entry.get("error_severity")),
                quote(text) if isinstance(text, str) else "(an error without a text)",
            )
        elif isinstance(entry, str):
            yield Error(None, None, quote(entry))
        elif entry is not None:  # null: DCGM 3 numbers the errors and leaves gaps
            problems.append(f"a warning of {where} is no object")


def _gpus_4(
    root: dict[str, Any], tests: list[Test], problems: list[str]
) -> tuple[list[int], bool, dict[int, str]]:
    groups = root.get("entity_groups")
    listed: list[int] = []
    serials: dict[int, str] = {}
    for group in sequence(groups):
        if not isinstance(group, dict) or not isinstance(group.get("entities"), list):
            problems.append("an entity group without entities")
            continue
        if _group(group, problems) != GPU:
            continue
        for entity in group["entities"]:
            gpu = number(mapping(entity).get("entity_id"))
            if gpu is None:
                problems.append("a GPU of the entity groups has no number")
                continue
            if gpu in serials:
                problems.append(f"GPU {gpu} is twice in the entity groups")
            listed.append(gpu)
            serials[gpu] = _text(mapping(entity).get("serial_num")) or ""
    if groups is not None and not isinstance(groups, list):
        problems.append("'entity_groups' is no array")
    tested = _tested(tests)
    if listed and not tested <= set(listed):
        problems.append("results for GPUs that are not in the entity groups")
    gpus = sorted({*listed, *tested})
    return _limited(gpus, problems), bool(listed), {gpu: text for gpu, text in serials.items() if text}


def _gpus_3(
    root: dict[str, Any], tests: list[Test], problems: list[str]
) -> tuple[list[int], bool, dict[int, str]]:
    """DCGM 3 lists the device ids by position and the serial numbers, of those that have one, by GPU."""
    devices = root.get("GPU Device IDs")
    serials: dict[int, str] = {}
    for name, serial in list(mapping(root.get("GPU Device Serials")).items())[: GPU_LIMIT + 1]:
        gpu = number(name)
        if gpu is None:
            problems.append("a serial number of no GPU")
        else:
            serials[gpu] = _text(serial) or ""
    known = {*serials, *_tested(tests)}
    count = len(sequence(devices))
    if devices is not None and not isinstance(devices, list):
        problems.append("'GPU Device IDs' is no array")
    if count > len(known):
        positions = set(range(min(count, GPU_LIMIT + 1)))
        if not known <= positions:
            problems.append(f"{count} device ids, and results for other GPUs")
        known |= positions
    return _limited(sorted(known), problems), bool(count or serials), serials


def _limited(gpus: list[int], problems: list[str]) -> list[int]:
    if len(gpus) > GPU_LIMIT:
        problems.append(f"more than {GPU_LIMIT} GPUs")
    return gpus[:GPU_LIMIT]


def _tested(tests: list[Test]) -> set[int]:
    return {
        result.entity.id
        for test in tests
        for result in test.results
        if result.entity and result.entity.kind == GPU
    }


def _text(value: object) -> str | None:
    return quote(value, 60) if isinstance(value, str) and value else None
