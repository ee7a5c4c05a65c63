"""The simulated dcgmi against DCGM's public schema, sources and real output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.gpu_sim.guest import dcgmi_health, dcgmi_json

DATA = Path(__file__).parent / "data"
SCHEMA = json.loads((DATA / "dcgm_diag_4.schema.json").read_text())
#: Per level in 4.4 (nvvs/src/NvidiaValidationSuite.cpp).
LEVELS = {
    1: {"software"},
    2: {"software", "memory", "pcie"},
    3: {"software", "memory", "pcie", "diagnostic", "nvbandwidth", "memory_bandwidth"}
    | {"targeted_stress", "targeted_power"},
}
LEVELS[4] = LEVELS[3] | {"memtest", "pulse_test"}


def diag(machine: Any, level: int | str = 1, *more: str) -> tuple[int, Any]:
    done = machine.run("dcgmi", "diag", "-r", str(level), "-j", *more)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def results(document: Any) -> dict[tuple[str, Any], str]:
    """Status by test and GPU, of either version."""
    top = document.get("DCGM Diagnostic") or document["DCGM GPU Diagnostic"]
    return {
        (test["name"], result.get("entity_id", result.get("gpu_id"))): result["status"]
        for category in top["test_categories"]
        for test in category["tests"]
        for result in test.get("results", ())
    }


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_a_healthy_machine_passes_every_test_of_the_level(gpu_machine: Any, level: int) -> None:
    code, document = diag(gpu_machine(gpus=8), level)
    jsonschema.validate(document, SCHEMA)
    assert code == 0
    assert results(document) == {(test, gpu): "Pass" for test in LEVELS[level] for gpu in range(8)}
    assert document["metadata"] == {"Driver Version Detected": "580.95.05", "version": "4.4.1"}
    assert [entity["device_id"] for entity in document["entity_groups"][0]["entities"]] == ["2330"] * 8


def test_json_is_laid_out_as_in_a_real_document() -> None:
    text = (DATA / "dcgm_4.2.3_gb10_r1.json").read_text()
    assert dcgmi_json.styled(json.loads(text)) == text


def test_persistence_mode_off_is_reported_as_on_a_real_machine(gpu_machine: Any) -> None:
    real = json.loads((DATA / "dcgm_4.2.3_gb10_r1.json").read_text())
    code, document = diag(gpu_machine({"kind": "persistence_off"}, dcgm="4.2.3"))

    def software(found: Any) -> Any:
        return found["DCGM Diagnostic"]["test_categories"][0]["tests"][0]

    assert code == 226
    assert software(document)["results"] == software(real)["results"]
    assert software(document)["test_summary"]["status"] == software(real)["test_summary"]["status"]


@pytest.mark.parametrize("dcgm", ["4.4.1", "4.6.0"])
def test_a_failure(gpu_machine: Any, dcgm: str) -> None:
    code, document = diag(gpu_machine({"kind": "diag_fails", "gpu": 3}, gpus=4, dcgm=dcgm), 2)
    jsonschema.validate(document, SCHEMA)
    failed = {key for key, status in results(document).items() if status != "Pass"}
    assert failed == {("memory", 3)}
    assert code == 205  # DCGM_FR_FAULTY_MEMORY is of severity ISOLATE
    (memory,) = [
        test
        for category in document["DCGM Diagnostic"]["test_categories"]
        for test in category["tests"]
        if test["name"] == "memory"
    ]
    assert memory["results"][3]["warnings"] == [
        {
            "error_category": 10,
            "error_id": 52,
            "error_severity": 2,
            "warning": "Found 1 faulty memory elements on GPU 3 Run a field diagnostic on the GPU.",
        }
    ]
    assert memory["test_summary"]["status"] == "Fail"
    # Since 4.6 the summary repeats the errors of all entities (dcgmi/Diag.cpp, HelperJsonAddTestSummary).
    assert ("warnings" in memory["test_summary"]) == (dcgm == "4.6.0")


@pytest.mark.parametrize(
    ("dcgm", "fault", "code"),
    [
        # An error beside a Pass: 4.x ends with an error (NVIDIA/DCGM issue 284), 3.x looks at Fail only.
        ("4.4.1", {"kind": "diag_passes_with_error", "error_id": 56}, 226),
        ("4.4.1", {"kind": "diag_passes_with_error", "error_id": 52}, 205),
        ("3.3.9", {"kind": "diag_passes_with_error", "error_id": 56}, 0),
        ("3.3.9", {"kind": "diag_fails", "error_id": 56}, 226),
        ("3.3.9", {"kind": "diag_fails", "error_id": 52}, 205),
        ("4.4.1", {"kind": "diag_skipped"}, 0),
        ("3.3.9", {"kind": "diag_skipped"}, 0),
    ],
)
def test_exit_codes(gpu_machine: Any, dcgm: str, fault: dict[str, Any], code: int) -> None:
    found, document = diag(gpu_machine(fault, dcgm=dcgm), 2)
    assert found == code
    wanted = {"diag_fails": "Fail", "diag_skipped": "Skip", "diag_passes_with_error": "Pass"}[fault["kind"]]
    memory = {status for (test, _), status in results(document).items() if "memory" in test.lower()}
    assert memory == {wanted}


def test_what_did_not_run_is_not_in_the_document(gpu_machine: Any) -> None:
    fault = {"kind": "diag_not_run", "tests": ["memory"], "gpu": [1]}
    code, document = diag(gpu_machine(fault, gpus=3), 2)
    assert code == 0
    assert set(results(document)) == {
        (test, gpu) for test in LEVELS[2] for gpu in range(3) if (test, gpu) != ("memory", 1)
    }


@pytest.mark.parametrize(("dcgm", "top"), [("4.4.1", "DCGM Diagnostic"), ("3.3.9", "DCGM GPU Diagnostic")])
def test_another_diagnostic_is_running(gpu_machine: Any, dcgm: str, top: str) -> None:
    code, document = diag(gpu_machine({"kind": "diag_busy"}, dcgm=dcgm), 2)
    assert code == 217  # -39 in eight bits
    assert document[top]["version"] == dcgm
    assert "(-39)" in document[top]["runtime_error"]
    assert "A diag instance is already running" in document[top]["runtime_error"]


def test_version_3(gpu_machine: Any) -> None:
    fault = {"kind": "pcie_link", "gpu": 1, "width": 8}
    code, document = diag(gpu_machine(fault, gpus=2, dcgm="3.3.9", driver="535.183.01"), 2)
    assert code == 226
    assert document["GPU Device IDs"] == ["2330", "2330"]
    categories = {
        category["category"]: {test["name"]: test["results"] for test in category["tests"]}
        for category in document["DCGM GPU Diagnostic"]["test_categories"]
    }
    assert list(categories) == ["Deployment", "Integration", "Hardware"]
    assert len(categories["Deployment"]) == 10
    assert categories["Hardware"]["GPU Memory"][0]["gpu_id"] == "0"  # a text here ...
    good, bad = categories["Integration"]["PCIe"]
    # NVIDIA/DCGM issue 215 shows this string of a real 3.x.
    assert good["info"].startswith(
        "GPU 0 GPU to Host bandwidth:\t\t28.27 GB/s, GPU 0 Host to GPU bandwidth:\t\t"
    )
    assert (bad["status"], bad["warnings"][0]["error_id"]) == ("Fail", 46)
    code, document = diag(gpu_machine({"kind": "persistence_off", "gpu": 1}, gpus=2, dcgm="3.3.9"))
    (entry,) = [
        test["results"][0]
        for test in document["DCGM GPU Diagnostic"]["test_categories"][0]["tests"]
        if test["name"] == "Persistence Mode"
    ]
    assert entry["gpu_id"] == 1  # ... and a number there
    assert entry["warnings"][0]["warnings"].startswith("Persistence mode for GPU 1 is disabled.")


def test_figures_are_in_the_words_of_dcgm(gpu_machine: Any) -> None:
    _, document = diag(gpu_machine(gpus=8, figures={"stress": 123}, info_limit=16), 3)
    infos = {
        (test["name"], result["entity_id"]): result.get("info")
        for category in document["DCGM Diagnostic"]["test_categories"]
        for test in category["tests"]
        for result in test["results"]
    }
    assert infos["targeted_stress", 7] == ["GPU 7 relative stress level\t123"]
    assert infos["pcie", 0][0] == "GPU to Host bandwidth:\t\t28.27 GB/s"
    # A public session of 3.x: "GPU 0 max power: 251.0 W average power usage: 247.8 W".
    assert infos["targeted_power", 2] == ["GPU 2 max power: 698.2 W average power usage: 681.5 W"]
    # Of 16 infos a test in 4.0 to 4.2, six each, those of the third GPU are cut (NVIDIA/DCGM issue 215).
    assert [len(infos["pcie", gpu] or ()) for gpu in range(8)] == [6, 6, 4, 0, 0, 0, 0, 0]


def test_iterations(gpu_machine: Any) -> None:
    code, document = diag(gpu_machine(), 1, "--iterations", "2")
    assert (code, document["Overall Result"], len(document["iterations"])) == (0, "Pass", 2)
    code, document = diag(gpu_machine({"kind": "persistence_off"}), 1, "--iterations", "2")
    assert (code, document["Overall Result"], len(document["iterations"])) == (226, "Fail", 1)


def test_mig(gpu_machine: Any) -> None:
    # NVIDIA/DCGM issue 94.
    machine = gpu_machine({"kind": "mig", "gpu": "all"}, gpus=2, dcgm="3.3.9")
    done = machine.run("dcgmi", "diag", "-g", "0", "-r", "3")
    said = (
        "MIG configuration is incompatible with the diagnostic because it prevents access to the entire GPU."
    )
    assert done.stdout == f"GPU 0's {said}\nGPU 1's {said}\n"
    assert done.returncode != 0


def test_without_a_host_engine(gpu_machine: Any) -> None:
    machine = gpu_machine({"kind": "no_host_engine"})
    for arguments in (["discovery", "-l"], ["health", "-c", "-j"], ["health", "-s", "a"]):
        done = machine.run("dcgmi", *arguments)
        assert done.returncode == 235
        assert done.stdout == (
            "Error: unable to establish a connection to the specified host: localhost\n"
            "Error: Unable to connect to host engine. Host engine connection invalid/disconnected.\n"
        )
    assert diag(machine)[0] == 0  # an embedded one is started, and nothing is said of it
    done = machine.run("dcgmi", "diag", "-r", "1", "-j", "--host", "10.0.0.1")
    assert (done.returncode, done.stdout.splitlines()[0][-8:]) == (235, "10.0.0.1")


def test_without_a_driver_no_embedded_engine(gpu_machine: Any) -> None:
    machine = gpu_machine({"kind": "no_host_engine"}, {"kind": "driver_not_loaded"})
    done = machine.run("dcgmi", "diag", "-r", "1", "-j")
    assert done.stdout.startswith(
        "Error: Unable to start an embedded host engine. NVML doesn't exist on this system"
    )
    assert done.returncode == 200


def test_dcgmi_is_not_installed(gpu_machine: Any) -> None:
    assert not (gpu_machine({"kind": "missing", "program": "dcgmi"}).root / "usr/bin/dcgmi").exists()


def test_health_must_be_watched_first(gpu_machine: Any) -> None:
    machine = gpu_machine()
    done = machine.run("dcgmi", "health", "-c", "-j")
    assert (done.returncode, done.stdout) == (
        253,
        "Error: Health watches not enabled. Please enable watches. \n",
    )
    done = machine.run("dcgmi", "health", "-s", "a")
    assert (done.returncode, done.stdout) == (0, "Health monitor systems set successfully.\n")
    done = machine.run("dcgmi", "health", "-cj")
    assert json.loads(done.stdout)["body"] == {"Overall Health": {"value": "Healthy"}}


def test_the_worst_xids_are_named_internal_error(gpu_machine: Any) -> None:
    machine = gpu_machine({"kind": "health", "gpu": 3, "xid": 79}, gpus=8, health_watches=True)
    done = machine.run("dcgmi", "health", "-c", "-j")
    assert done.returncode == 0  # also for a Failure
    document = json.loads(done.stdout)
    assert document["header"] == ["Health Monitor Report"]
    assert document["body"]["Overall Health"] == {"value": "Failure"}
    assert set(document["body"]["GPU"]["children"]) == {"3"}
    gpu = document["body"]["GPU"]["children"]["3"]
    (system,) = gpu["children"]["Errors"]["children"].items()
    assert (system[0], system[1]["value"], gpu["value"]) == ("Internal error", "Failure", "Failure")
    assert max(map(len, system[1]["overflow"])) <= 55
    text = " ".join(system[1]["overflow"])
    assert text.startswith("GPU 3 has fallen off the bus Please re-seat the GPU")
    assert "(triggered by XID 79: GPU %d has fallen off the bus" in text


def test_a_long_message_is_broken_between_words() -> None:
    text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    found = dcgmi_health.pieces(text)
    assert " ".join(found) == text
    assert all(len(piece) <= 55 for piece in found) and len(found) == 2
    # Health.cpp goes on two characters after the last of a line: when the line ends just before a comma,
    # the comma is lost.
    line = "word five more words here for a line of text that is a"
    assert len(line) == 54 and dcgmi_health.pieces(f"x{line}, and more")[1:] == ["and more"]
    assert dcgmi_health.pieces(f"{line}, and more") == [f"{line},", "and more"]


def test_dmon(gpu_machine: Any) -> None:
    # A public capture of DCGM 3.3.9: the first sample after the host engine's start is empty.
    done = gpu_machine(gpus=2).run("dcgmi", "dmon", "-e", "1001,1002,1005", "-c", "2", "-d", "100")
    real = (
        "#Entity   GRACT        SMACT        DRAMA        ",
        "ID                                               ",
        "GPU 0     N/A          N/A          N/A          ",
        "GPU 0     0.000        0.000        0.000        ",
    )
    assert tuple(line for line in done.stdout.splitlines() if not line.startswith("GPU 1")) == real
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 6)


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        # NVIDIA/DCGM issues 50 and 62.
        (-33, "This request is serviced by a module of DCGM that is not currently loaded", 223),
        (-37, "The third-party Profiling module returned an unrecoverable error", 219),
    ],
)
def test_dmon_cannot_watch(gpu_machine: Any, status: int, text: str, code: int) -> None:
    machine = gpu_machine({"kind": "profiling", "status": status})
    done = machine.run("dcgmi", "dmon", "-e", "1001", "-c", "1")
    assert (done.returncode, done.stdout) == (code, "#Entity   GRACT        \nID                     \n")
    assert done.stderr == f"Error setting watches. Result: {status}: {text}\n\n"


def test_discovery_and_version(gpu_machine: Any) -> None:
    machine = gpu_machine(gpus=8)
    lines = machine.run("dcgmi", "discovery", "-l").stdout.splitlines()
    assert lines[0] == "8 GPUs found."
    assert "| 7      | Name: NVIDIA H100 80GB HBM3                                          |" in lines
    assert "4 NvSwitches found." in lines
    assert machine.run("dcgmi", "--version").stdout == "\ndcgmi  version: 4.4.1\n\n"
    assert machine.run("dcgmi", "nonsense").returncode == 255
    done = machine.run("dcgmi", "diag", "--nonsense")
    assert done.returncode == 254
    assert done.stderr.endswith("An error occurred trying to parse the command line.\n")


def test_the_table_of_3_and_4(gpu_machine: Any, tmp_path: Path) -> None:
    four = gpu_machine(gpus=2, root=tmp_path / "4").run("dcgmi", "diag", "-r", "2").stdout.splitlines()
    three = gpu_machine(gpus=2, dcgm="3.3.9", root=tmp_path / "3").run("dcgmi", "diag", "-r", "2")
    assert four[0] == three.stdout.splitlines()[0] == "Successfully ran diagnostic for group."
    assert "| memory                    | Pass                                           |" in four
    assert "|                           | GPU1: Pass                                     |" in four
    assert "| GPU Memory                | Pass - All                                     |" in three.stdout
    assert {len(line) for line in four[1:]} == {78}
