"""Debian 13 takes the packages: apt and dpkg install them in a chroot, DKMS compiles the modules.

Needs root, minutes and the distribution's archive.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import apt_fixture
from tests.apt_fixture import Options, Served
from tests.apt_fixture.conftest import DEBIAN

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="mmdebstrap's chroot needs root"),
]
HEADERS = "linux-headers-cloud-amd64"
DRIVER = ("nvidia-driver-cuda", "nvidia-kernel-support", "firmware-nvidia-gsp", "nvidia-persistenced",
          "nvidia-modprobe", "libcuda1", "libnvidia-ml1", "libnvidia-cfg1")  # fmt: skip
MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem")


def chroot(root: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["chroot", root, "sh", "-eu", "-s"],
        input=script,
        env={"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian 13 with a compiler and the headers of its cloud kernel, as a tar file."""
    tar = tmp_path_factory.mktemp("trixie") / "base.tar"
    include = f"{HEADERS},dkms,gcc,make,kmod,adduser,lshw,init-system-helpers,systemd"
    subprocess.run(
        ["mmdebstrap", "--variant=minbase", f"--include={include}",
         "--aptopt=APT::Install-Recommends false", "trixie", tar],
        check=True, capture_output=True,
    )  # fmt: skip
    return tar


@pytest.fixture
def root(base: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    subprocess.run(["tar", "-C", folder, "-xf", base, "--exclude=./dev/*"], check=True)
    (folder / "dev/null").touch()  # regular files do for what runs here
    return folder


def configure(root: Path, served: Served, *, pin: str = "580.95.05*") -> None:
    """The role's part: key, source and preferences."""
    apt = root / "etc/apt"
    (root / "usr/share/keyrings/fixture.gpg").write_bytes(served.fixture.keyring.read_bytes())
    (apt / "sources.list.d/fixture.list").write_text(
        f"deb [signed-by=/usr/share/keyrings/fixture.gpg] {served.uri(DEBIAN)}/ /\n"
    )
    (apt / "preferences.d/fixture").write_text(
        f"Package: *nvidia* libcuda* libnv*\nPin: version {pin}\nPin-Priority: 1001\n"
    )
    # Only the fixture is asked here; what it needs of the distribution is installed.
    (apt / "sources.list").write_text("")
    (apt / "apt.conf.d/fixture").write_text('Acquire::http::Proxy "DIRECT";\n')


def install(root: Path, *packages: str) -> subprocess.CompletedProcess[str]:
    return chroot(
        root,
        "printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d\n"
        "apt-get update\n"
        f"apt-get install --yes --no-install-recommends {' '.join(packages)}\n",
    )


@pytest.mark.parametrize(
    ("package", "licenses"),
    [
        (
            "nvidia-kernel-open-dkms",
            ("Dual MIT/GPL", "Dual MIT/GPL", "Dual MIT/GPL", "Dual MIT/GPL", "Dual BSD/GPL"),
        ),
        ("nvidia-kernel-dkms", ("NVIDIA", "Dual MIT/GPL", "NVIDIA", "MIT", "Linux-OpenIB")),
    ],
)
def test_the_driver_is_installed_and_its_modules_are_built(
    served: Served, root: Path, package: str, licenses: tuple[str, ...]
) -> None:
    configure(root, served)
    done = install(
        root, "nvidia-driver-cuda", package, "nvidia-fabricmanager", "datacenter-gpu-manager-4-cuda13"
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    listed = chroot(root, "dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n'").stdout
    for name in (*DRIVER, package, "nvidia-fabricmanager"):
        assert f"ii  {name} 580.95.05-1\n" in listed
    assert "ii  datacenter-gpu-manager-4-core 1:4.5.2-1\n" in listed
    kernel = next((root / "usr/lib/modules").iterdir()).name
    status = chroot(root, "dkms status").stdout
    assert status.startswith(f"nvidia-current/580.95.05, {kernel}, x86_64: installed")
    for module, license_ in zip(MODULES, licenses, strict=True):
        name = module.replace("nvidia", "nvidia-current", 1)
        shown = chroot(root, f"modinfo -k {kernel} {name}").stdout
        fields = dict(line.split(":", 1) for line in shown.splitlines() if ":" in line)
        assert fields["version"].strip() == "580.95.05", shown
        assert fields["license"].strip() == license_
        assert fields["vermagic"].split()[0] == kernel
    assert (
        chroot(root, f"modinfo -k {kernel} -F depends nvidia-current-drm").stdout.strip() == "nvidia-modeset"
    )
    wants = root / "etc/systemd/system/multi-user.target.wants"
    assert [link.name for link in wants.glob("nvidia-*")] == ["nvidia-persistenced.service"]
    libraries = chroot(root, "ldconfig -p").stdout
    assert "libcuda.so.1 " in libraries
    assert "libnvidia-ml.so.1 " in libraries
    smi = chroot(root, "nvidia-smi")
    assert smi.returncode == 9
    assert chroot(root, "modprobe --show-depends nvidia").stdout.startswith(
        "install modprobe -i nvidia-current"
    )


def test_a_module_that_does_not_compile(root: Path, tmp_path: Path) -> None:
    names = ("nvidia-kernel-open-dkms", "nvidia-kernel-support", "firmware-nvidia-gsp", "nvidia-modprobe")
    apt_fixture.build(
        tmp_path / "bad", Options(sets=("debian13",), archs=("amd64",), only=names, compiles=False)
    )
    with apt_fixture.serve(tmp_path / "bad") as served:
        configure(root, served)
        done = install(root, "nvidia-kernel-open-dkms")
    assert done.returncode == 100
    assert "Consult /var/lib/dkms/nvidia-current/580.95.05/build/make.log" in done.stdout + done.stderr
    log = (root / "var/lib/dkms/nvidia-current/580.95.05/build/make.log").read_text()
    assert "nvidia/nv.c:" in log
    assert "error: implicit declaration of function ‘ioremap_nocache’" in log or (
        "error: implicit declaration of function 'ioremap_nocache'" in log
    )
    listed = chroot(
        root, "dpkg-query -W -f '${db:Status-Abbrev} ${Package}\\n' nvidia-kernel-open-dkms"
    ).stdout
    assert listed.startswith("iF"), "half configured"


@pytest.mark.parametrize(("sha1", "code"), [(False, 0), (True, 100)])
def test_a_key_bound_by_sha1_is_refused_by_debian_13(
    root: Path, tmp_path: Path, sha1: bool, code: int
) -> None:
    """sqv takes SHA-1 no more since 2026-02-01: the vendor's own key was rejected so."""
    options = Options(sets=("debian13",), archs=("amd64",), only=("nvlsm",), sha1=sha1)
    apt_fixture.build(tmp_path / "weak", options)
    with apt_fixture.serve(tmp_path / "weak") as served:
        configure(root, served)
        done = chroot(root, "apt-get update")
    assert done.returncode == code, done.stdout + done.stderr
    assert ("SHA1" in done.stdout + done.stderr) is sha1
