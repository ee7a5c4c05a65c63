"""What holds for every text, and that nothing taken from a passing document leaves it passing."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.validation.mutations import mutated
from tests.validation.rows import FIXTURES
from validation import dcgm
from validation.judgement import INPUT_LIMIT
from validation.reader_command import decode

FOLDER = FIXTURES / "dcgm"
TEXTS = [
    decode(path.read_bytes()) for path in sorted(FOLDER.glob("*.*")) if path.suffix in (".json", ".txt")
]
# level, document: DCGM 4.4, 4.0, 4.6 with every plugin and a skipped EUD, 3.3
PASSING = [
    (2, "diag4_r2_pass.json"),
    (3, "diag4_r3_open_packages.json"),
    (3, "diag4_r3_all_plugins.json"),
    (4, "diag4_r4_pass.json"),
    (3, "diag3_r3_v100.json"),
    (4, "diag3_r4.json"),
]
OWN_TERMS = ("eud", "EUD Test")  # skipped on healthy machines


def judge(text: str, level: int | None = None, expect_gpus: int | None = None) -> dcgm.Judgement:
    judgement = dcgm.judge(text, level=level, expect_gpus=expect_gpus)
    assert judgement.verdict in ("pass", "fail", "unknown")
    assert judgement.reason
    json.dumps(judgement.document(), allow_nan=False)
    return judgement


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return document


def categories(document: dict[str, Any]) -> list[dict[str, Any]]:
    body = document.get("DCGM Diagnostic") or document["DCGM GPU Diagnostic"]
    return list(body["test_categories"])


def the_tests(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [test for category in categories(document) for test in category["tests"]]


@settings(max_examples=60, deadline=None)
@given(
    text=mutated(TEXTS), level=st.sampled_from([None, 1, 2, 3, 4]), expect=st.sampled_from([None, 0, 1, 8])
)
def test_no_text_raises(text: str, level: int | None, expect: int | None) -> None:
    judge(text, level, expect)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=2000))
def test_free_text_is_never_a_pass(text: str) -> None:
    assert judge(text).verdict != "pass"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("Pass"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None)
@given(which=st.sampled_from(PASSING), data=st.data())
def test_no_other_json_in_any_place_raises(which: tuple[int, str], data: st.DataObject) -> None:
    """Every value of a document is once replaced by something else."""
    document: Any = load(which[1])
    place = document
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
        else:
            break
    place[key] = data.draw(JSON)
    judge(json.dumps(document), which[0])


@settings(max_examples=60, deadline=None)
@given(
    which=st.sampled_from(PASSING),
    data=st.data(),
    what=st.sampled_from(["result", "results", "test", "status", "error", "error in a list of its own"]),
)
def test_nothing_taken_away_leaves_a_pass(which: tuple[int, str], data: st.DataObject, what: str) -> None:
    level, name = which
    document = load(name)
    assert judge(json.dumps(document), level).verdict == "pass"
    optional = (*OWN_TERMS, "nvbandwidth", "nccl_tests", "memory_bandwidth", "pulse_test", "Pulse Test")
    tests = [test for test in the_tests(document) if test["name"] not in optional]
    test = data.draw(st.sampled_from(tests))
    result = data.draw(st.sampled_from(test["results"]))
    if what == "result":
        test["results"].remove(result)
    elif what == "results":
        del test["results"]
    elif what == "test":
        for category in categories(document):
            category["tests"] = [entry for entry in category["tests"] if entry is not test]
    elif what == "status":
        result["status"] = data.draw(st.sampled_from(["Fail", "Skip", "Warn", "", "pass", "PASS", None, 1]))
    else:
        error = {"warning": "x", "error_id": 56, "error_category": 8, "error_severity": 4}
        result["warnings"] = [error] if what == "error" else {"0": error}
    fails = what.startswith("error") or result["status"] == "Fail"
    assert judge(json.dumps(document), level).verdict == ("fail" if fails else "unknown")


@pytest.mark.parametrize("word", ["Fail", "Skip"])
@pytest.mark.parametrize("test", ["nvbandwidth", "nccl_tests", "memory_bandwidth"])
def test_what_only_some_have_must_pass_where_it_is(test: str, word: str) -> None:
    document = load("diag4_r3_all_plugins.json")
    (found,) = [entry for entry in the_tests(document) if entry["name"] == test]
    found["results"][6]["status"] = word
    assert judge(json.dumps(document), 3).verdict == {"Fail": "fail", "Skip": "unknown"}[word]


def test_a_failure_outweighs_what_is_unknown() -> None:
    document = load("diag4_r2_fail_memory_gpu3.json")
    broken = copy.deepcopy(document)
    the_tests(broken)[1]["results"].pop(0)
    for text in (json.dumps(broken), json.dumps(broken) + "\n{", "log line\n" + json.dumps(broken)):
        assert judge(text, 3, 16).verdict == "fail"


FULL = (FOLDER / "diag4_r2_pass.json").read_text(encoding="utf-8")
MANY = ",".join(f'{{"entity_id":{number},"device_id":"x"}}' for number in range(100, 2000))
FAILS = ",".join('{"entity_group_id":1,"entity_id":1,"status":"Fail"}' for _ in range(2000))


@pytest.mark.parametrize(
    "text",
    [
        "\x00" * 200_000,
        "{" * 200_000,
        "{\n" * 100_000,
        '{"DCGM Diagnostic":' * 50_000,
        '{"DCGM Diagnostic":' + "[" * 50_000 + "]" * 50_000 + "}",
        '{"a":"' + "x" * 200_000,
        FULL.replace('"entity_id": 3', '"entity_id": ' + "9" * 10_000),
        FULL.replace('"entities": [', f'"entities": [{MANY},'),
        FULL.replace('"results": [', f'"results": [{FAILS},', 1),
        "\ud800" * 100 + FULL.replace("Pass", "\udfffPass"),
        " " * (INPUT_LIMIT + 1),
    ],
    ids=["zeros", "braces", "lines", "deep", "deep array", "string", "digits", "GPUs", "fails", "surrogates",
         "too long"],
)  # fmt: skip
def test_texts_without_measure(text: str) -> None:
    assert judge(text).verdict != "pass"


def test_a_judgement_over_thousands_of_failures_is_short() -> None:
    judgement = judge(FULL.replace('"results": [', f'"results": [{FAILS},', 1))
    assert len(judgement.failures) == 1000
    assert judgement.data["more_failures"] == 1000
