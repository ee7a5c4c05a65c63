"""The simulated nvidia-smi against what real ones have printed."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"
REAL = [
    line.split(", ")
    for line in (DATA / "h200_580.173.02.csv").read_text().splitlines()
    if not line.startswith("#")
]
H200 = {"gpus": 1, "model": "h200-sxm", "driver": "580.173.02"}
#: What tells one GPU from another; power.draw.instant is the only reading of it that is not simulated.
OWN = {"timestamp", "serial", "uuid", "pci.bus_id", "pci.bus", "power.draw.instant", "platform.module_id"}


def names(header: list[str]) -> list[str]:
    return [cell.split(" [")[0] for cell in header]


def query(machine: Any, fields: str, *more: str, form: str = "csv") -> Any:
    return machine.run("nvidia-smi", f"--query-gpu={fields}", f"--format={form}", *more)


def rows(machine: Any, fields: str, *more: str) -> list[list[str]]:
    done = query(machine, fields, *more, form="csv,noheader")
    return [line.split(", ") for line in done.stdout.splitlines()]


def test_every_field_of_a_healthy_h200_is_as_on_a_real_one(gpu_machine: Any) -> None:
    machine = gpu_machine(**H200)
    done = query(machine, ",".join(names(REAL[0])))
    assert (done.returncode, done.stderr) == (0, "")
    header, row = (line.split(", ") for line in done.stdout.splitlines())
    assert header == REAL[0]
    known = dict(zip(names(header), row, strict=True))
    real = dict(zip(names(header), REAL[1], strict=True))
    assert {name: known[name] for name in known if name not in OWN} == {
        name: real[name] for name in real if name not in OWN
    }
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}", known["timestamp"])
    assert re.fullmatch(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0", known["pci.bus_id"])
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", known["uuid"])


def test_the_table_is_that_of_the_real_one(gpu_machine: Any) -> None:
    done = gpu_machine(**H200).run("nvidia-smi")
    date, table = done.stdout.split("\n", 1)
    real = (DATA / "h200_580.173.02.table.txt").read_text().split("\n", 1)[1]
    assert table.replace("00000000:43:00.0", "00000000:83:00.0") == real
    assert len(date) == 31 and time.strptime(date.strip(), "%a %b %d %H:%M:%S %Y")


def test_the_help_offers_exactly_the_fields_of_the_real_one(gpu_machine: Any) -> None:
    done = gpu_machine(**H200).run("nvidia-smi", "--help-query-gpu")
    assert done.stdout.startswith(
        'List of valid properties to query for the switch "--query-gpu":\n\n"timestamp"\n'
    )
    offered = re.findall(r'^"([A-Za-z0-9_.]+)"(?: or "[A-Za-z0-9_.]+")?$', done.stdout, re.MULTILINE)
    assert offered == names(REAL[0])
    # Quoted words at the start of a line that are no fields: the real help has them too.
    assert re.search(r'^"0: Default" means', done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("driver", "known", "unknown"),
    [
        (
            "580.95.05",
            ["gpu_recovery_action", "clocks_throttle_reasons.active"],
            ["reset_status.reset_required"],
        ),
        (
            "535.183.01",
            ["reset_status.reset_required", "clocks_event_reasons.active", "temperature.gpu.tlimit"],
            ["gpu_recovery_action", "remapped_rows.pending", "fabric.cliqueId", "platform.module_id"],
        ),
        (
            "525.147.05",
            ["clocks_throttle_reasons.active", "fabric.state"],
            ["clocks_event_reasons.active", "temperature.gpu.tlimit"],
        ),
    ],
)
def test_a_driver_knows_the_fields_of_its_time(
    gpu_machine: Any, driver: str, known: list[str], unknown: list[str]
) -> None:
    machine = gpu_machine(driver=driver)
    for field in known:
        assert query(machine, f"index,{field}").returncode == 0
    for field in unknown:
        done = query(machine, f"index,{field},name")
        # One unknown field and there is no answer at all (Azure/azurehpc-health-checks PR 28).
        assert (done.returncode, done.stdout) == (2, f'Field "{field}" is not a valid field to query.\n\n')


def test_a_second_name_is_asked_and_the_first_is_answered(gpu_machine: Any) -> None:
    # A public session asks for gpu_name,gpu_bus_id,vbios_version and gets "name, pci.bus_id, vbios_version".
    done = query(gpu_machine(**H200), "gpu_name,gpu_bus_id,vbios_version")
    assert done.stdout.splitlines()[0] == "name, pci.bus_id, vbios_version"


def test_nounits_takes_the_units_from_the_values_only(gpu_machine: Any) -> None:
    done = query(gpu_machine(**H200), "memory.total,utilization.gpu,temperature.gpu", form="csv,nounits")
    assert done.stdout == "memory.total [MiB], utilization.gpu [%], temperature.gpu\n143771, 0, 37\n"


def test_one_gpu_of_many_by_index_bus_and_uuid(gpu_machine: Any) -> None:
    machine = gpu_machine(gpus=8)
    everything = rows(machine, "index,pci.bus_id,uuid")
    assert [row[0] for row in everything] == list("01234567")
    for name in everything[5]:
        assert rows(machine, "index,pci.bus_id,uuid", "-i", name) == [everything[5]]
    done = query(machine, "index", "-i", "8")
    assert (done.returncode, done.stdout) == (6, "No devices were found\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        # Public sessions: "-format=csv" and "-lms100" are refused in these words.
        (
            ["-format=csv"],
            "ERROR: Option -format=csv is not recognized. Please run 'nvidia-smi -h' for help.\n\n",
        ),
        (["-lms100"], "ERROR: Option -lms100 is not recognized. Please run 'nvidia-smi -h' for help.\n\n"),
        (["--query-gpu=name"], "\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n\n"),
    ],
)
def test_a_wrong_command_line(gpu_machine: Any, arguments: list[str], text: str) -> None:
    done = gpu_machine().run("nvidia-smi", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, text, "")


@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [
        (
            {"kind": "driver_not_loaded"},
            9,
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
            "Make sure that the latest NVIDIA driver is installed and running.\n\n",
        ),
        ({"kind": "driver_not_loaded", "says": "nvml"}, 9, "Failed to initialize NVML: Driver Not Loaded\n"),
        (
            {"kind": "version_mismatch"},
            18,
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n",
        ),
        ({"kind": "no_devices"}, 6, "No devices were found\n"),
        ({"kind": "count_short", "by": 2}, 6, "No devices were found\n"),
        ({"kind": "nvml_fails", "code": 999}, 255, "Failed to initialize NVML: Unknown Error\n"),
        ({"kind": "nvml_fails", "code": 4}, 4, "Failed to initialize NVML: Insufficient Permissions\n"),
        (
            {"kind": "nvml_fails", "code": 17},
            17,
            "Failed to initialize NVML: GPU access blocked by the operating system\n",
        ),
        (
            {"kind": "missing", "program": "libnvidia-ml"},
            12,
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. "
            "Please make sure that the NVIDIA Display Driver is properly installed and present "
            "in your system.\n"
            "Please also try adding directory that contains libnvidia-ml.so to your system PATH.\n",
        ),
    ],
)
def test_failures_of_the_driver(gpu_machine: Any, fault: dict[str, Any], code: int, text: str) -> None:
    machine = gpu_machine(fault, gpus=2)
    for arguments in ([], ["-L"], ["--query-gpu=name", "--format=csv"]):
        done = machine.run("nvidia-smi", *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (code, text, "")


LOST = "Unable to determine the device handle for GPU"


@pytest.mark.parametrize(
    ("driver", "says", "text", "code"),
    [
        # The three spellings and three endings of public logs, with nvidia-smi's codes for them.
        ("515.105.01", "unknown", f"{LOST} 0000:4B:00.0: Unknown Error", 255),
        ("535.183.01", "unknown", f"{LOST}0000:4B:00.0: Unknown Error", 255),
        ("580.95.05", "unknown", f"{LOST}1: 0000:4B:00.0: Unknown Error", 255),
        (
            "535.183.01",
            "lost",
            f"{LOST}0000:4B:00.0: GPU is lost.  Reboot the system to recover this GPU",
            15,
        ),
        ("535.183.01", "reset", f"{LOST}0000:4B:00.0: The GPU requires reset", 16),
    ],
)
def test_a_lost_gpu(gpu_machine: Any, driver: str, says: str, text: str, code: int) -> None:
    machine = gpu_machine({"kind": "lost", "gpu": 1, "says": says}, gpus=3, driver=driver)
    done = query(machine, "index,count")
    assert (done.returncode, done.stdout) == (code, f"index, count\n0, 3\n{text}\n2, 3\n")
    table = machine.run("nvidia-smi")
    assert table.returncode == code and text in table.stdout.splitlines()


def test_the_other_ways_in_which_a_lost_gpu_shows(gpu_machine: Any, tmp_path: Path) -> None:
    lost = f"{LOST}1: 0000:4B:00.0: Unknown Error\n"

    def printed(name: str, **options: Any) -> tuple[int, str]:
        root = tmp_path / name
        machine = gpu_machine({"kind": "lost", "gpu": 1, **options}, gpus=2, root=root)
        done = query(machine, "index,temperature.gpu")
        return done.returncode, done.stdout

    header = "index, temperature.gpu\n0, 37\n"
    assert printed("only", rows="only") == (255, "0, 37\n" + lost)
    assert printed("unknown", rows="message_and_unknown") == (
        255,
        header + lost + "[Unknown Error], [Unknown Error]\n",
    )
    assert printed("fields", rows="fields", says="lost") == (0, header + "1, [GPU is lost]\n")
    assert printed("reset", rows="fields", says="reset") == (0, header + "1, [GPU requires reset]\n")
    # Gone from the bus as well: then nvidia-smi does not know that there ever was one.
    assert printed("gone", bus=False) == (0, header)


def test_no_gpu_answers(gpu_machine: Any) -> None:
    # A public log of a machine with one GPU: the message, then "No devices were found".
    done = gpu_machine({"kind": "lost", "gpu": 0}).run("nvidia-smi", "-L")
    assert done.stdout == f"{LOST}0: 0000:43:00.0: Unknown Error\nNo devices were found\n"
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("fault", "values"),
    [
        (
            {"kind": "row_remap", "pending": True},
            {"remapped_rows.pending": "Yes", "remapped_rows.failure": "No"},
        ),
        (
            {"kind": "row_remap", "failure": True},
            {"remapped_rows.failure": "Yes", "remapped_rows.pending": "No"},
        ),
        (
            {"kind": "ecc", "uncorrected": 3},
            {"ecc.errors.uncorrected.volatile.total": "3", "ecc.errors.uncorrected.aggregate.total": "3"},
        ),
        (
            {"kind": "ecc", "sram_threshold": True},
            {"ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "Yes"},
        ),
        (
            {"kind": "ecc", "mode": "Disabled"},
            {"ecc.mode.current": "Disabled", "ecc.errors.corrected.volatile.total": "[N/A]"},
        ),
        (
            {"kind": "throttle", "mask": ["hw_slowdown", "hw_thermal_slowdown"]},
            {
                "clocks_event_reasons.active": "0x0000000000000048",
                "clocks_event_reasons.hw_slowdown": "Active",
                "clocks_event_reasons.hw_power_brake_slowdown": "Not Active",
                "clocks_event_reasons.gpu_idle": "Not Active",
            },
        ),
        ({"kind": "throttle", "mask": 0x84}, {"clocks_event_reasons.active": "0x0000000000000084"}),
        # 87 C is what the real H200 says it may reach (37 C at T.Limit 50).
        ({"kind": "hot", "celsius": 95}, {"temperature.gpu": "95", "temperature.gpu.tlimit": "-8"}),
        (
            {"kind": "recovery_action", "action": "Drain and Reset"},
            {"gpu_recovery_action": "Drain and Reset"},
        ),
        (
            {"kind": "fabric", "state": "Completed", "status": "Failure"},
            {"fabric.state": "Completed", "fabric.status": "Failure"},
        ),
        ({"kind": "fabric"}, {"fabric.state": "In Progress"}),
        (
            {"kind": "pcie_link", "width": 8, "gen": 1},
            {"pcie.link.width.current": "8", "pcie.link.width.max": "16", "pcie.link.gen.gpucurrent": "1"},
        ),
        ({"kind": "persistence_off"}, {"persistence_mode": "Disabled"}),
        ({"kind": "mig"}, {"mig.mode.current": "Enabled", "utilization.gpu": "[N/A]"}),
    ],
)
def test_faults_of_one_gpu(gpu_machine: Any, fault: dict[str, Any], values: dict[str, str]) -> None:
    machine = gpu_machine({**fault, "gpu": 1}, gpus=2, model="h200-sxm")
    healthy, faulty = rows(machine, ",".join(values))
    assert dict(zip(values, faulty, strict=True)) == values
    assert healthy != faulty


def test_before_570_the_recovery_action_has_two_fields(gpu_machine: Any) -> None:
    fields = "reset_status.reset_required,reset_status.drain_and_reset_recommended"
    machine = gpu_machine({"kind": "recovery_action", "gpu": 0}, gpus=2, driver="535.183.01")
    assert rows(machine, fields) == [["Yes", "No"], ["No", "No"]]


@pytest.mark.parametrize(
    ("model", "values"),
    [
        # A real L40S (driver 595.80): no fabric, no memory temperature, no MIG.
        (
            "l40s",
            {
                "fabric.state": "N/A",
                "temperature.memory": "N/A",
                "mig.mode.current": "[N/A]",
                "remapped_rows.histogram.max": "192",
                "pci.device_id": "0x26B910DE",
            },
        ),
        # A real A100-SXM4-40GB (535.129.03): T.Limit is not there, rows can be remapped, 640 banks.
        (
            "a100-sxm-40",
            {
                "temperature.gpu.tlimit": "N/A",
                "temperature.memory": "40",
                "remapped_rows.histogram.max": "640",
                "retired_pages.pending": "[N/A]",
                "fabric.state": "N/A",
            },
        ),
        (
            "t4",
            {
                "name": "Tesla T4",
                "remapped_rows.pending": "[N/A]",
                "retired_pages.pending": "No",
                "memory.total": "15360 MiB",
                "pcie.link.gen.max": "3",
            },
        ),
        ("h100-pcie", {"name": "NVIDIA H100 PCIe", "fabric.state": "N/A", "power.limit": "350.00 W"}),
        ("a10g", {"fan.speed": "0 %", "memory.total": "23028 MiB"}),
    ],
)
def test_what_a_model_lacks(gpu_machine: Any, model: str, values: dict[str, str]) -> None:
    assert rows(gpu_machine(model=model), ",".join(values)) == [list(values.values())]


def test_remapped_rows_of_drivers_without_the_fields(gpu_machine: Any) -> None:
    # NVIDIA's memory error guide shows this query with 0 and 1, not with No and Yes.
    machine = gpu_machine({"kind": "row_remap", "gpu": 1, "pending": True}, gpus=2, driver="535.183.01")
    asked = "gpu_bus_id,remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure"
    done = machine.run("nvidia-smi", f"--query-remapped-rows={asked}", "--format=csv")
    assert done.stdout.splitlines() == [
        asked.replace(",", ", "),
        "00000000:43:00.0, 0, 0, 0",
        "00000000:4B:00.0, 1, 1, 0",
    ]


def test_the_persistence_mode_can_be_set(gpu_machine: Any) -> None:
    machine = gpu_machine(persistence=False)
    assert rows(machine, "persistence_mode") == [["Disabled"]]
    done = machine.run("nvidia-smi", "-pm", "1")
    # As in public sessions.
    assert done.stdout == "Enabled persistence mode for GPU 00000000:43:00.0.\nAll done.\n"
    assert rows(machine, "persistence_mode") == [["Enabled"]]


def test_a_warning_is_an_error_only_when_asked(gpu_machine: Any) -> None:
    machine = gpu_machine({"kind": "inforom_corrupt"})
    done = machine.run("nvidia-smi")
    assert done.returncode == 0
    assert done.stdout.endswith("\nWARNING: infoROM is corrupted at gpu 0000:43:00.0\n")
    assert machine.run("nvidia-smi", "-eow").returncode == 14


def test_the_fabric_settles(gpu_machine: Any) -> None:
    machine = gpu_machine({"kind": "fabric", "seconds": 3600}, gpus=2)
    assert rows(machine, "fabric.state") == [["In Progress"]] * 2
    # As if the first look had been more than an hour ago.
    first = machine.root / "run/gpu-sim/fabric"
    first.write_text(str(int(first.read_text()) - 3700 * 10**9))
    assert rows(machine, "fabric.state,fabric.status") == [["Completed", "Success"]] * 2
