"""What holds for every text, and that nothing done to a healthy machine's rows leaves them unnoticed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.validation.mutations import mutated
from tests.validation.rows import FIXTURES
from validation import nvidia_smi
from validation.judgement import INPUT_LIMIT
from validation.nvidia_smi.rules import HEALTH
from validation.reader_command import decode

FOLDER = FIXTURES / "nvidia_smi"
TEXTS = [decode(path.read_bytes()) for path in sorted(FOLDER.glob("*.*")) if path.suffix in (".csv", ".txt")]
HEALTHY = (FOLDER / "smi_query_h200_healthy.csv").read_text(encoding="utf-8").splitlines()
COLUMNS = HEALTHY[0].split(", ")


def judge(text: str, expect_gpus: int | None = None) -> nvidia_smi.Judgement:
    judgement = nvidia_smi.judge(text, expect_gpus=expect_gpus)
    assert judgement.verdict in ("pass", "fail", "unknown")
    assert judgement.reason
    json.dumps(judgement.document(), allow_nan=False)
    return judgement


@settings(max_examples=50, deadline=None)
@given(text=mutated(TEXTS), expect=st.sampled_from([None, 0, 1, 8]))
def test_no_text_raises(text: str, expect: int | None) -> None:
    judge(text, expect)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=2000))
def test_free_text_is_never_a_pass(text: str) -> None:
    assert judge(text).verdict != "pass"


def changed(row: int, column: int, cell: str) -> str:
    cells = HEALTHY[row].split(", ")
    cells[column] = cell
    return "\n".join([*HEALTHY[:row], ", ".join(cells), *HEALTHY[row + 1 :]])


BROKEN = ["[Unknown Error]", "[GPU is lost]", "[GPU requires reset]", "ERR!", "Unknown Error"]


@settings(max_examples=50, deadline=None)
@given(row=st.integers(1, 8), column=st.integers(0, len(COLUMNS) - 1), cell=st.sampled_from(BROKEN))
def test_a_broken_status_fails_wherever_it_stands(row: int, column: int, cell: str) -> None:
    if COLUMNS[column] == "name":
        return  # nvidia-smi cannot print one there and in no other cell
    assert judge(changed(row, column, cell)).verdict == "fail"


@settings(max_examples=50, deadline=None)
@given(
    row=st.integers(1, 8),
    column=st.sampled_from(sorted(HEALTH & set(COLUMNS))),
    cell=st.sampled_from(["Maybe", "[Gone]", "0xZZ", "nan", "1e5", "-", "[Insufficient Permissions]"]),
)
def test_a_value_that_is_not_understood_is_no_pass(row: int, column: str, cell: str) -> None:
    assert judge(changed(row, COLUMNS.index(column), cell)).verdict in ("fail", "unknown")


@settings(max_examples=50, deadline=None)
@given(mask=st.integers(0, 2**64 - 1))
def test_event_reasons_are_bits(mask: int) -> None:
    """nvml.h: HW slowdown 0x8, SW thermal 0x20, HW thermal 0x40, HW power brake 0x80."""
    text = changed(3, COLUMNS.index("clocks_event_reasons.active"), f"0x{mask:016X}")
    assert (judge(text).verdict == "fail") == bool(mask & 0xE8)


@pytest.mark.parametrize("gone", range(1, 9))
def test_a_row_that_is_not_there_is_missed(gone: int) -> None:
    assert judge("\n".join([*HEALTHY[:gone], *HEALTHY[gone + 1 :]])).verdict == "fail"


@pytest.mark.parametrize(
    "text",
    [
        "\x00" * 200_000,
        "a," * 100_000,
        ",".join(f"ecc.a{number}" for number in range(10_000)),
        HEALTHY[0] + "\n" + (HEALTHY[1] + "\n") * 4200,
        HEALTHY[0] + "\n" + "," * 100_000,
        ("x" * 300 + "\n") * 3000,
        ("Unable to error\n") * 30_000,
        "\ud800" * 1000 + "\n".join(HEALTHY),
        " " * (INPUT_LIMIT + 1),
    ],
    ids=[
        "zeros",
        "commas",
        "wide",
        "many rows",
        "one wide row",
        "lines",
        "errors",
        "surrogates",
        "too long",
    ],
)
def test_texts_without_measure(text: str) -> None:
    assert judge(text).verdict != "pass"
