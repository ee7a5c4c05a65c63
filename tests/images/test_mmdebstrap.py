from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from images import mmdebstrap
from images.errors import ExitCode


@pytest.mark.parametrize(
    ("output", "message", "hint"),
    [
        (
            "E: Version '6.12.99-1' for 'linux-image-cloud-amd64' was not found",
            "no longer has linux-image-cloud-amd64 6.12.99-1",
            "./inv lock --cloud=CLOUD",
        ),
        (
            "E: Unable to locate package linux-image-6.12.99+deb13-cloud-amd64\nE: Couldn't find it",
            "has no package linux-image-6.12.99+deb13-cloud-amd64",
            "./inv lock --cloud=CLOUD",
        ),
        ("E: Package 'foo' has no installation candidate", "has no package foo", "./inv lock"),
        ("tar: ./usr: Cannot write: No space left on device", "disk is full", "4 GiB"),
        ("E: You don't have enough free space in /x/.", "disk is full", "4 GiB"),
        (
            "E: Failed to fetch http://mirror.example/pool/l/linux.deb  404  Not Found [IP: 192.0.2.1 80]",
            "vanished",
            "./inv lock",
        ),
        (
            "Err:2 http://mirror.example/debian nosuch Release\n  404  Not Found [IP: 192.0.2.1 80]\n"
            "E: The repository 'http://mirror.example/debian nosuch Release' does not have a Release file.",
            "no suite nosuch: http://mirror.example/debian",
            "os.codename",
        ),
        ("W: Temporary failure resolving 'mirror.example'\nE: apt-get update failed", "no network", "proxy"),
        ("W: Could not connect to mirror.example:80 (192.0.2.1).", "no network", "proxy"),
        ("I: x\nE: something else\nI: y", "mmdebstrap failed\n  E: something else", "/log"),
    ],
)
def test_what_a_failed_bootstrap_means(output: str, message: str, hint: str) -> None:
    error = mmdebstrap.explain(output, Path("/log"))
    assert message in error.message
    assert hint in (error.hint or "")


def fake_mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "bin" / "mmdebstrap"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    (program.parent / "newuidmap").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def started_for(scratch: Path) -> list[int]:
    """The processes that carry the mark of a bootstrap in their environment."""
    mark = f"{mmdebstrap.MARK}={scratch}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def test_an_interrupted_bootstrap_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_mmdebstrap(
        tmp_path, monkeypatch, 'mkdir -p "$TMPDIR/root/etc"; echo "I: started"; exec sleep 600\n'
    )

    running = []

    def note(text: str) -> None:
        running.extend(started_for(scratch))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), mmdebstrap.scratch_folder(tmp_path) as scratch:
        mmdebstrap.call(["trixie"], env={}, scratch=scratch, note=note)
    assert running
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]
    assert started_for(scratch) == []


def test_mounts_below_a_folder_come_deepest_first() -> None:
    # proc_pid_mountinfo(5): field 5 is the mount point, with octal escapes
    text = (
        "22 1 0:20 / / rw - ext4 /dev/vda rw\n"
        "30 22 0:21 / /c/base\\040x/root/proc rw - proc proc rw\n"
        "31 30 0:22 / /c/base\\040x/root/proc/sys rw - proc proc rw\n"
        "32 22 0:23 / /c/base\\040xy rw - tmpfs tmpfs rw\n"
    )
    assert mmdebstrap.mounted_below(text, Path("/c/base x")) == [
        Path("/c/base x/root/proc/sys"),
        Path("/c/base x/root/proc"),
    ]


def test_a_private_folder_is_not_passable(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir(mode=0o755)
    assert mmdebstrap.passable(Path("/usr/bin"))
    tmp_path.chmod(0o700)
    assert not mmdebstrap.passable(inner)


def test_no_network_is_a_failure_and_a_vanished_package_wrong_input() -> None:
    assert mmdebstrap.explain("Temporary failure resolving 'x'").code == ExitCode.FAILED
    assert mmdebstrap.explain("E: Unable to locate package x").code == ExitCode.USAGE
