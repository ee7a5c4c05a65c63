from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from images.clouds.local import bootstrap
from images.errors import ExitCode, UserError

#: What `apt-cache show` and the InRelease files print (trixie, shortened), as the resolve hook marks it.
FILE = "pool/updates/main/l/linux-signed-amd64/linux-image-6.12.118+deb13-cloud-amd64_6.12.118-1_amd64.deb"
OUTPUT = f"""\
I: running apt-get update...
@package Package: linux-image-cloud-amd64
@package Source: linux-signed-amd64 (6.12.118+1)
@package Version: 6.12.118-1
@package Depends: linux-image-6.12.118+deb13-cloud-amd64 (= 6.12.118-1)
@package Description-en: Linux for x86-64 cloud (meta-package)
@package  This package depends on the latest Linux kernel. Homepage: none
@package Filename: pool/updates/main/l/linux-signed-amd64/linux-image-cloud-amd64_6.12.118-1_amd64.deb
@package Size: 1496
@package SHA256: f8d7bb14443f66140d59b8381b8e4587d59efbda79f60edee5a3ebc87b6504e7
@package
@package Package: linux-image-6.12.118+deb13-cloud-amd64
@package Version: 6.12.118-1
@package Filename: {FILE}
@package Size: 34699820
@package SHA256: 07f23ba1de88377d700e1e2f5b2ee495ff89b0d0bb73fdbd3eac8f6b27609b9a
@package
@index Digest: 928ed9a0128b0395be1f23a4b1379562d1ccd08ac2a5a24ed445d182be1f7608
@index Codename: trixie-security
@index Date: Sat, 28 Nov 2026 02:53:01 UTC
@index Digest: bfacad4ca61899ce20d4a0d439f29339f66541561b67506364efb88e27dee870
@index Codename: trixie
@index Date: Sat, 21 Nov 2026 09:15:44 UTC
I: success in 5.3197 seconds
"""


def test_reads_packages_as_the_archive_has_them() -> None:
    image, meta = bootstrap.read_packages(OUTPUT)
    assert image == bootstrap.Package(
        name="linux-image-6.12.118+deb13-cloud-amd64",
        version="6.12.118-1",
        sha256="07f23ba1de88377d700e1e2f5b2ee495ff89b0d0bb73fdbd3eac8f6b27609b9a",
        size=34699820,
        file=FILE,
    )
    assert (meta.name, meta.size) == ("linux-image-cloud-amd64", 1496)


def test_reads_indexes() -> None:
    assert bootstrap.read_indexes(OUTPUT) == (
        bootstrap.Index(
            "trixie",
            "Sat, 21 Nov 2026 09:15:44 UTC",
            "bfacad4ca61899ce20d4a0d439f29339f66541561b67506364efb88e27dee870",
        ),
        bootstrap.Index(
            "trixie-security",
            "Sat, 28 Nov 2026 02:53:01 UTC",
            "928ed9a0128b0395be1f23a4b1379562d1ccd08ac2a5a24ed445d182be1f7608",
        ),
    )


@pytest.mark.parametrize(
    ("output", "message", "hint"),
    [
        (
            "E: Version '6.12.99-1' for 'linux-image-cloud-amd64' was not found",
            "no longer has linux-image-cloud-amd64 6.12.99-1",
            "./inv lock --cloud=local",
        ),
        (
            "E: Unable to locate package linux-image-6.12.99+deb13-cloud-amd64\nE: Couldn't find it",
            "has no package linux-image-6.12.99+deb13-cloud-amd64",
            "./inv lock --cloud=local",
        ),
        ("E: Package 'foo' has no installation candidate", "has no package foo", "./inv lock"),
        ("tar: ./usr: Cannot write: No space left on device", "disk is full", "4 GiB"),
        ("E: You don't have enough free space in /x/.", "disk is full", "4 GiB"),
        (
            "E: Failed to fetch http://mirror.example/pool/l/linux.deb  404  Not Found [IP: 192.0.2.1 80]",
            "vanished",
            "./inv lock",
        ),
        ("W: Temporary failure resolving 'mirror.example'\nE: apt-get update failed", "no network", "proxy"),
        ("W: Could not connect to mirror.example:80 (192.0.2.1).", "no network", "proxy"),
        ("I: x\nE: something else\nI: y", "mmdebstrap failed\n  E: something else", "/log"),
    ],
)
def test_what_a_failed_bootstrap_means(output: str, message: str, hint: str) -> None:
    error = bootstrap.explain(output, Path("/log"))
    assert message in error.message
    assert hint in (error.hint or "")


def fake_mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "bin" / "mmdebstrap"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    (program.parent / "newuidmap").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_resolve_names_the_package_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_mmdebstrap(
        tmp_path, monkeypatch, 'echo "E: Unable to locate package linux-image-nope" >&2; exit 1\n'
    )
    with pytest.raises(UserError, match="no package linux-image-nope"):
        bootstrap.resolve(suite="trixie", kernel_package="linux-image-nope")


def test_resolve_asks_for_what_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "output").write_text(OUTPUT)
    fake_mmdebstrap(
        tmp_path,
        monkeypatch,
        f"printf '%s' \"$PACKAGES $*\" >{tmp_path}/asked; pwd >/dev/null; cat {tmp_path}/output\n",
    )
    notes: list[str] = []
    resolved = bootstrap.resolve(suite="trixie", note=notes.append)
    assert [package.version for package in resolved.packages] == ["6.12.118-1", "6.12.118-1"]
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("linux-image-cloud-amd64 --mode=")
    assert asked.endswith(" trixie -")
    assert "running apt-get update" in notes
    with pytest.raises(UserError, match="no package absent"):
        bootstrap.resolve(suite="trixie", packages=["absent=1"])


def started_for(scratch: Path) -> list[int]:
    """The processes that carry the mark of a bootstrap in their environment."""
    mark = f"{bootstrap.MARK}={scratch}".encode()
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

    with pytest.raises(KeyboardInterrupt), bootstrap.scratch_folder(tmp_path) as scratch:
        bootstrap.mmdebstrap(["trixie"], env={}, scratch=scratch, note=note)
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
    assert bootstrap.mounted_below(text, Path("/c/base x")) == [
        Path("/c/base x/root/proc/sys"),
        Path("/c/base x/root/proc"),
    ]


def test_a_private_folder_is_not_passable(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir(mode=0o755)
    assert bootstrap.passable(Path("/usr/bin"))
    tmp_path.chmod(0o700)
    assert not bootstrap.passable(inner)


def test_no_network_is_a_failure_and_a_vanished_package_wrong_input() -> None:
    assert bootstrap.explain("Temporary failure resolving 'x'").code == ExitCode.FAILED
    assert bootstrap.explain("E: Unable to locate package x").code == ExitCode.USAGE
