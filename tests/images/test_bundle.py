"""What goes into the bundle, and a digest that depends on nothing but that."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from images import bundle
from images.errors import UserError

TREE = {
    "validation/__init__.py": b"",
    "validation/dcgm.py": b"reader",
    "validation/faults.json": b"{}",
    "validation/health/agent.py": b"agent",
    "validation/boot_checks/check.py": b"check",
    "validation/boot_checks/bin/gpu-boot-check": b"#!/usr/bin/python3\n",
    "validation/boot_checks/boot-checks.d/10-services": b"#!/usr/bin/python3 -IBS\n",
}
# As ``cd TOP && python3 -m MODULE --help``, with nothing else to import from.
RUN_MODULE = (
    "import runpy, sys; sys.path.insert(0, sys.argv[1]); module = sys.argv[2]; sys.argv[1:] = ['--help']; "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
NOT_FOR_THE_MACHINE = (
    "validation/gate/test_kernel.py",
    "validation/gate/deep/x.py",
    "validation/__pycache__/dcgm.cpython-311.pyc",
    "validation/boot_checks/__pycache__/check.cpython-311.pyc",
    "validation/boot_checks/.ruff.toml",
    "validation/boot_checks/check.py~",
    "images/bundle.py",
)
ON_THE_MACHINE = {
    "/usr/lib/gpu-image/bin/gpu-boot-check": "0755",
    "/usr/lib/gpu-image/boot-checks.d/10-services": "0755",
    "/usr/lib/gpu-image/validation/__init__.py": "0644",
    "/usr/lib/gpu-image/validation/boot_checks/check.py": "0644",
    "/usr/lib/gpu-image/validation/dcgm.py": "0644",
    "/usr/lib/gpu-image/validation/faults.json": "0644",
    "/usr/lib/gpu-image/validation/health/agent.py": "0644",
}


def checkout(root: Path, *, mode: int = 0o644, backwards: bool = False) -> Path:
    for name in sorted([*TREE, *NOT_FOR_THE_MACHINE], reverse=backwards):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(TREE.get(name, b"other"))
        path.chmod(mode)
    return root


def test_the_rule(tmp_path: Path) -> None:
    files = bundle.collect(checkout(tmp_path))
    assert {file.path: file.mode for file in files} == ON_THE_MACHINE
    assert [file.path for file in files] == sorted(ON_THE_MACHINE)
    (reader,) = [file for file in files if file.path.endswith("/dcgm.py")]
    assert (reader.content, reader.sha256) == (b"reader", hashlib.sha256(b"reader").hexdigest())


def test_the_digest_is_what_sha256sum_says(tmp_path: Path) -> None:
    """The lines by `printf '%s %s %s\\n' MODE $(sha256sum <FILE) PATH`, sorted, through sha256sum."""
    root = tmp_path / "validation/boot_checks"
    (root / "bin").mkdir(parents=True)
    (root / "bin/x").write_bytes(b"abc")
    (root / "y.py").write_bytes(b"")
    lines = (  # FIPS 180-2 has the digest of "abc"; that of nothing is as well known
        "0644 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        " /usr/lib/gpu-image/validation/boot_checks/y.py\n"
        "0755 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad /usr/lib/gpu-image/bin/x\n"
    )
    summed = subprocess.run(["sha256sum"], input=lines.encode(), capture_output=True, check=True)
    assert bundle.digest(bundle.collect(tmp_path)) == "sha256:" + summed.stdout.decode().split()[0]


def test_the_digest_does_not_depend_on_the_checkout(tmp_path: Path) -> None:
    digests = {
        bundle.digest(bundle.collect(checkout(tmp_path / str(index), mode=mode, backwards=backwards)))
        for index, (mode, backwards) in enumerate(
            [(0o644, False), (0o664, True), (0o775, False), (0o600, True)]
        )
    }
    assert len(digests) == 1
    files = bundle.collect(tmp_path / "0")
    assert bundle.digest(reversed(files)) in digests


@pytest.mark.parametrize("name", sorted(TREE))
def test_the_digest_depends_on_every_file(tmp_path: Path, name: str) -> None:
    root = checkout(tmp_path)
    before = bundle.digest(bundle.collect(root))
    (root / name).write_bytes(b"changed")
    assert bundle.digest(bundle.collect(root)) != before


def test_a_link_is_refused(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    (root / "validation/link.py").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match=r"validation/link\.py is neither a file nor a folder"):
        bundle.collect(root)


def test_what_is_written_has_its_modes_and_no_leftovers(tmp_path: Path) -> None:
    files = bundle.collect(checkout(tmp_path / "checkout"))
    stale = tmp_path / "out/usr/lib/gpu-image/boot-checks.d/99-stale"
    stale.parent.mkdir(parents=True)
    stale.touch()
    before = os.umask(0o077)
    try:
        bundle.write(files, tmp_path / "out")
    finally:
        os.umask(before)
    written = [path for path in (tmp_path / "out/usr").rglob("*") if path.is_file()]
    assert {
        f"/{path.relative_to(tmp_path / 'out')}": f"{path.stat().st_mode & 0o7777:04o}" for path in written
    } == (ON_THE_MACHINE)
    top = tmp_path / "out/usr/lib/gpu-image"
    assert {path.stat().st_mode & 0o7777 for path in [top, *top.rglob("*")] if path.is_dir()} == {0o755}
    with tarfile.open(tmp_path / "out/gpu-image.tar") as archive:
        members = archive.getmembers()
    assert {f"/usr/lib/{member.name}": f"{member.mode:04o}" for member in members if member.isfile()} == (
        ON_THE_MACHINE
    )
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {
        (0, 0, "root", "root")
    }


def test_this_checkouts_bundle_has_the_runner_its_checks_and_the_readers() -> None:
    modes = {file.path: file.mode for file in bundle.collect()}
    assert modes["/usr/lib/gpu-image/bin/gpu-boot-check"] == "0755"
    for name in ("10-services", "20-gpus", "30-gpu-memory"):
        assert modes[f"/usr/lib/gpu-image/boot-checks.d/{name}"] == "0755"
    readers = ("dcgm", "faults", "kernel_log", "nvidia_smi", "cuda")
    assert (
        modes.items()
        >= {
            f"/usr/lib/gpu-image/validation/{name}": "0644"
            for name in (
                "boot_checks/runner.py",
                "boot_checks/gpus.py",
                "driver.py",
                "expect.py",
                "machine_types.json",
                "machine_types.py",
                "pci.py",
                *(f"{reader}/__init__.py" for reader in readers),
                *(f"{reader}/__main__.py" for reader in readers),
            )
        }.items()
    )
    assert not [path for path in modes if "/gate/" in path or "__pycache__" in path]


def test_every_command_of_the_bundle_runs_on_a_machine(tmp_path: Path) -> None:
    """Nothing that it imports or reads stays behind in the checkout."""
    bundle.write(bundle.collect(), tmp_path)
    top = tmp_path / "usr/lib/gpu-image"
    commands = sorted(path.parent.name for path in top.glob("validation/*/__main__.py"))
    assert len(commands) > 3
    for name in commands:
        command = ["/usr/bin/python3", "-IBS", "-c", RUN_MODULE, top, f"validation.{name}"]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert "usage" in done.stdout


def test_a_program_that_is_no_text_is_refused(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    (root / "validation/boot_checks/boot-checks.d/90-binary").write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(UserError, match="90-binary is not UTF-8 text"):
        bundle.collect(root)
