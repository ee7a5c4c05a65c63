"""``inv validate`` as the on-call engineer types it, against a machine reached by real SSH."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from images import settings
from tests.gpu_sim.fixtures import gpu_libraries
from tests.gpu_sim.verdicts import HEALTHY, MACHINE, ROWS, Row
from tests.images.validate.node import Node, node

__all__ = ["gpu_libraries"]

CHECKOUT = settings.CHECKOUT
H100 = {"gpus": 8, "model": "h100-sxm", "machine_type": "p5.48xlarge"}

pytestmark = pytest.mark.box


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, gpu_libraries: Mapping[str, Path]) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    with node(folder, cache=settings.Settings().cache / "box", libraries=gpu_libraries) as made:
        yield made


@pytest.fixture
def build_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INVOKE_GPU_IMAGE_BUILD_DIR", str(tmp_path / "build"))
    monkeypatch.setenv("INVOKE_GPU_IMAGE_MANIFEST", str(tmp_path / "manifest"))
    return tmp_path / "build"


def validate(machine: Node, *options: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
    words = ["./inv", "validate", f"--host={machine.url}", f"--ssh-config={config or machine.ssh_config}"]
    words += options
    done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=300)
    assert "Traceback" not in done.stderr
    assert machine.run("ls -d /tmp/gpu-image-validate.* 2>/dev/null || true") == ""
    return done


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


@pytest.mark.usefixtures("build_dir")
def test_a_healthy_machine_of_somebody_else(machine: Node, build_dir: Path) -> None:
    machine.simulate(**H100)
    done = validate(machine, "--diag-level=2")
    said = lines(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said[0].startswith("HEALTHY: "), said
    assert "image not one of our images" in said
    assert "GPUs 8 x h100 (level gpu_simulated)" in said
    assert any(line.startswith("the machine was not booted from an image of ours") for line in said)
    [evidence] = build_dir.glob("validate-*")
    document = json.loads((evidence / "gate-host.json").read_bytes())
    assert (document["phase"], document["level"]) == ("host", "gpu_simulated")
    assert {path.name for path in (evidence / "outputs").iterdir()} == {
        "gpu-facts.json",
        "gpu-memory.json",
        "kernel-log.jsonl",
        "dcgm-diag.json",
        "dcgm-health.json",
        "dcgm-field-1001.txt",
    }


#: Of every kind of verdict; the others with --full.
QUICK = {
    "lost-gpu=3-bus=False",
    "memory_miscompare-gpu=all",
    "xid-gpu=3-code=31",
    "diag_skipped",
    "healthy",
}


@pytest.mark.usefixtures("build_dir")
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=[] if row.name in QUICK else [pytest.mark.full])
        for row in (HEALTHY, *ROWS)
        if not row.kernel
    ],
)
def test_faults(machine: Node, row: Row) -> None:
    machine.simulate(*row.faults, **MACHINE)
    done = validate(machine, f"--diag-level={row.diag_level}")
    verdict, says = row.gate
    assert lines(done)[0].startswith(f"{verdict.upper()}: "), done.stdout
    assert done.returncode == {"unhealthy": 1, "unknown": 3}.get(verdict, 0), done.stdout
    assert says in " ".join(done.stdout.split()), done.stdout


@pytest.mark.usefixtures("build_dir")
def test_json(machine: Node) -> None:
    machine.simulate(gpus=1, model="l4")
    done = validate(machine, "--json", "--tier=gpu")
    found = json.loads(done.stdout)
    assert (found["verdict"], found["gpus"], found["level"]) == ("healthy", {"l4": 1}, "gpu_simulated")
    assert "nvswitch.fabric" not in {check["id"] for check in found["checks"]}


@pytest.mark.usefixtures("build_dir")
def test_a_machine_without_gpus_is_no_healthy_gpu_machine(machine: Node) -> None:
    machine.remove()
    done = validate(machine, "--tier=gpu", "--gpus=8")
    assert done.returncode == 1
    assert "0 of 8 GPUs are on the bus (the gate's options)" in " ".join(done.stdout.split())


@pytest.mark.usefixtures("build_dir")
def test_a_release_that_is_not_there(machine: Node) -> None:
    done = validate(machine, "--release=sha256:" + "0" * 64)
    assert done.returncode == 3
    assert "sha256" in done.stderr


@pytest.mark.usefixtures("build_dir")
def test_an_account_without_sudo(machine: Node, tmp_path: Path) -> None:
    machine.run(
        "id poor 2>/dev/null || useradd -m -s /bin/sh poor; usermod -p '*' poor; mkdir -p ~poor/.ssh; "
        "cp ~admin/.ssh/authorized_keys ~poor/.ssh/; chown -R poor: ~poor/.ssh"
    )
    config = tmp_path / "poor"
    config.write_text(machine.ssh_config.read_text().replace("User admin", "User poor"))
    done = validate(machine, config=config)
    assert done.returncode == 2
    assert "cannot use sudo without a password" in done.stderr


@pytest.mark.usefixtures("build_dir")
def test_an_unknown_host_key(machine: Node, tmp_path: Path) -> None:
    config = tmp_path / "config"
    known = machine.ssh_config.read_text().replace("known_hosts", "nobody")
    config.write_text(known + "  StrictHostKeyChecking yes\n")
    done = validate(machine, config=config)
    assert done.returncode == 3
    assert "its host key is not known" in done.stderr
