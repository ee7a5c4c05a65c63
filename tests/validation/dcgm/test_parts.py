"""Figures, exit codes, messages and names: the parts that the verdict stands on."""

from __future__ import annotations

import pytest

from validation import dcgm
from validation.dcgm import suites
from validation.dcgm.figures import figures


@pytest.mark.parametrize(
    ("info", "found"),
    [
        ("GPU to Host bandwidth:\t\t58.62 GB/s", [("GPU to Host bandwidth", 58.62, "GB/s")]),
        (
            "GPU 0 GPU to Host bandwidth:\t\t24.02 GB/s, GPU 0 bidirectional latency:\t\t5.019 us",
            [("GPU to Host bandwidth", 24.02, "GB/s"), ("bidirectional latency", 5.019, "us")],
        ),
        (
            ["Running with precisions: FP64 1, FP32 1, FP16 1",
             "GPU 0 calculated at approximately 859.08 gigaflops during this test"],
            [("rate", 859.08, "gigaflops")],
        ),
        (
            "GPU 0 max power: 299.5 W average power usage: 299.0 W",
            [("max power", 299.5, "W"), ("average power usage", 299.0, "W")],
        ),
        ("GPU 0 GPU 0 relative stress level 1929", [("relative stress level", 1929.0, "")]),
        ("Allocated 112427837082 bytes (87.5%)", [("Allocated", 112427837082.0, "bytes")]),
        (None, []),
        ({"a": 1}, []),
        ([1, None, "nothing here"], []),
    ],
)  # fmt: skip
def test_figures(info: object, found: list[tuple[str, float, str]]) -> None:
    assert [(figure["name"], figure["value"], figure["unit"]) for figure in figures(info)] == found


@pytest.mark.parametrize(
    ("code", "name", "hardware"),
    [
        (0, "DCGM_ST_OK", False),
        (217, "DCGM_ST_DIAG_ALREADY_RUNNING", False),
        (226, "DCGM_ST_NVVS_ERROR", True),
        (-30, "DCGM_ST_NVVS_ERROR", True),
        (238, "DCGM_ST_GPU_IS_LOST", True),
        (1, "a code that DCGM does not document", False),
    ],
)
def test_exit_codes(code: int, name: str, hardware: bool) -> None:
    status = dcgm.exit_status(code)
    assert (status.name, status.hardware) == (name, hardware)
    assert str(status).startswith(f"exit code {code & 0xFF}, ")


def test_an_exit_code_takes_a_pass_away_and_gives_none() -> None:
    healthy = '{"body": {"Overall Health": {"value": "Healthy"}}, "header": []}'
    assert dcgm.judge(healthy, exit_code=0).verdict == "pass"
    assert dcgm.judge(healthy, exit_code=226).verdict == "unknown"
    assert dcgm.judge("", exit_code=0).verdict == "unknown"
    busy = dcgm.judge("", exit_code=217)
    assert busy.verdict == "unknown"
    assert "DIAG_ALREADY_RUNNING" in busy.reason


@pytest.mark.parametrize(
    ("name", "canonical"),
    [("GPU Memory", "memory"), ("memory", "memory"), ("PCIe", "pcie"), ("EUD Test", "eud"),
     ("Targeted Stress", "targeted_stress"), ("Page Retirement/Row Remap", "page_retirement/row_remap")],
)  # fmt: skip
def test_one_name_for_a_test(name: str, canonical: str) -> None:
    assert suites.canonical(name) == canonical


def test_a_level_has_the_tests_of_those_below_it() -> None:
    for major in (3, 4):
        for level in (2, 3, 4):
            assert set(suites.required(major, level)) > set(suites.required(major, level - 1))
            assert suites.level_of(major, set(suites.required(major, level))) == level
    assert suites.level_of(4, {"pcie"}) == 1


def test_a_level_that_does_not_exist_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="levels 1 to 4"):
        dcgm.judge("", level=5)
    with pytest.raises(ValueError, match="levels 1 to 4"):
        dcgm.diag(0)
