"""Build folders: versions, who is alive, and taking away what a dead one left."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from images import builds, run
from images.errors import UserError
from tests.images.test_run import gone, wait_for


@pytest.mark.parametrize(
    ("moment", "version"),
    [
        ("2026-11-30T05:47:12", "2026.1130.54712"),
        ("2026-01-02T00:00:00", "2026.102.0"),
        ("2026-12-31T23:59:59", "2026.1231.235959"),
    ],
)
def test_version_is_three_integers(moment: str, version: str) -> None:
    assert builds.version_of(datetime.datetime.fromisoformat(moment)) == version


def test_two_builds_in_one_second_get_different_versions(tmp_path: Path) -> None:
    with builds.new(tmp_path, "img", "local") as one, builds.new(tmp_path, "img", "local") as two:
        assert one.version != two.version
        assert [item.status for item in builds.past(tmp_path)] == ["running", "running"]


def test_temporary_folder_goes_with_the_build(tmp_path: Path) -> None:
    with builds.new(tmp_path, "img", "local") as build:
        assert build.temporary.is_dir()
        build.record(status="done")
    assert not build.temporary.exists()
    assert builds.find(tmp_path, build.id).status == "done"


def test_unknown_build_names_the_last_ones(tmp_path: Path) -> None:
    with builds.new(tmp_path, "img", "local") as build, pytest.raises(UserError) as caught:
        builds.find(tmp_path, "img-1")
    assert caught.value.hint is not None and build.id in caught.value.hint


DYING = """
import os, signal, subprocess, sys
from pathlib import Path
from images import builds, run
with builds.new(Path(sys.argv[1]), "img", "local") as build:
    child = run.start(["sleep", "300"])
    while not Path(f"/proc/{child.pid}/environ").read_bytes():
        pass  # for some microseconds after exec the kernel shows no environment
    (build.folder / "packer").mkdir()
    (build.folder / "img.qcow2").write_text("half")
    (build.folder / "packer.log").write_text("evidence")
    print(build.folder, build.temporary, child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def dead_build(root: Path) -> tuple[builds.Past, Path, int]:
    """A build that was killed with SIGKILL, its child still running."""
    result = subprocess.run(
        [sys.executable, "-c", DYING, str(root)], capture_output=True, text=True, check=False
    )
    assert result.returncode == -signal.SIGKILL, result.stderr
    folder, temporary, child = result.stdout.split()
    return builds.find(root, Path(folder).name), Path(temporary), int(child)


def test_killed_build_is_seen_and_cleaned_up_with_its_children(tmp_path: Path) -> None:
    item, temporary, child = dead_build(tmp_path)
    assert item.status == "died"
    assert temporary.is_dir()
    assert list(builds.processes(item.id)) == [child]
    removed = builds.clean_up(item)
    assert wait_for(lambda: gone(child))
    assert not temporary.exists()
    assert sorted(path.name for path in item.folder.iterdir()) == ["lock", "packer.log", "state.json"]
    assert len(removed) == 4, removed
    assert builds.clean_up(builds.find(tmp_path, item.id)) == []


def test_live_build_is_not_touched(tmp_path: Path) -> None:
    with builds.new(tmp_path, "img", "local") as build:
        child = run.start(["sleep", "300"])
        try:
            assert builds.clean_up(builds.find(tmp_path, build.id)) == []
            assert child.poll() is None
            assert build.temporary.is_dir()
        finally:
            run.kill_group(child, grace=0)


def test_broken_state_file_is_no_crash(tmp_path: Path) -> None:
    item, temporary, child = dead_build(tmp_path)
    (item.folder / "state.json").write_text("{")
    os.kill(child, signal.SIGKILL)
    again = builds.find(tmp_path, item.id)
    assert again.status == "died"
    builds.clean_up(again)
    assert not (item.folder / "packer").exists()
    temporary.rmdir()
