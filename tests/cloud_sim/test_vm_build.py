"""`inv build --cloud=aws` with real machines: the production roles, the production gate, Debian on EC2.

Takes half an hour without KVM. The quick builds (``test_faults.py``) have the rest of the fault table.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.manifest.named import named_images
from images.manifest.resolve import read_release
from images.manifest.store import open_store
from images.settings import CHECKOUT, Settings
from tests.cloud_sim import session
from tests.cloud_sim.faults import Call
from tests.cloud_sim.session import Session
from tests.conftest import FaultTable

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="machines listen on port 22 of their own addresses"),
]


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    settings = Settings(build_dir=tmp_path_factory.mktemp("aws"))
    with session.start(settings) as running:
        yield running
    assert running.box.errors == []


def start(aws: Session, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "images", *words],
        cwd=CHECKOUT,
        env=aws.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def inv(aws: Session, *words: str) -> subprocess.CompletedProcess[str]:
    process = start(aws, *words)
    out, err = process.communicate()
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def left(aws: Session) -> dict[str, dict[str, list[str]]]:
    """What the account has and the manifest does not name; snapshots stand or fall with their images."""
    named = set(named_images(open_store(aws.folder / "manifest")))
    found = aws.box.leftovers()
    for region in found.values():
        region["images"] = [item for item in region.get("images", []) if item not in named]
        if not region["images"]:
            region.pop("snapshots", None)
    return {
        name: {k: v for k, v in kinds.items() if v} for name, kinds in found.items() if any(kinds.values())
    }


def test_a_killed_builder_and_a_sweep(aws: Session, fault_table: FaultTable) -> None:
    running: list[subprocess.Popen[str]] = []

    def kill(_: Call) -> None:
        running[0].send_signal(signal.SIGKILL)

    aws.box.faults.after("ModifyInstanceMetadataOptions", kill)
    running.append(start(aws, "build", "--cloud=aws"))
    running[0].communicate()
    assert running[0].returncode == -signal.SIGKILL
    assert "instances" in left(aws)["us-east-1"]
    swept = inv(aws, "sweep", "--cloud=aws", "--yes")
    assert swept.returncode == 0, swept.stdout + swept.stderr
    assert left(aws) == {}
    fault_table.add("VM: SIGKILL while provisioning", -9, "swept")


def test_built_gated_copied_and_resolved(aws: Session, fault_table: FaultTable) -> None:
    built = inv(aws, "build", "--cloud=aws", "--json")
    assert built.returncode == 0, built.stderr
    outcome = json.loads(built.stdout)
    for region in ("us-east-1", "us-west-2"):
        answer = inv(aws, "manifest.resolve", "--cloud=aws", f"--region={region}")
        assert answer.stdout.strip() == outcome["regions"][region]
    assert left(aws) == {}
    release = read_release(open_store(aws.folder / "manifest"), outcome["release"])
    assert release.build.simulation
    assert release.os.kernel.startswith("6.12.")
    phases = {gate.phase for gate in release.gates}
    assert phases == {"build", "first_boot", "reboot", "capture"}
    assert not [gate for gate in release.gates if gate.result in ("fail", "unknown")]
    (not_looked,) = [gate for gate in release.gates if gate.id == "capture.nothing_found"]
    assert not_looked.result == "not_run"
    fault_table.add("VM: none", 0, "published in two regions")


def test_a_failed_check_leaves_nothing(aws: Session, fault_table: FaultTable, tmp_path: Path) -> None:
    failed = inv(aws, "build", "--cloud=aws", "--set", "min_free_mib=7000")
    assert failed.returncode == 1
    assert "error: build: the gate inside the build failed: system.free_space" in failed.stderr
    assert left(aws) == {}
    fault_table.add("VM: a check fails", 1, "nothing left")
