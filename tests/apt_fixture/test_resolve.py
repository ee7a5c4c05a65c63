"""What apt makes of the repositories: which packages come along, which versions, and what pins hold."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable

import pytest

from tests.apt_fixture import Served
from tests.apt_fixture.apt import Apt, installs, make
from tests.apt_fixture.conftest import DEBIAN, TOOLKIT, UBUNTU

UPSTREAM = "580.95.05"
#: The stanza that roles write (facts of the issue): a version pin, with globs for the names.
PIN = f"""Package: *nvidia* cuda-drivers* libcuda* libnv* libxnvctrl* firmware-nvidia-gsp
Pin: version {UPSTREAM}*
Pin-Priority: 1001
"""
#: The compute-only set for Ubuntu, and what it pulls in.
UBUNTU_COMPUTE = ("libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-utils-580")
UBUNTU_CLOSURE = {
    "libnvidia-cfg1-580",
    "libnvidia-compute-580",
    "libnvidia-decode-580",
    "libnvidia-gpucomp-580",
    "nvidia-dkms-580-open",
    "nvidia-firmware-580",
    "nvidia-kernel-common-580",
    "nvidia-kernel-source-580-open",
    "nvidia-modprobe",
    "nvidia-persistenced",
    "nvidia-utils-580",
}
DEBIAN_COMPUTE = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms")
DEBIAN_CLOSURE = {
    "firmware-nvidia-gsp",
    "libcuda1",
    "libcudadebugger1",
    "libnvcuvid1",
    "libnvidia-cfg1",
    "libnvidia-encode1",
    "libnvidia-gpucomp",
    "libnvidia-ml1",
    "libnvidia-nvvm4",
    "libnvidia-opticalflow1",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler1",
    "libnvidia-sandboxutils",
    "nvidia-driver-cuda",
    "nvidia-kernel-open-dkms",
    "nvidia-kernel-support",
    "nvidia-modprobe",
    "nvidia-opencl-icd",
    "nvidia-persistenced",
}


def of(names: Iterable[str], *versions: str) -> tuple[str, ...]:
    """Patterns for these packages in these versions."""
    return tuple(f"{name}={version}*" for name in names for version in versions)


def test_the_newest_wins_where_nothing_is_said(ubuntu: Apt, debian: Apt) -> None:
    assert ubuntu.candidate("nvidia-open") == "590.48.01-0ubuntu1"
    assert ubuntu.candidate("nvidia-open-580") == "580.105.08-0ubuntu1"
    assert ubuntu.candidate("nvidia-fabricmanager") == "590.48.01-1"
    assert debian.candidate("libcuda1") == "590.48.01-1"
    taken = ubuntu.simulate("nvidia-open")
    assert taken["libnvidia-compute"] == "590.48.01-0ubuntu1"  # renamed: no branch in the name
    assert not [name for name in taken if name.endswith("-580")]


def test_a_pin_holds_the_compute_set_on_ubuntu(ubuntu: Apt) -> None:
    ubuntu.prefer(PIN)
    taken = ubuntu.simulate(*UBUNTU_COMPUTE)
    assert taken == dict.fromkeys(UBUNTU_CLOSURE, "580.95.05-0ubuntu1")


def test_a_pin_holds_the_compute_set_on_debian(debian: Apt) -> None:
    debian.prefer(PIN)
    assert debian.simulate(*DEBIAN_COMPUTE) == dict.fromkeys(DEBIAN_CLOSURE, "580.95.05-1")


def test_two_revisions_of_one_driver(ubuntu: Apt) -> None:
    """The whole stack: a version string that is made of the driver's version is wrong for half of it."""
    ubuntu.prefer(PIN)
    beside = ("nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm", "nvidia-imex")
    taken = ubuntu.simulate("nvidia-open-580", *beside, "nvlsm")
    assert {taken[name] for name in beside} == {"580.95.05-1"}
    assert taken.pop("nvlsm") == "2025.10.11-1"
    assert {version for name, version in taken.items() if name not in beside} == {"580.95.05-0ubuntu1"}
    refused = ubuntu.try_install("nvidia-fabricmanager=580.95.05-0ubuntu1")
    assert refused.returncode == 100
    assert "Version '580.95.05-0ubuntu1' for 'nvidia-fabricmanager' was not found" in refused.stderr


@pytest.mark.parametrize(
    ("meta", "modules"),
    [
        ("nvidia-open", "nvidia-kernel-open-dkms"),
        ("nvidia-open-580", "nvidia-kernel-open-dkms"),
        ("nvidia-open-580.95.05", "nvidia-kernel-open-dkms"),
        ("cuda-drivers", "nvidia-kernel-dkms"),
        ("cuda-drivers-580", "nvidia-kernel-dkms"),
    ],
)
def test_metapackages_on_debian(debian: Apt, meta: str, modules: str) -> None:
    debian.prefer(PIN)
    taken = debian.simulate(meta)
    assert {meta, modules, "nvidia-driver-cuda", "nvidia-driver", "firmware-nvidia-gsp"} <= taken.keys()
    assert set(taken.values()) == {"580.95.05-1"}
    assert not ({"nvidia-kernel-dkms", "nvidia-kernel-open-dkms"} - {modules}) & taken.keys()
    assert "nvidia-smi" not in taken  # nvidia-driver-cuda has the tool


@pytest.mark.parametrize(
    ("meta", "modules"), [("nvidia-open", "nvidia-dkms-580-open"), ("cuda-drivers", "nvidia-dkms-580")]
)
def test_metapackages_on_ubuntu(ubuntu: Apt, meta: str, modules: str) -> None:
    ubuntu.prefer(PIN)
    taken = ubuntu.simulate(meta)
    assert {modules, "libnvidia-compute-580", "nvidia-utils-580", "nvidia-persistenced"} <= taken.keys()
    assert set(taken.values()) == {"580.95.05-0ubuntu1"}


@pytest.mark.parametrize("pinning", ["nvidia-driver-pinning-580.95.05", "nvidia-driver-pinning-580"])
def test_the_vendors_pinning_packages(served: Served, ubuntu: Apt, pinning: str) -> None:
    """Their preferences, taken from the package itself, hold a version or a branch."""
    deb = served.fixture.deb(UBUNTU, f"{pinning}_")
    unpacked = ubuntu.root / pinning
    subprocess.run(["dpkg-deb", "-x", deb, unpacked], check=True)
    (preferences,) = (unpacked / "etc/apt/preferences.d").iterdir()
    shutil.copy(preferences, ubuntu.root / "preferences.d")
    expected = "580.95.05-0ubuntu1" if pinning.endswith(UPSTREAM) else "580.105.08-0ubuntu1"
    assert set(ubuntu.simulate("nvidia-open").values()) == {expected}


def test_a_version_for_the_roots_alone_mixes(ubuntu: Apt) -> None:
    """The vendor's ">=" lets the newest in beside what was asked for by version."""
    beside = {"nvidia-persistenced", "nvidia-modprobe"}
    taken = ubuntu.simulate(*(f"{name}=580.95.05-0ubuntu1" for name in UBUNTU_CLOSURE - beside))
    assert taken["libnvidia-compute-580"] == "580.95.05-0ubuntu1"
    assert taken["nvidia-persistenced"] == "590.48.01-0ubuntu1"
    assert taken["nvidia-modprobe"] == "590.48.01-0ubuntu1"


def test_an_upgrade_moves_what_no_pin_holds(ubuntu: Apt) -> None:
    ubuntu.prefer(PIN)
    machine = ubuntu.simulate(*UBUNTU_COMPUTE, "nvidia-fabricmanager")
    ubuntu.installed(machine)
    assert installs(ubuntu.run("apt-get", "--simulate", "dist-upgrade").stdout) == {}
    ubuntu.prefer("")
    moved = installs(ubuntu.run("apt-get", "--simulate", "dist-upgrade").stdout)
    assert moved["nvidia-fabricmanager"] == "590.48.01-1"
    assert moved["libnvidia-compute-580"] == "580.105.08-0ubuntu1"


def test_dcgm(ubuntu: Apt) -> None:
    four = "datacenter-gpu-manager-4"
    taken = ubuntu.simulate(f"{four}-cuda13", recommends=True)
    assert taken == dict.fromkeys(
        [f"{four}-core", f"{four}-cuda13", f"{four}-proprietary", f"{four}-proprietary-cuda13"], "1:4.5.2-1"
    )
    assert ubuntu.simulate(f"{four}-cuda13").keys() == {f"{four}-core", f"{four}-cuda13"}
    refused = ubuntu.try_install(f"{four}-core", "datacenter-gpu-manager")
    assert refused.returncode == 100
    assert "Conflicts: datacenter-gpu-manager" in refused.stdout


def test_dcgm_parts_are_of_one_version(ubuntu: Apt) -> None:
    refused = ubuntu.try_install("datacenter-gpu-manager-4-cuda13=1:4.4.1-1")
    assert refused.returncode == 100, "the core is of 4.5.2"
    parts = [f"datacenter-gpu-manager-4-{part}=1:4.4.1-1" for part in ("core", "cuda13")]
    assert set(ubuntu.simulate(*parts).values()) == {"1:4.4.1-1"}


def test_container_toolkit(updated: Callable[[str], Apt]) -> None:
    toolkit = updated(TOOLKIT)
    four = {
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container-tools",
        "libnvidia-container1",
    }
    assert toolkit.simulate("nvidia-container-toolkit") == dict.fromkeys(four, "1.18.1-1")
    refused = toolkit.try_install("nvidia-container-toolkit=1.17.8-1")
    assert refused.returncode == 100
    assert "nvidia-container-toolkit-base (= 1.17.8-1) but 1.18.1-1 is to be installed" in refused.stdout
    assert toolkit.simulate(*(f"{name}=1.17.8-1" for name in four)) == dict.fromkeys(four, "1.17.8-1")


def test_a_mix_on_debian_is_installable(broken: Callable[..., tuple[Apt, Served]]) -> None:
    """Kernel packages of one version, userspace of another: apt sees nothing wrong."""
    apt, _ = broken(
        DEBIAN, mix=True, only=of((*DEBIAN_CLOSURE, "nvidia-fabricmanager"), UPSTREAM, "590.48.01")
    )
    assert apt.run("apt-get", "update").returncode == 0
    taken = apt.simulate("nvidia-kernel-open-dkms=580.95.05-1", "firmware-nvidia-gsp=580.95.05-1",
                         "nvidia-kernel-support=580.95.05-1", "nvidia-driver-cuda")  # fmt: skip
    assert taken["nvidia-kernel-open-dkms"] == "580.95.05-1"
    assert taken["libcuda1"] == taken["nvidia-driver-cuda"] == "590.48.01-1"
    refused = apt.try_install("nvidia-fabricmanager=580.95.05-1")
    assert "Version '580.95.05-1' for 'nvidia-fabricmanager' was not found" in refused.stderr


def test_a_version_that_vanished(broken: Callable[..., tuple[Apt, Served]]) -> None:
    apt, _ = broken(
        UBUNTU,
        only=of((*UBUNTU_CLOSURE, "nvidia-imex", "nvidia-driver-pinning*"), UPSTREAM, "580.105.08"),
        without=("nvidia-firmware-580=580.95.05-0ubuntu1", "nvidia-imex"),
        pinning=False,
    )
    assert apt.run("apt-get", "update").returncode == 0
    apt.prefer(PIN)
    refused = apt.try_install(*UBUNTU_COMPUTE)
    assert refused.returncode == 100
    assert "nvidia-firmware-580 (= 580.95.05-0ubuntu1)" in refused.stdout
    assert apt.candidate("nvidia-imex") is None
    assert apt.candidate("nvidia-driver-pinning-580.95.05") is None


def test_nobody_signed(broken: Callable[..., tuple[Apt, Served]]) -> None:
    apt, _ = broken(TOOLKIT, signed="nobody")
    done = apt.run("apt-get", "update")
    assert done.returncode == 100
    assert "is not signed" in done.stderr
    assert apt.candidate("nvidia-container-toolkit") is None


def test_somebody_else_signed(broken: Callable[..., tuple[Apt, Served]]) -> None:
    apt, _ = broken(TOOLKIT, signed="foreign")
    done = apt.run("apt-get", "update")
    assert done.returncode == 100
    assert "NO_PUBKEY" in done.stderr
    assert apt.candidate("nvidia-container-toolkit") is None


def test_a_wrong_digest(broken: Callable[..., tuple[Apt, Served]]) -> None:
    apt, _ = broken(TOOLKIT, wrong_sha256=("nvidia-container-toolkit=1.18.1-1",))
    assert apt.run("apt-get", "update").returncode == 0
    done = apt.run("apt-get", "download", "nvidia-container-toolkit=1.18.1-1")
    assert done.returncode == 100
    assert "Hash Sum mismatch" in done.stderr
    assert not list(apt.root.glob("*.deb"))
    assert apt.run("apt-get", "download", "nvidia-container-toolkit=1.18.0-1").returncode == 0
    assert [deb.name for deb in apt.root.glob("*.deb")] == ["nvidia-container-toolkit_1.18.0-1_amd64.deb"]


def test_an_index_that_was_changed_is_refused(broken: Callable[..., tuple[Apt, Served]]) -> None:
    apt, served = broken(TOOLKIT)
    for name in ("Packages", "Packages.gz"):
        index = served.fixture.root / TOOLKIT / name
        index.write_bytes(index.read_bytes() + b"\n")
    done = apt.run("apt-get", "update")
    assert done.returncode == 100
    assert "File has unexpected size" in done.stderr


def test_arm64_has_no_libnvsdm(broken: Callable[..., tuple[Apt, Served]]) -> None:
    arm = "compute/cuda/repos/ubuntu2404/sbsa"
    _, served = broken(arm, only=("libnvsdm", "nvidia-fabricmanager"))
    root = served.fixture.root
    apt = make(root.parent / "arm", [served.uri(arm)], served.fixture.keyring, arch="arm64")
    assert apt.run("apt-get", "update").returncode == 0
    assert apt.candidate("libnvsdm") is None
    assert apt.candidate("nvidia-fabricmanager") == "590.48.01-1"
