"""The units and drop-ins: what must be in them, and systemd's own opinion where it is installed."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from validation.boot_checks import hooks, runner, supervisor

CHECKOUT = Path(__file__).resolve().parents[3]
UNITS = CHECKOUT / "roles/boot_checks/files/etc/systemd/system"


def read(name: str) -> dict[str, dict[str, str]]:
    """A unit file; a key that stands twice gets both values, as systemd does for lists."""
    sections: dict[str, dict[str, str]] = {}
    values: dict[str, str] = {}
    for line in (UNITS / name).read_text().splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            values = sections.setdefault(match[1], {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            values[key] = f"{values[key]} {value}" if key in values else value
    return sections


def test_the_target_stands_and_falls_with_the_checks() -> None:
    target = read("gpu-ready.target")
    assert target["Unit"]["Requires"] == target["Unit"]["After"] == "gpu-boot-check.service"
    assert target["Install"]["WantedBy"] == "multi-user.target"


def test_the_service_waits_for_nothing_that_waits_for_it() -> None:
    after = read("gpu-boot-check.service")["Unit"]["After"].split()
    behind_multi_user = {"cloud-final.service", "cloud-init.target", "graphical.target"}
    workloads = {f"{name}.service" for name in ("kubelet", "slurmd", "containerd", "docker")}
    assert not {"multi-user.target", "gpu-ready.target", *behind_multi_user, *workloads} & set(after)


def test_the_service_allows_for_the_runners_own_limits() -> None:
    service = read("gpu-boot-check.service")["Service"]
    grace = supervisor.TERM_GRACE + supervisor.KILL_GRACE
    assert float(service["TimeoutStartSec"]) > runner.TOTAL_DEADLINE + grace + hooks.TOTAL + grace
    assert (service["Type"], service["RemainAfterExit"]) == ("oneshot", "yes")


@pytest.mark.parametrize("workload", ["kubelet", "slurmd", "containerd", "docker"])
def test_workloads_are_held_back(workload: str) -> None:
    unit = read(f"{workload}.service.d/10-gpu-ready.conf")["Unit"]
    assert unit == {"Requires": "gpu-ready.target", "After": "gpu-ready.target"}


def test_every_line_is_a_section_a_comment_or_an_assignment() -> None:
    files = [path for path in UNITS.rglob("*.*") if path.is_file()]
    assert files
    for path in files:
        configparser.ConfigParser(strict=False, interpolation=None).read_string(path.read_text())


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if not tool:
        pytest.skip("no systemd here")
    units = shutil.copytree(UNITS, tmp_path / "units")
    service = units / "gpu-boot-check.service"
    service.write_text(service.read_text().replace("/usr/lib/gpu-image/bin/gpu-boot-check", "/bin/true"))
    (units / "docker.service").write_text("[Service]\nExecStart=/bin/true\n")
    names = ["gpu-boot-check.service", "gpu-ready.target", "docker.service"]
    done = subprocess.run(
        [tool, "verify", "--man=no", *(units / name for name in names)],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{units}:"},
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if str(units) in line]
    assert (done.returncode, complaints) == (0, [])
