"""The files of a simulated machine: for a folder that stands for one, and for a real one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.gpu_sim import cuda, dcgm, kernel, kernel_log, smi, state, tables, vm
from tests.gpu_sim.kernel import File
from tests.gpu_sim.kernel import text as _text
from tests.gpu_sim.scenario import Scenario

#: Where the simulator says that it is one: its programs and libraries do nothing without this file.
MARKER = "/usr/share/gpu-sim/scenario.json"
SHARE = "/usr/share/gpu-sim"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
INSTANCE = "i-0511511511511511f"


def files(scenario: Scenario, libraries: Mapping[str, Path] | None = None) -> list[File]:
    """What to install on a real machine, say a virtual one: programs, libraries, and what they read.

    ``libraries`` are those of ``build.compile_libraries``; without them the machine has none. Run
    ``ldconfig`` once after they have been installed. What the kernel shows cannot be installed: it lies in
    ``kernel.ASIDE``, and ``vm.show_kernel`` mounts it; a unit does so at boot, before gpu-boot-check.
    """
    return [*_installed(scenario, libraries or {}), *kernel.behind_mounts(scenario), *_unit()]


def lay_out(root: Path, scenario: Scenario, libraries: Mapping[str, Path] | None = None) -> Path:
    """Makes ``root`` a whole simulated machine, as far as GPUs go, and returns it.

    A machine that was laid out there before is taken away first; files of others stay.
    """
    record = root / "usr/share/gpu-sim/laid-out"
    for line in record.read_text().splitlines() if record.exists() else ():
        _take_away(root, root / line)
    wanted = [*_installed(scenario, libraries or {}), *cloud_init(scenario)]
    wanted += [*kernel.sysfs(scenario), *kernel.procfs(scenario)]
    for file in wanted:
        target = root / file.path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        if file.link is not None:
            target.symlink_to(file.link)
        else:
            target.write_bytes(file.content)
            target.chmod(file.mode)
    for left in (root / "run/gpu-sim").glob("*"):
        left.unlink()
    record.write_text("".join(file.path.lstrip("/") + "\n" for file in wanted))
    return root


def _take_away(root: Path, path: Path) -> None:
    """Removes a file, and the folders above it that are empty then: a reader asks whether they exist."""
    path.unlink(missing_ok=True)
    for folder in path.parents:
        if folder == root or not folder.is_dir() or any(folder.iterdir()):
            break
        folder.rmdir()


def _installed(scenario: Scenario, libraries: Mapping[str, Path]) -> Iterator[File]:
    yield from (*_share(scenario), *_programs(scenario), *_libraries(scenario, libraries))
    if scenario.expect is not None:
        yield _text("/etc/gpu-image/expect.json", json.dumps(scenario.expect) + "\n")


def _guest(name: str) -> str:
    return (tables.HERE / "guest" / name).read_text()


def _share(scenario: Scenario) -> Iterator[File]:
    settings: dict[str, Any] = {
        "smi": smi.answers(scenario),
        "dcgm": dcgm.answers(scenario),
        "no_nvml": None,
        "hung": list(scenario.having("hung")),
        "slow": list(scenario.having("slow")),
    }
    if any(fault["program"] == "libnvidia-ml" for fault in scenario.having("missing")):
        settings["no_nvml"] = smi.NO_LIBRARY
    for gpu, answer in zip(state.gpus(scenario), settings["smi"]["gpus"], strict=True):
        answer["place"] = str(gpu.place)
    yield _text(MARKER, scenario.dump())
    yield _text(f"{SHARE}/machine.json", json.dumps(settings) + "\n")
    yield _text(f"{SHARE}/cuda.conf", cuda.conf(scenario))
    yield _text(f"{SHARE}/kernel.log", kernel_log.dmesg(scenario))
    for name in ("simulated.py", "dcgmi_diag.py", "dcgmi_health.py", "dcgmi_json.py"):
        yield _text(f"{SHARE}/{name}", _guest(name))


def _programs(scenario: Scenario) -> Iterator[File]:
    missing = {fault["program"] for fault in scenario.having("missing")}
    for name, source in (("nvidia-smi", "nvidia_smi.py"), ("dcgmi", "dcgmi.py")):
        if name not in missing:
            yield _text(f"/usr/bin/{name}", _guest(source), 0o755)


def _libraries(scenario: Scenario, libraries: Mapping[str, Path]) -> Iterator[File]:
    missing = {fault["program"] for fault in scenario.having("missing")}
    for name, path in libraries.items():
        if name in missing:
            continue
        versioned = f"{name}.so.{scenario.driver}"
        yield File(f"{LIBRARIES}/{versioned}", path.read_bytes())
        yield File(f"{LIBRARIES}/{name}.so.1", link=versioned)
        yield File(f"{LIBRARIES}/{name}.so", link=f"{name}.so.1")


def _unit() -> Iterator[File]:
    """The unit that shows the simulated kernel side at boot."""
    commands = "".join(f"ExecStart={line}\n" for line in vm.show_kernel())
    name = "gpu-sim.service"
    yield _text(
        f"/etc/systemd/system/{name}",
        "[Unit]\nDescription=Simulated GPUs (tests only)\nDefaultDependencies=no\n"
        f"Before=gpu-boot-check.service sysinit.target\nConditionPathExists={MARKER}\n\n"
        f"[Service]\nType=oneshot\nRemainAfterExit=yes\n{commands}\n"
        "[Install]\nWantedBy=sysinit.target\n",
    )
    yield File(f"/etc/systemd/system/sysinit.target.wants/{name}", link=f"../{name}")


def cloud_init(scenario: Scenario) -> list[File]:
    """cloud-init's cache of what the cloud says: where each datasource puts the machine type."""
    kind, cloud = scenario.machine_type, scenario.cloud_name
    if kind is None:
        return []
    data: Any = {
        "aws": {
            "meta_data": {"instance-type": kind, "instance-id": INSTANCE},
            "dynamic": {"instance-identity": {"document": {"instanceType": kind}}},
        },
        "gcp": {"meta_data": {"instance-id": INSTANCE}},  # cloud-init does not ask for the machine type
        "azure": {"meta_data": {"imds": {"compute": {"vmSize": kind}}}},
        "oci": {"id": INSTANCE, "shape": kind},
    }[str(cloud)]
    name = {"oci": "oracle", "gcp": "gce"}.get(str(cloud), cloud)
    server = scenario.metadata_server or "http://169.254.169.254"
    document = {
        "base64_encoded_keys": [],
        "ds": data,
        "v1": {
            "cloud_name": name,
            "platform": name,
            "instance_id": INSTANCE,
            "subplatform": f"metadata ({server})",
        },
    }
    return [
        _text("/run/cloud-init/instance-data.json", json.dumps(document, indent=1, sort_keys=True) + "\n")
    ]
