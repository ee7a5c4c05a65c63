"""The catalog against the public tables it was made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.validation.faults.tables import FIXTURES, table
from validation import faults
from validation.faults import Severity, catalog
from validation.faults.page import text

XIDS = table("xid.tsv")
SXIDS = table("sxid.tsv")
NVLINK5 = table("nvlink5.tsv")
DCGM = table("dcgm_errors.tsv")

# Where the catalog departs from the severity that was recommended when the tables were made, and why.
DEPARTS = {168: "degraded: the GPU works for good, with less memory than nominal"}
# Errors of the diagnostic that say: it works, and gives less than it should.
GIVES_LESS = {
    "DCGM_FR_CLOCKS_EVENT_THERMAL",
    "DCGM_FR_CLOCKS_EVENT_POWER",
    "DCGM_FR_CLOCKS_EVENT_VIOLATION",
    "DCGM_FR_LOW_BANDWIDTH",
    "DCGM_FR_HIGH_LATENCY",
    "DCGM_FR_PCIE_GENERATION",
    "DCGM_FR_PCIE_WIDTH",
    "DCGM_FR_STRESS_LEVEL",
    "DCGM_FR_MEMORY_BANDWIDTH",
    "DCGM_FR_TARGET_POWER",
    "DCGM_FR_GFLOPS_THRESHOLD_VIOLATION",
}


def test_tables_are_whole() -> None:
    assert [len(rows) for rows in (XIDS, SXIDS, NVLINK5, DCGM)] == [176, 260, 94, 133]
    for name in ("xid.tsv", "sxid.tsv", "nvlink5.tsv", "dcgm_errors.tsv"):
        assert (FIXTURES / name).read_text().startswith("# ")


def test_one_entry_a_line() -> None:
    lines = [line.rstrip(",") for line in Path(catalog.FILE).read_text().splitlines()]
    entries = [json.loads(line) for line in lines if line.startswith('{"')]
    assert len(entries) == sum(len(catalog.data()[kind]) for kind in catalog.KINDS)


@pytest.mark.parametrize(("kind", "rows"), [("xid", XIDS), ("sxid", SXIDS)])
def test_same_codes(kind: str, rows: list[dict[str, str]]) -> None:
    assert [fault.code for fault in faults.every(kind)] == [int(row["code"]) for row in rows]


@pytest.mark.parametrize("row", XIDS, ids=lambda row: row["code"])
def test_xid(row: dict[str, str]) -> None:
    code = int(row["code"])
    fault = faults.xid(code)
    assert {fault.name, *fault.aka} >= set(row["catalog_mnemonic"].split(" / "))
    driver = row["driver_580_name"].split(" (")[0]
    if "not in the open" not in driver:
        assert driver in (fault.name, *fault.aka)
    assert fault.bucket == row["nvidia_immediate"].replace("not in catalog", "")
    assert fault.investigate == row["nvidia_investigatory"]
    if row["severity_recommended"] == "decode":
        assert fault.decided_by == ("target" if code == 154 else "nvlink5")
        assert fault.severity is Severity.UNKNOWN
    elif code in DEPARTS:
        assert fault.severity.value in DEPARTS[code]
    else:
        assert (fault.severity.value, fault.decided_by) == (row["severity_recommended"], "code")


# How the table's column begins -> who it is in the catalog.
WHO = {
    "Modal": "modal",
    "gpud": "gpud",
    "Azure NHC": "azure_nhc",
    "k8s-device-plugin": "k8s_device_plugin",
    "DCGM health": "dcgm_health",
    "awslabs": "awsome_distributed_ai",
    "driver source": "driver",
    "NVSentinel": "nvsentinel",
}


@pytest.mark.parametrize(
    "row", [row for row in XIDS + SXIDS if row["disagreements"]], ids=lambda row: row["code"]
)
def test_disagreements(row: dict[str, str]) -> None:
    fault = faults.xid(int(row["code"])) if "catalog_mnemonic" in row else faults.sxid(int(row["code"]))
    parts = row["disagreements"].split(" ; ")
    expected = {who for part in parts for start, who in WHO.items() if part.startswith(start)}
    assert len(expected) == len(parts)
    assert {who for who, _ in fault.disagreements} == expected
    said = dict(fault.disagreements)
    if "modal" in said:
        assert said["modal"] == ("critical" if row["modal_critical"] == "yes" else "not critical")
    if "gpud" in said:
        event = row.get("gpud_event_and_actions", "").partition(":")[0] or row["gpud_event"]
        assert said["gpud"].partition(":")[0] == event.lower()


def test_disagreements_only_where_the_table_has_some() -> None:
    named = {int(row["code"]) for row in XIDS if row["disagreements"]}
    assert {fault.code for fault in faults.every("xid") if fault.disagreements} == named


@pytest.mark.parametrize("row", SXIDS, ids=lambda row: row["code"])
def test_sxid(row: dict[str, str]) -> None:
    fault = faults.sxid(int(row["code"]))
    assert fault.name == row["driver_name"]
    details = dict(fault.details)
    assert details.get("NVSwitch chips", "").replace(" ", "") == row["chips"]
    word = row["driver_severity_word"].replace("text-without-severity", "")
    assert details.get("the driver prints", "") == word
    recommended = row["severity_recommended"]
    if row["code"] == "22013":
        assert fault.severity is Severity.INFO  # printed for each link at boot (NVIDIA/nvtrust issue 124)
    elif recommended in ("fatal", "warn"):
        assert fault.severity.value == recommended
    elif recommended == "from-line":
        assert (fault.severity, fault.decided_by) == (Severity.UNKNOWN, "line")
    else:
        assert recommended == "by-code"
        assert fault.severity is not Severity.UNKNOWN
    # Always fatal by the Fabric Manager guide: the word in the line does not make less of it.
    always = row["gpud_always_fatal"] == "true"
    assert (faults.sxid_severity(fault, "Non-fatal") is Severity.FATAL) == always
    assert faults.sxid_severity(fault, "Fatal") is Severity.FATAL
    assert faults.sxid_severity(fault, None) is fault.severity


def test_nvlink5() -> None:
    keys = ("xid", "unit", "errorstatus", "severity", "resolution", "investigatory", "hw_sw")
    rows = [tuple(row[key] for key in keys) for row in NVLINK5]
    ours = []
    for fault in faults.every("nvlink5"):
        detail = dict(fault.details)
        said = detail["severity in NVIDIA's table"]
        what = (said, fault.bucket, fault.investigate, detail["hardware or software"])
        ours.append((str(fault.code), fault.name, detail["error status"], *what))
        assert fault.severity is (Severity.WARN if said.startswith("Non") else Severity.FATAL)
    assert ours == rows


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_nvlink5_every_row_is_found_by_its_registers(layout: str) -> None:
    """Bits that the sheet leaves open are set at random places; the unit's name is left out."""
    for row in NVLINK5:
        pattern = row[f"pattern_{layout}"]
        assert len(pattern) == 32
        for open_bits in ("0", "1"):
            intrinfo = int(pattern.replace("-", open_bits), 2)
            status = int(row["errorstatus"], 16)
            decoded = faults.decode(int(row["xid"]), row["unit"].split("/")[-1], intrinfo, status)
            assert decoded
            detail = dict(decoded.fault.details)
            assert (decoded.fault.name, decoded.fault.bucket) == (row["unit"], row["resolution"])
            assert detail["error status"] == row["errorstatus"]
            assert layout in decoded.layout


@pytest.mark.parametrize(
    ("code", "unit", "intrinfo", "status", "name", "bucket", "layout"),
    [
        # As leptonai/gpud decodes them in its own tests (pull requests 1160 and 1174).
        (149, "NETIR_LINK_EVT", 0x026001C6, 0, "NETIR_LINK_EVT/NETIR_LINK_DOWN", "IGNORE", "v1"),
        (149, "NETIR_LINK_EVT", 0x025001C6, 0, "NETIR_LINK_EVT/NETIR_LINK_DOWN", "RESET_GPU", "v1"),
        (149, "NETIR", 0x000FE406, 0, "NETIR/NETIR_INT", "RESET_GPU", "v1"),
        (145, "RLW_RXPIPE", 0x0409A0C2, 8, "RLW_RXPIPE", "IGNORE", "v1"),
        (144, "SAW_MVB", 0x00000001, 8, "SAW_MVB", "IGNORE", "v2"),
        (145, "RLW_REMAP", 0x82, 0x40, "RLW_REMAP", "RESET_GPU", "v1"),
        (145, "RLW_SRC_TRACK", 0x04084507, 4, "RLW_SRC_TRACK", "XID_154_EVAL", "v2"),
        # Two bits of the error status: the graver row.
        (144, "SAW_MVB", 0x00000001, 3, "SAW_MVB", "RESET_GPU", "v2"),
        # A unit that the sheet does not name, found by the registers; and the other way round.
        (150, "MSE Degraded", 0, 0, "MSE_WATCHDOG", "RESET_GPU", "v1/v2"),
        (145, "RLW_REMAP", 0x3FF, 0x40, "RLW_REMAP", "RESET_GPU", ""),
        (145, "RLW_REMAP", None, 0x40, "RLW_REMAP", "RESET_GPU", ""),
    ],
)
def test_nvlink5_decode(
    code: int, unit: str, intrinfo: int | None, status: int, name: str, bucket: str, layout: str
) -> None:
    decoded = faults.decode(code, unit, intrinfo, status)
    assert decoded
    assert (decoded.fault.name, decoded.fault.bucket, decoded.layout) == (name, bucket, layout)


def test_nvlink5_without_a_row() -> None:
    assert faults.decode(149, "NETIR_MFDE_EVENT", 0, 99) is None
    assert faults.decode(79, "RLW_REMAP", 0, 1) is None


@pytest.mark.parametrize("row", DCGM, ids=lambda row: row["name"])
def test_dcgm(row: dict[str, str]) -> None:
    fault = faults.dcgm_error(int(row["error_id"]))
    assert (fault.name, fault.bucket) == (row["name"], row["severity_name"])
    assert dict(fault.details)["category"] == row["category_name"]
    assert faults.dcgm_error(row["name"]) == fault
    by_bucket = {
        "ISOLATE": "fatal",
        "RESET": "fatal",
        "TRIAGE": "fatal",
        "MONITOR": "warn",
        "CONFIG": "warn",
    }
    if row["name"] in GIVES_LESS:
        assert fault.severity is Severity.DEGRADED
    elif row["name"] == "DCGM_FR_OK":
        assert fault.severity is Severity.INFO
    else:
        assert fault.severity.value == by_bucket.get(row["severity_name"], "unknown")


def test_recovery_actions() -> None:
    """As DCGM's health watch takes gpu_recovery_action since 4.5: DRAIN_P2P warns, the others fail."""
    said = {target: faults.xid154(target)[0].value for target in range(6)}
    assert said == {0: "info", 1: "fatal", 2: "fatal", 3: "warn", 4: "fatal", 5: "unknown"}


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_every_entry_says_what_to_do(kind: str) -> None:
    for fault in faults.every(kind):
        assert fault.kind == kind
        assert fault.name and fault.meaning and fault.action and fault.sources
        assert fault.threshold is None or fault.threshold[0] > 1 < fault.threshold[1] + 1
        assert not (fault.repeat and fault.severity is Severity.FATAL)
        assert text(fault).isprintable() or "\n" in text(fault)
        for who, _ in fault.disagreements:
            assert who in catalog.data()["sources"]


@pytest.mark.parametrize("code", [0, 177, 999, 99999, 10**9])
def test_unknown_codes(code: int) -> None:
    for fault in (faults.xid(code), faults.sxid(code), faults.dcgm_error(code or 10**6)):
        assert (fault.severity, fault.name, fault.bucket, fault.sources) == (Severity.UNKNOWN, "", "", ())
        assert "do not drain" in fault.action


def test_order_of_severities() -> None:
    assert faults.graver(Severity.INFO, Severity.UNKNOWN) is Severity.UNKNOWN
    assert faults.graver(Severity.WARN, Severity.UNKNOWN) is Severity.WARN
    assert faults.graver(Severity.FATAL, Severity.DEGRADED, Severity.WARN) is Severity.FATAL
