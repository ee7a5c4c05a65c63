"""When things go wrong: nothing published, nothing left behind, and a first line that says what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from images import builds
from images.settings import CHECKOUT
from tests.conftest import Built, Site
from tests.images.test_run import wait_for


def nothing_is_left(site: Site) -> None:
    """No process, temporary folder or disk of any build of this site, and nothing published."""
    for state in site.states():
        assert builds.processes(state["build_id"]) == {}
        assert not Path(state["temporary"]).exists()
    assert list(site.builds.rglob("*.qcow2")) == []
    assert not (site.manifest / "channels").exists()
    assert not (site.manifest / "releases").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--image=nope"], "no image 'nope'"),
        (["--set", "kernal.series=6"], "unknown key 'kernal'"),
        (["--set", "kernel.series"], "not of the form key=value"),
        (["--on-error=maybe"], "must be one of cleanup, keep"),
        (["--accel=warp"], "no accelerator 'warp'"),
        (["--arch=arm64"], "gpu-debian is not made for arm64 on local"),
        (["--lock=tests/fixtures/locks/gpu-debian.local.amd64.json"], "a test fixture"),
        (["--lock=/nowhere"], "/nowhere does not exist"),
    ],
)
def test_wrong_input_is_refused_before_anything_starts(site: Site, arguments: list[str], words: str) -> None:
    result = site.inv("build", "--cloud=local", *arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert site.states() == []


def test_unknown_cloud(site: Site) -> None:
    result = site.inv("build", "--cloud=moon")
    assert result.returncode == 2
    assert "no cloud 'moon'" in result.stderr and "local" in result.stderr


def test_kernel_that_does_not_exist(site: Site) -> None:
    result = site.inv("build", "--cloud=local", "--set", "kernel.release=6.12.0+nothing-cloud-amd64")
    assert result.returncode == 2, result.stderr
    assert "linux-image-6.12.0+nothing-cloud-amd64" in result.stderr
    nothing_is_left(site)


def test_dry_run_starts_nothing(site: Site) -> None:
    result = site.inv("--dry", "build", "--cloud=local")
    assert result.returncode == 0, result.stderr
    assert "packer build" in result.stdout
    assert not site.builds.exists()


def test_missing_programs_without_installing(site: Site, tmp_path: Path) -> None:
    bare = Site(tmp_path, {"PATH": str(tmp_path), "PACKER": ""})
    result = bare.inv("build", "--cloud=local", "--no-install")
    assert result.returncode == 2
    assert "apt-get install" in result.stderr and "mmdebstrap" in result.stderr


@pytest.mark.vm
def test_interrupted_bootstrap_does_not_poison_the_cache(tmp_path: Path) -> None:
    site = Site(tmp_path, {"INVOKE_GPU_IMAGE_CACHE": str(tmp_path / "cache")})
    process = site.start("build", "--cloud=local")
    try:
        assert wait_for(lambda: list(tmp_path.glob("cache/base/.*/*")) != [], 120)
    finally:
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    nothing_is_left(site)
    assert [path for path in (tmp_path / "cache/base").iterdir() if path.is_dir()] == []
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(tmp_path) not in mounts


def packer_waits(process: subprocess.Popen[str], site: Site, *, count: int = 1) -> None:
    """Until ``count`` builds of the site have started their machine; an early end is a failure at once."""

    def started() -> bool:
        return process.poll() is not None or len(list(site.builds.glob("*/serial-build.log"))) == count

    assert wait_for(started, 180)
    assert process.poll() is None, process.communicate()


@pytest.mark.vm
@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_signal_while_packer_waits_for_the_machine(site: Site, built: Built, signum: int) -> None:
    process = site.start("build", "--cloud=local", "--force")
    try:
        packer_waits(process, site)
    finally:
        process.send_signal(signum)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert site.states()[0]["status"] == "interrupted"
    nothing_is_left(site)


@pytest.mark.vm
def test_after_a_kill_the_next_build_cleans_up_and_leaves_live_ones_alone(site: Site, built: Built) -> None:
    process = site.start("build", "--cloud=local", "--force")
    try:
        packer_waits(process, site)
    finally:
        process.kill()
    process.communicate()
    dead = site.states()[0]["build_id"]
    assert builds.processes(dead), "Packer and QEMU go on without their parent"
    shown = site.inv("sweep").stdout
    assert "would remove" in shown and "qemu" in shown
    assert builds.processes(dead), "sweep without --yes only shows"
    second = site.start("build", "--cloud=local", "--force")
    try:
        packer_waits(second, site, count=2)
        assert builds.processes(dead) == {}
        live = site.states()[1]["build_id"]
        running = set(builds.processes(live))
        assert "nothing is left over" in site.inv("sweep", "--yes").stdout
        assert running <= set(builds.processes(live))
    finally:
        second.send_signal(signal.SIGTERM)
    second.communicate()
    nothing_is_left(site)


@pytest.mark.vm
@pytest.mark.parametrize(
    ("stage", "signum"),
    [("capture", signal.SIGTERM), ("gate", signal.SIGINT), ("gate", signal.SIGKILL)],
)
def test_kill_in_a_late_stage(site: Site, built: Built, stage: str, signum: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.late_stages", str(built.folder), "--from-capture"],
        cwd=CHECKOUT,
        env=site.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def reached() -> bool:
        states = site.states()
        if not states or states[0].get("stage") != stage:
            return process.poll() is not None
        started = "qemu-img" if stage == "capture" else "qemu-system"
        return any(started in line for line in builds.processes(states[0]["build_id"]).values())

    try:
        assert wait_for(reached, 180)
        assert process.poll() is None
    finally:
        os.kill(process.pid, signum)
    output, _ = process.communicate()
    if signum == signal.SIGKILL:
        assert "removed" in site.inv("sweep", "--yes").stdout
    else:
        assert process.returncode == 130, output
    nothing_is_left(site)


def first_error(text: str) -> str:
    return next((line for line in text.splitlines() if line.startswith("error:")), text)


def late_build(site: Site, built: Built, *options: str) -> subprocess.CompletedProcess[str]:
    """A build on top of the shared build's image: the kernel is there already."""
    return late_stages(site, built, "--from-disk", *options)


def late_stages(site: Site, built: Built, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.late_stages", str(built.folder), *options],
        cwd=CHECKOUT,
        env=site.environment,
        capture_output=True,
        text=True,
        check=False,
    )


CHECK = "--set=min_free_mib=900000"
ROLE = "--set=packages=[no-such-package-anywhere]"


def check_is_named(result: subprocess.CompletedProcess[str], site: Site) -> None:
    assert result.returncode == 1, result.stderr
    assert first_error(result.stderr).startswith(
        "error: build: the gate inside the build failed: system.free_space (fail)"
    ), result.stderr
    assert "gate-build.json" in result.stderr
    nothing_is_left(site)
    folder = next(site.builds.glob("gpu-debian-*"))
    assert {"gate-build.json", "packer.log", "serial-build.log"} <= {path.name for path in folder.iterdir()}


def role_is_named(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 1, result.stderr
    first = first_error(result.stderr)
    assert "build: the Ansible task failed: site :" in first and "no-such-package-anywhere" in first, first


def kept_machine_answers_until_its_time_is_over(site: Site) -> None:
    state = site.states()[0]
    assert state["status"] == "kept"
    assert "nothing is left over" in site.inv("sweep", "--yes").stdout
    answer = site.inv("ssh", state["build_id"], "--command", "cat /usr/lib/gpu-image/image.json")
    assert answer.returncode == 0 and '"gpu-debian"' in answer.stdout, answer.stderr
    path = site.builds / state["build_id"] / "state.json"
    path.write_text(json.dumps({**state, "expires": 1}))
    assert "removed  process" in site.inv("sweep", "--yes").stdout
    nothing_is_left(site)
    assert site.inv("ssh", state["build_id"]).returncode == 3


@pytest.mark.vm
def test_failing_check_stops_the_build_and_is_named_first(site: Site, built: Built) -> None:
    check_is_named(late_build(site, built, CHECK), site)


@pytest.mark.vm
def test_failing_role_is_named_with_its_task_and_its_machine_can_be_kept(site: Site, built: Built) -> None:
    result = late_build(site, built, ROLE, "--keep")
    role_is_named(result)
    assert "./inv ssh" in result.stderr
    kept_machine_answers_until_its_time_is_over(site)


@pytest.mark.vm
def test_check_that_fails_on_the_capture_is_named_and_its_machine_can_be_kept(
    site: Site, built: Built
) -> None:
    words = ["--from-capture", f"--min-free={1 << 60}", "--keep"]
    result = late_stages(site, built, *words)
    assert result.returncode == 1, result.stderr
    first = first_error(result.stderr)
    assert first.startswith("error: gate: the gate on the capture (first_boot, first-bios"), first
    assert "system.free_space (fail)" in result.stderr and "./inv ssh" in result.stderr
    kept_machine_answers_until_its_time_is_over(site)


@pytest.mark.full
def test_failing_check_from_the_base_disk(site: Site) -> None:
    check_is_named(site.inv("build", "--cloud=local", CHECK), site)


@pytest.mark.full
def test_failing_role_from_the_base_disk(site: Site) -> None:
    role_is_named(site.inv("build", "--cloud=local", ROLE))
    nothing_is_left(site)
