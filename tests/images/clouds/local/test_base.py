from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from images import archive, mmdebstrap
from images.clouds.local import base, bootstrap
from images.errors import UserError
from tests.images.clouds.local.conftest import SIZE, write_tar

INPUTS: dict[str, Any] = {
    "suite": "trixie",
    "kernel_packages": {"linux-image-cloud-amd64": "6.12.118-1"},
    "base_packages": ("init", "linux-image-amd64"),
    "size_bytes": SIZE,
    "index_digests": {"trixie": "aa"},
}


@pytest.fixture
def bootstraps(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the bootstrap by one that writes a tiny root; the folders it was asked to use."""
    calls: list[Path] = []

    def make_root(tar: Path, *, scratch: Path, log: Path, **_: Any) -> None:
        calls.append(scratch)
        (scratch / "root").mkdir()
        log.write_text("I: done\n")
        write_tar(tar)

    monkeypatch.setattr(bootstrap, "make_root", make_root)
    monkeypatch.setattr(mmdebstrap, "NEEDED_BYTES", 1)
    return calls


def names(cache: Path) -> set[str]:
    """What lies in the cache, locks left out."""
    return {path.name for path in (cache / "base").iterdir() if path.suffix != ".lock"}


def test_a_base_is_made_once_and_then_taken_from_the_cache(tmp_path: Path, bootstraps: list[Path]) -> None:
    made = base.build_base(**INPUTS, cache=tmp_path)
    assert made.bootstrapped
    assert made.path.read_bytes()[:4] == b"QFI\xfb"
    assert made.sha256 == base.sha256_of(made.path)
    assert made.packages == {"bash": "5.2.37-2+b5", "held": "2:3.4~rc1-1"}
    assert {path.name for path in made.path.parent.iterdir()} == {"disk.qcow2", "base.json", "bootstrap.log"}
    assert names(tmp_path) == {made.id}

    again = base.build_base(**INPUTS, cache=tmp_path)
    assert not again.bootstrapped
    assert (again.path, again.sha256, again.packages) == (made.path, made.sha256, made.packages)
    assert len(bootstraps) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"suite": "forky"},
        {"kernel_packages": {"linux-image-cloud-amd64": "6.12.119-1"}},
        {"base_packages": ("init", "linux-image-amd64", "zstd")},
        {"size_bytes": SIZE + (1 << 20)},
        {"index_digests": {"trixie": "bb"}},
    ],
)
def test_every_input_counts(change: dict[str, Any]) -> None:
    assert base.inputs_digest(**{**INPUTS, **change}) != base.inputs_digest(**INPUTS)


def test_our_own_code_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = base.inputs_digest(**INPUTS)
    seen: list[str] = []
    real = bootstrap.code_digest

    def code_digest(*files: Path) -> str:
        seen.extend(file.name for file in files)
        return real(*files) + "changed"

    monkeypatch.setattr(bootstrap, "code_digest", code_digest)
    assert base.inputs_digest(**INPUTS) != before
    assert {"base_customize.sh", "bootstrap.py", "layout.py", "mmdebstrap.py"} <= set(seen)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("no network")])
def test_a_bootstrap_that_fails_leaves_nothing(
    tmp_path: Path, bootstraps: list[Path], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(tar: Path, **_: Any) -> None:
        tar.write_bytes(b"half")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "make_root", fail)
        with pytest.raises(type(error)):
            base.build_base(**INPUTS, cache=tmp_path)
        assert names(tmp_path) == set()
    assert base.build_base(**INPUTS, cache=tmp_path).bootstrapped


def test_what_a_killed_bootstrap_left_is_removed(tmp_path: Path, bootstraps: list[Path]) -> None:
    digest = base.inputs_digest(**INPUTS)
    dead = tmp_path / "base" / f".{digest}.4711"
    (dead / "gpu-image-bootstrap-x" / "root").mkdir(parents=True)
    elsewhere = tmp_path / "tmp" / "gpu-image-bootstrap-y"
    elsewhere.mkdir(parents=True)
    (dead / "scratch").write_text(str(elsewhere))
    orphan = subprocess.Popen(["sleep", "600"], env={**os.environ, mmdebstrap.MARK: str(elsewhere)})
    while not Path(f"/proc/{orphan.pid}/environ").read_bytes():
        pass  # for some microseconds after exec the kernel shows no environment
    incomplete = tmp_path / "base" / digest
    incomplete.mkdir()
    (incomplete / "disk.qcow2").write_bytes(b"half")
    other = tmp_path / "base" / ".another.4712"
    other.mkdir()
    made = base.build_base(**INPUTS, cache=tmp_path)
    assert made.bootstrapped
    assert names(tmp_path) == {digest, other.name}
    assert not elsewhere.exists()
    assert orphan.wait(10) == -signal.SIGKILL


def test_two_builds_side_by_side_bootstrap_once(
    tmp_path: Path, bootstraps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()
    real = bootstrap.make_root

    def slow(tar: Path, **arguments: Any) -> None:
        entered.set()
        assert go_on.wait(30)
        real(tar, **arguments)

    monkeypatch.setattr(bootstrap, "make_root", slow)
    made: list[base.Base] = []
    waited: list[str] = []

    def waiting(text: str) -> None:
        waited.append(text)
        if "waiting" in text:
            go_on.set()

    first = threading.Thread(target=lambda: made.append(base.build_base(**INPUTS, cache=tmp_path)))
    second = threading.Thread(
        target=lambda: made.append(base.build_base(**INPUTS, cache=tmp_path, note=waiting))
    )
    first.start()
    assert entered.wait(30)
    second.start()
    first.join(60)
    second.join(60)
    assert sorted(one.bootstrapped for one in made) == [False, True]
    assert len(bootstraps) == 1
    assert waited == ["another build is making this base disk: waiting for it"]


def test_too_little_space_is_said_before_anything_is_made(
    tmp_path: Path, bootstraps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmdebstrap, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(UserError, match=r"GiB free; making a base disk needs"):
        base.build_base(**INPUTS, cache=tmp_path)
    assert bootstraps == []
    assert names(tmp_path) == set()


def test_a_disk_that_fills_up_while_the_disk_is_written(
    tmp_path: Path, bootstraps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "qemu-img"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho 'qemu-img: error while writing: No space left on device' >&2; exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with pytest.raises(UserError, match="the disk is full"):
        base.build_base(**INPUTS, cache=tmp_path / "cache")
    assert names(tmp_path / "cache") == set()


def test_a_missing_tool_is_named(
    tmp_path: Path, bootstraps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "rm").symlink_to("/bin/rm")
    monkeypatch.setenv("PATH", str(empty))
    with pytest.raises(UserError, match="sfdisk is not installed"):
        base.build_base(**INPUTS, cache=tmp_path)


@pytest.mark.full  # the shared build boots a base with BIOS, and what it captured with both
def test_a_real_base_boots_with_bios_and_uefi_and_reboots(tmp_path: Path) -> None:
    """Bootstraps for real (or takes it from the cache), so it needs the distribution's archive."""
    from images.clouds.local import accel, machine
    from images.settings import Settings

    flavour = "linux-image-cloud-amd64"
    resolved = archive.resolve(distribution="debian", suite="trixie", arch="amd64", kernel_package=flavour)
    _, packages = archive.kernel_of(resolved, flavour, series="6.12")
    made = base.build_base(
        suite="trixie",
        kernel_packages={package.name: package.version for package in packages},
        cache=Settings().cache,
        size_bytes=4 << 30,
        index_digests={index.suite: index.sha256 for index in resolved.indexes},
    )
    key = tmp_path / "key"
    machine.run.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key])
    seen = {}
    for firmware in ("bios", "uefi"):
        config = machine.Config(
            image=made.path,
            name=f"base-{firmware}",
            user="tester",
            private_key=key,
            public_key=key.with_suffix(".pub").read_text(),
            work=tmp_path,
            serial_log=tmp_path / f"{firmware}.log",
            disk_bytes=6 << 30,
            firmware=firmware,  # type: ignore[arg-type]
            accelerator=accel.choose()[0],
        )
        with machine.Machine(config) as vm:
            vm.wait_for_ssh(400)
            seen[firmware] = vm.run("cat /etc/machine-id").strip()
            assert vm.run("test -d /sys/firmware/efi && echo uefi || echo bios").strip() == firmware
            assert vm.run("cloud-init status --wait", timeout=300).strip().endswith("status: done")
            assert vm.run("uname -r").strip().endswith("+deb13-amd64"), "not the locked flavour"
            size = int(vm.run("df --output=size -B1 / | tail -1"))
            assert size > 5 << 30, "the root did not grow"
            cached = vm.run("ls /var/cache/apt/archives").split()
            assert any(name.startswith("linux-image-cloud-amd64_") for name in cached)
            if firmware == "bios":
                assert vm.reboot(400) > 0
                assert vm.run("cat /etc/machine-id").strip() == seen["bios"]
            assert 0 < vm.power_off() < 120
        assert not vm.folder.exists()
    assert seen["bios"] != seen["uefi"]
