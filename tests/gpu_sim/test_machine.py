"""The simulated machine as a whole: its files, its kernel, its scenarios, and programs that never return."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import gpu_sim
from tests.gpu_sim import KINDS, BadScenario, Scenario, kernel_log, scenario, tables, vm
from tests.gpu_sim.guest import simulated

MODELS = list(tables.models())


def installed(machine: Any) -> set[str]:
    """What lies in the machine's folder, as it sees it."""
    return {
        f"/{path.relative_to(machine.root)}"
        for path in machine.root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def pci(root: Path) -> dict[str, dict[str, str]]:
    """What a program finds below /sys/bus/pci/devices."""
    found = {}
    for device in (root / "sys/bus/pci/devices").iterdir():
        found[device.name] = {
            file.name: file.read_text().strip() for file in device.iterdir() if file.is_file()
        }
        driver = device / "driver"
        found[device.name]["driver"] = os.path.realpath(driver).rsplit("/", 1)[-1] if driver.exists() else ""
    return found


def gpus(root: Path) -> list[str]:
    """By the rule of the PCI class codes: 10de is NVIDIA, 03 a display controller."""
    return sorted(
        address
        for address, about in pci(root).items()
        if about["vendor"] == "0x10de" and about["class"].startswith("0x03")
    )


def test_the_bus_of_a_board_of_eight(gpu_machine: Any) -> None:
    machine = gpu_machine({"kind": "pcie_link", "gpu": 2, "width": 4, "gen": 3}, gpus=8)
    bus = pci(machine.root)
    found = gpus(machine.root)
    asked = machine.run("nvidia-smi", "--query-gpu=pci.bus_id,pci.device_id", "--format=csv,noheader")
    assert [f"0000{address}" for address in found] == [
        line.split(", ")[0].lower() for line in asked.stdout.splitlines()
    ]
    # The PCI ID database: 2330 is the H100 SXM5 80GB, 22a3 the NVSwitch of its board, of which it has four.
    assert {bus[address]["device"] for address in found} == {"0x2330"}
    switches = [about for about in bus.values() if about["class"] == "0x068000"]
    assert [(about["vendor"], about["device"]) for about in switches] == [("0x10de", "0x22a3")] * 4
    assert bus[found[0]]["driver"] == "nvidia"
    assert (bus[found[0]]["current_link_speed"], bus[found[0]]["current_link_width"]) == (
        "32.0 GT/s PCIe",
        "16",
    )
    assert (bus[found[2]]["current_link_speed"], bus[found[2]]["current_link_width"]) == (
        "8.0 GT/s PCIe",
        "4",
    )
    assert bus[found[2]]["max_link_width"] == "16"
    # Other devices are there too, one of them a VGA controller that is no GPU.
    assert any(about["class"] == "0x030000" and about["vendor"] != "0x10de" for about in bus.values())


def test_a_lost_gpu_stays_on_the_bus_and_reads_all_ones(gpu_machine: Any, tmp_path: Path) -> None:
    machine = gpu_machine({"kind": "lost", "gpu": 1}, gpus=2, root=tmp_path / "here")
    assert len(gpus(machine.root)) == 2
    lost = pci(machine.root)[gpus(machine.root)[1]]
    # The kernel's names for the link fields of all ones: speed 15 and width 63.
    assert (lost["current_link_speed"], lost["current_link_width"]) == ("Unknown", "63")
    machine = gpu_machine({"kind": "lost", "gpu": 1, "bus": False}, gpus=2, root=tmp_path / "gone")
    assert gpus(machine.root) == ["0000:43:00.0"]


def test_no_module_no_driver(gpu_machine: Any, tmp_path: Path) -> None:
    loaded = gpu_machine({"kind": "version_mismatch"}, root=tmp_path / "loaded").root
    assert (loaded / "sys/module/nvidia/version").read_text() == "575.57.08\n"
    assert "  575.57.08  " in (loaded / "proc/driver/nvidia/version").read_text()
    assert (loaded / "usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05").exists()
    bare = gpu_machine({"kind": "driver_not_loaded"}, root=tmp_path / "bare").root
    assert not (bare / "sys/module/nvidia").exists() and not (bare / "proc/driver/nvidia").exists()
    assert {about["driver"] for about in pci(bare).values()} == {"", "nvme", "ena", "ast"}
    assert len(gpus(bare)) == 1


def test_a_machine_of_before_is_gone(gpu_machine: Any) -> None:
    machine = gpu_machine(gpus=8, machine_type="p5.48xlarge", expect={"gpus": 8})
    (machine.root / "etc/other").write_text("not ours")
    machine.run("nvidia-smi", "-pm", "1")
    gpu_machine({"kind": "missing", "program": "dcgmi"}, gpus=1, driver="535.183.01")
    assert gpus(machine.root) == ["0000:43:00.0"]
    paths = installed(machine)
    assert "/etc/other" in paths
    assert not [path for path in paths if "580" in path or path.startswith(("/run/", "/etc/gpu-image"))]
    assert "/usr/bin/dcgmi" not in paths
    assert not (machine.root / "run/cloud-init").exists()


@pytest.mark.parametrize(
    ("machine_type", "cloud", "place"),
    [
        ("p5.48xlarge", "aws", ("ds", "meta_data", "instance-type")),
        ("Standard_ND96isr_H100_v5", "azure", ("ds", "meta_data", "imds", "compute", "vmSize")),
        ("BM.GPU.H100.8", "oracle", ("ds", "shape")),
    ],
)
def test_the_machine_type_is_where_the_cloud_puts_it(
    gpu_machine: Any, machine_type: str, cloud: str, place: tuple[str, ...]
) -> None:
    machine = gpu_machine(machine_type=machine_type)
    document = json.loads((machine.root / "run/cloud-init/instance-data.json").read_text())
    assert document["v1"]["cloud_name"] == cloud
    for key in place:
        document = document[key]
    assert document == machine_type


def test_gce_is_asked_at_its_metadata_server(gpu_machine: Any) -> None:
    machine = gpu_machine(machine_type="a3-highgpu-8g", metadata_server="http://127.0.0.1:8080")
    text = (machine.root / "run/cloud-init/instance-data.json").read_text()
    assert json.loads(text)["v1"]["cloud_name"] == "gce"
    assert "a3-highgpu-8g" not in text and "http://127.0.0.1:8080" in text


def test_what_is_installed_on_a_real_machine() -> None:
    wanted = gpu_sim.files(Scenario(gpus=8, machine_type="p5.48xlarge", expect={"gpus": 8}))
    paths = [file.path for file in wanted]
    assert len(set(paths)) == len(paths) and all(path.startswith("/") for path in paths)
    assert not [path for path in paths if path.split("/")[1] in ("sys", "proc", "dev", "run")]
    assert {gpu_sim.MARKER, "/etc/gpu-image/expect.json", "/usr/bin/nvidia-smi"} <= set(paths)
    assert {file.mode for file in wanted if file.path.startswith("/usr/bin/")} == {0o755}
    # What is mounted over the real folders is there, without links that would lead into the real /sys.
    aside = [file for file in wanted if file.path.startswith("/usr/share/gpu-sim/kernel/")]
    assert sum(file.path.endswith("/vendor") and file.content == b"0x10de\n" for file in aside) == 12
    mounted = {line.split()[2] for line in vm.show_kernel() if "--bind" in line}
    assert mounted <= {str(folder) for file in aside for folder in Path(file.path).parents}
    assert not any(file.link and "devices" in file.link for file in aside)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    (unit,) = (
        file.content.decode()
        for file in gpu_sim.files(Scenario())
        if file.path.endswith("/gpu-sim.service") and not file.link
    )
    assert all(f"ExecStart={line}\n" in unit for line in vm.show_kernel())
    tool = shutil.which("systemd-analyze")
    if not tool:
        pytest.skip("no systemd here")
    (tmp_path / "gpu-sim.service").write_text(unit.replace("=mount ", "=/bin/true "))
    command = [tool, "verify", "--man=no", str(tmp_path / "gpu-sim.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "lines",
    [
        vm.freeze(),
        vm.thaw(),
        vm.suspend(),
        vm.resume(),
        vm.show_kernel(),
        vm.hide_kernel(),
        vm.write_kernel_log(Scenario(faults=[{"kind": "xid", "code": 13}])),
    ],
)
def test_the_shell_lines_are_shell(lines: list[str]) -> None:
    done = subprocess.run(
        ["bash", "-n"], input=vm.script(lines), text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "") and len(lines) > 1


def test_a_quote_in_a_kernel_message_is_quoted(tmp_path: Path) -> None:
    machine = Scenario(driver="535.183.01", faults=[{"kind": "xid", "code": 43}])
    target = tmp_path / "kmsg"
    lines = [line.replace("/dev/kmsg", f">{target}") for line in vm.write_kernel_log(machine)]
    subprocess.run(["bash", "-c", vm.script(lines)], check=True)
    assert target.read_text().endswith("43, pid='<unknown>', name=<unknown>, Ch 00000008")


@pytest.mark.parametrize("program", ["nvidia-smi", "dcgmi"])
def test_without_the_marker_the_programs_do_nothing(gpu_machine: Any, program: str) -> None:
    machine = gpu_machine()
    (machine.root / gpu_sim.MARKER.lstrip("/")).unlink()
    done = machine.run(program, "--version")
    assert (done.returncode, done.stdout) == (70, "")
    assert done.stderr.startswith("gpu-sim: no scenario in ")


def test_the_simulator_shows_itself_in_each_part(gpu_machine: Any) -> None:
    machine = gpu_machine(gpus=2)
    uuids = machine.run("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader").stdout.split()
    assert all(uuid.startswith(gpu_sim.UUID_PREFIX) for uuid in uuids) and len(set(uuids)) == 2
    assert "gpu-sim" in machine.run("dcgmi", "-v").stdout
    assert "gpu-sim" in (machine.root / "proc/driver/nvidia/version").read_text()
    assert b"gpu_sim_version" in Path(machine.library).read_bytes()
    marker = (machine.root / gpu_sim.MARKER.lstrip("/")).read_text()
    assert Scenario.load(marker).dump() == machine.scenario.dump()


def test_a_scenario_is_written_and_read() -> None:
    for seed in range(50):
        made = scenario.random_scenario(seed, faults=3)
        assert json.loads(Scenario.load(made.dump()).dump()) == json.loads(made.dump())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "h900"}, "no model 'h900'; there are h100-sxm, "),
        ({"gpus": 17}, "17 GPUs: between 0 and 16 can be simulated"),
        ({"faults": [{"kind": "melted"}]}, "no fault 'melted'; there are lost, "),
        ({"faults": ["lost"]}, "a fault is an object with a 'kind', not 'lost'"),
        (
            {"faults": [{"kind": "hot", "kelvin": 400}]},
            "fault 'hot' has no option kelvin; it has gpu, celsius, ",
        ),
        (
            {"faults": [{"kind": "lost", "gpu": 3}], "gpus": 3},
            "fault 'lost' is about GPU 3; the machine has 3",
        ),
        (
            {"faults": [{"kind": "lost", "says": "gone"}]},
            "fault 'lost': says is 'gone'; it can be unknown, ",
        ),
    ],
)
def test_a_wrong_scenario_is_refused_in_words(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadScenario) as caught:
        Scenario(**settings)
    assert str(caught.value).startswith(said)
    with pytest.raises(BadScenario):
        Scenario.load(json.dumps(settings))
    with pytest.raises(BadScenario):
        Scenario.load("{")


#: Faults that are none until somebody says more.
MORE: dict[str, dict[str, Any]] = {
    "row_remap": {"pending": True},
    "ecc": {"uncorrected": 1},
    "pcie_link": {"width": 8},
    "unknown_field": {"fields": ["name"]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_makes_a_difference(kind: str) -> None:
    def seen(machine: Scenario) -> list[gpu_sim.File]:
        return [file for file in gpu_sim.files(machine, {}) if file.path != gpu_sim.MARKER]

    healthy = Scenario(gpus=2, model="h200-sxm")
    assert seen(healthy) == seen(healthy.but())
    assert seen(healthy.but({"kind": kind, **MORE.get(kind, {})})) != seen(healthy)


def test_every_fault_can_be_had_on_every_model() -> None:
    for place, model in enumerate(MODELS):
        driver = ("580.95.05", "535.183.01", "525.147.05", "570.195.03")[place % 4]
        dcgm = ("4.4.1", "3.3.9", "4.6.0")[place % 3]
        for kind in KINDS:
            machine = Scenario(gpus=2, model=model, driver=driver, dcgm=dcgm, faults=[{"kind": kind}])
            assert gpu_sim.files(machine)


def test_random_machines_answer_without_a_traceback(gpu_machine: Any, tmp_path: Path) -> None:
    for seed in range(4):
        made = scenario.random_scenario(seed, faults=3)
        machine = gpu_machine(*made.faults, root=tmp_path / str(seed), **settings_of(made))
        for command in (
            ["nvidia-smi"],
            ["nvidia-smi", "-q"],
            ["dcgmi", "diag", "-r", "3"],
            ["dcgmi", "health", "-c"],
        ):
            if (machine.root / "usr/bin" / command[0]).exists():
                assert "Traceback" not in machine.run(*command).stderr


def settings_of(made: Scenario) -> dict[str, Any]:
    return {name: getattr(made, name) for name in ("gpus", "model", "driver", "dcgm")}


# -- programs that never return


def wait_until_hung(machine: Any) -> int:
    """The pid of the program that hangs now."""
    record = machine.root / "run/gpu-sim/hung"
    for _ in range(1000):
        if record.exists() and record.read_text().endswith("\n"):
            return int(record.read_text().split()[-1])
        time.sleep(0.01)
    raise AssertionError("nothing hangs")


def start(machine: Any, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(machine.root / "usr/bin" / command[0]), *command[1:]], stdout=subprocess.PIPE
    )


@pytest.mark.parametrize("command", [["nvidia-smi", "-L"], ["dcgmi", "discovery", "-l"]])
def test_a_hung_program_ends_when_told_to(gpu_machine: Any, command: list[str]) -> None:
    machine = gpu_machine({"kind": "hung", "program": command[0]})
    process = start(machine, *command)
    try:
        assert wait_until_hung(machine) == process.pid
        assert process.poll() is None
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


def test_it_may_not_hear_of_sigterm_and_leave_a_process_behind(gpu_machine: Any) -> None:
    machine = gpu_machine({"kind": "hung", "ignores_sigterm": True, "holds_pipes": True})
    process = start(machine, "nvidia-smi")
    assert process.stdout
    try:
        wait_until_hung(machine)
        blocked = next(
            int(line.split()[1], 16)
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
            if line.startswith("SigBlk:")
        )
        assert blocked >> (signal.SIGTERM - 1) & 1 and blocked >> (signal.SIGINT - 1) & 1
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
        # The process is gone, but somebody still holds its output open: no end of file.
        assert select.select([process.stdout], [], [], 0) == ([], [], [])
        machine.end_holders()
        assert process.stdout.read() == b""
    finally:
        process.kill()
        machine.end_holders()
        process.communicate()


def test_cuinit_may_never_return(gpu_machine: Any) -> None:
    machine = gpu_machine({"kind": "hung", "program": "cuInit", "ignores_sigterm": True})
    program = f"import ctypes; ctypes.CDLL({machine.library!r}).cuInit(0)"
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        assert wait_until_hung(machine) == process.pid
        process.terminate()
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def test_a_slow_program_answers_in_the_end(gpu_machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = gpu_machine({"kind": "slow", "seconds": 0.01})
    assert machine.run("nvidia-smi", "-L").stdout.startswith("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-")
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    settings = json.loads((machine.root / "usr/share/gpu-sim/machine.json").read_text())
    simulated.begin("dcgmi", settings)
    assert waited == []
    simulated.begin("nvidia-smi", settings)
    assert waited == [0.01]


# -- the kernel's log


@pytest.mark.parametrize(
    ("driver", "fault", "record"),
    [
        # Public logs: since 570 the pid is left out where there is none.
        (
            "580.95.05",
            {"kind": "xid", "code": 79},
            "NVRM: Xid (PCI:0000:43:00): 79, GPU has fallen off the bus.",
        ),
        (
            "535.183.01",
            {"kind": "xid", "code": 79},
            "NVRM: Xid (PCI:0000:43:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        ),
        (
            "580.95.05",
            {"kind": "xid", "code": 13, "text": "made up"},
            "NVRM: Xid (PCI:0000:43:00): 13, made up",
        ),
        ("580.95.05", {"kind": "xid", "code": 999}, "NVRM: Xid (PCI:0000:43:00): 999"),
        (
            "580.95.05",
            {"kind": "recovery_action", "action": "Drain and Reset"},
            "NVRM: Xid (PCI:0000:43:00): 154, "
            "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
        ),
        ("580.95.05", {"kind": "log_line", "text": "anything"}, "anything"),
        # NVIDIA/NVSentinel issue 155: three lines and no Xid.
        (
            "580.95.05",
            {"kind": "count_short", "gpu": 0, "log": True},
            "NVRM: The NVIDIA GPU 0000:43:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system has\n"
            "NVRM: fallen off the bus and is not responding to commands.",
        ),
    ],
)
def test_the_kernel_log(driver: str, fault: dict[str, Any], record: str) -> None:
    machine = Scenario(driver=driver, faults=[fault])
    assert kernel_log.lines(machine)[-1] == record
    # dmesg indents further lines; in /dev/kmsg a record is one write.
    assert kernel_log.dmesg(machine).splitlines()[-1].endswith(record.splitlines()[-1])
    assert kernel_log.kmsg(machine)[-1] == f"<4>{record}"


def test_before_565_there_is_no_xid_154() -> None:
    assert len(kernel_log.lines(Scenario(driver="535.183.01", faults=[{"kind": "recovery_action"}]))) == 2


# -- building


def test_no_compiler_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(gpu_sim.NoCompiler, match="install gcc and libc6-dev"):
        gpu_sim.compile_libraries(tmp_path / "out")


def test_the_libraries_have_their_sonames(gpu_libraries: Any) -> None:
    for name, path in gpu_libraries.items():
        shown = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
        assert f"Library soname: [{name}.so.1]" in shown


# -- what ignores even SIGKILL


@pytest.mark.full
def test_a_process_in_d_state(gpu_machine: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can freeze a file system")
    machine = gpu_machine({"kind": "hung", "blocks_on": vm.FROZEN_FILE})
    done = subprocess.run(
        ["bash", "-c", vm.script(vm.freeze())], capture_output=True, text=True, check=False
    )
    if done.returncode:
        subprocess.run(["bash", "-c", vm.script(vm.thaw())], capture_output=True, check=False)
        pytest.skip(f"no file system can be frozen here: {done.stderr.strip()}")
    process = start(machine, "nvidia-smi")
    try:
        wait_until_hung(machine)
        process.kill()
        for _ in range(500):
            if state_of(process.pid) == "D":
                break
            time.sleep(0.01)
        else:
            raise AssertionError("not in D state")
        assert process.poll() is None
    finally:
        subprocess.run(["bash", "-c", vm.script(vm.thaw())], capture_output=True, check=False)
        assert process.wait(30) == -signal.SIGKILL
        process.communicate()
        Path("/run/gpu-sim").rmdir()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]


def test_the_readme_has_every_fault_with_its_options() -> None:
    rows = {}
    for line in (tables.HERE / "README.md").read_text().splitlines():
        cells = line.split("|")
        rows.update(dict.fromkeys(re.findall(r"`(\w+)`", cells[1] if len(cells) > 3 else ""), line))
    assert set(KINDS) <= set(rows)
    for kind, options in KINDS.items():
        if kind != "diag_passes_with_error":  # "the same"
            assert all(f"`{option}`" in rows[kind] for option in options), kind
