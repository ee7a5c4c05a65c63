"""The command as a person types it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from images.settings import CHECKOUT
from tests.validation.faults.tables import table
from validation.faults import __main__ as command
from validation.faults import every


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "validation.faults", *arguments]
    return subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=False)


def page(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert command.main(arguments) == 0
    return capsys.readouterr().out


def test_explains_as_a_process() -> None:
    done = run("explain", "xid", "79")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Xid 79  ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS\nFATAL")
    for word in ("meaning", "fallen off the bus", "drain now", "RESTART_BM", "docs.nvidia.com"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("xid", "63"), ("INFO", "IGNORE", "gpud: fatal", "azure_nhc: drains")),
        (("xid", "94"), ("WARN", "when it comes 3 in 24 h")),
        (("xid", "168"), ("DEGRADED", "less GPU memory")),
        (("xid", "145"), ("UNKNOWN", "sub-code table", "explain nvlink5 145")),
        (("xid", "154"), ("target number", "0x0 recovered")),
        (("xid", "pmu_halt_error"), ("Xid 62",)),
        (("xid", "99999"), ("UNKNOWN", "not in the catalog", "do not drain")),
        (("sxid", "20034"), ("FATAL", "LTSSM Fault Up", "Fatal, Non-fatal")),
        (("sxid", "12345"), ("UNKNOWN", "not in the catalog")),
        (("dcgm", "46"), ("DEGRADED", "DCGM_FR_PCIE_WIDTH", "CONFIG", "narrower")),
        (("dcgm", "DCGM_FR_FALLEN_OFF_BUS"), ("FATAL", "DCGM error 120")),
        (("nvlink5", "145", "RLW_REMAP", "0x40"), ("FATAL", "RESET_GPU", "0x00000040")),
        (("nvlink5", "145", "rlw_remap", "40"), ("FATAL", "RESET_GPU")),
        (("nvlink5", "149", "NETIR_LINK_EVT", "0x0", "0x021425c6"), ("INVESTIGATE_PEER_DEVICE",)),
        (("nvlink5", "149", "NETIR_LINK_EVT", "0x99"), ("no row for this error status",)),
        (("kernel", "init_failed"), ("FATAL", "RmInitAdapter")),
        (("XID", "79"), ("Xid 79",)),
    ],
)
def test_explains(
    arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    said = page(capsys, "explain", *arguments)
    for word in words:
        assert word in said
    assert max(len(line) for line in said.splitlines()) <= 110


def test_several_rows_are_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    lines = page(capsys, "explain", "nvlink5", "149", "NETIR_LINK_EVT").splitlines()
    assert len(lines) == sum(row["unit"].startswith("NETIR_LINK_EVT/") for row in table("nvlink5.tsv"))
    assert "sub-code 0x01: RESET_GPU, REPORT_ISSUE (if seen >1 per day)" in lines[1]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(page(capsys, "explain", "xid", "63", "--json"))
    assert (found["code"], found["severity"], found["bucket"]) == (63, "info", "IGNORE")
    assert found["disagreements"]["azure_nhc"] == "drains"
    rows = json.loads(page(capsys, "explain", "nvlink5", "144", "--json"))
    assert [row["details"]["error status"] for row in rows[:2]] == ["0x00000001", "0x00000002"]
    fatal = json.loads(page(capsys, "list", "sxid", "--severity", "fatal", "--json"))
    assert {fault["severity"] for fault in fatal} == {"fatal"}


@pytest.mark.parametrize("kind", ["xid", "sxid", "nvlink5", "dcgm", "kernel"])
def test_list(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(page(capsys, "list", kind).splitlines()) == len(list(every(kind)))
    fatal = page(capsys, "list", kind, "--severity", "fatal").splitlines()
    assert fatal
    assert all(" fatal " in line for line in fatal)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("explain",),
        ("explain", "xid"),
        ("explain", "xid", "seventy-nine"),
        ("explain", "xid", "-1"),
        ("explain", "xid", "9" * 5000),
        ("explain", "xid", "79", "80"),
        ("explain", "bug", "79"),
        ("explain", "kernel", "nothing"),
        ("explain", "nvlink5", "79"),
        ("explain", "nvlink5", "145", "NO_SUCH_UNIT"),
        ("explain", "nvlink5", "145", "RLW_REMAP", "0xfffffffff"),
        ("explain", "nvlink5", "145", "RLW_REMAP", "0x40", "zz"),
        ("explain", "nvlink5", "145", "a", "1", "2", "3"),
        ("list",),
        ("list", "xid", "--severity", "bad"),
        ("frobnicate",),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert "error:" in said.err


def test_reader_that_has_enough() -> None:
    words = f"{sys.executable} -m validation.faults list sxid | head -n 1"
    done = subprocess.run(["sh", "-c", words], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
