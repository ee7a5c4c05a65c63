"""The packages: that each says what it is, and what is in them."""

from __future__ import annotations

import ctypes
import gzip
import hashlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from images.errors import UserError
from tests import apt_fixture, gpu_sim
from tests.apt_fixture import Options, Served, catalog, keys, libraries
from tests.apt_fixture.conftest import DEBIAN, TOOLKIT, UBUNTU
from validation import driver
from validation.nvidia_smi import messages

ALL = (UBUNTU, DEBIAN, TOOLKIT)


@pytest.fixture(scope="module")
def ubuntu_root(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the compute packages for Ubuntu put on a machine."""
    return unpack(
        served, UBUNTU, tmp_path_factory.mktemp("root"),
        ["libnvidia-compute-580", "nvidia-utils-580", "nvidia-firmware-580", "nvidia-kernel-common-580",
         "nvidia-persistenced", "libnvidia-cfg1-580"], "580.95.05-0ubuntu1",
    )  # fmt: skip


def unpack(served: Served, path: str, root: Path, names: list[str], version: str) -> Path:
    for name in names:
        subprocess.run(["dpkg-deb", "-x", served.fixture.deb(path, f"{name}_{version}_"), root], check=True)
    return root


def stanzas(served: Served, path: str) -> Iterator[dict[str, str]]:
    text = gzip.decompress((served.fixture.root / path / "Packages.gz").read_bytes()).decode()
    for stanza in text.split("\n\n"):
        yield dict(re.findall(r"^(\S+): (.*)", stanza, re.M))


@pytest.mark.parametrize("path", ALL)
def test_every_package_can_be_recognised(served: Served, path: str) -> None:
    release = (served.fixture.root / path / "Release").read_text()
    assert "Origin: gpu-image fixture\n" in release
    names = set()
    for stanza in stanzas(served, path):
        assert stanza["X-Fixture"] == apt_fixture.NOTE, stanza["Package"]
        names.add((stanza["Package"], stanza["Version"]))
    assert len(names) == served.fixture.repositories[path]


@pytest.mark.parametrize("path", ALL)
def test_index_and_files_agree(served: Served, path: str) -> None:
    folder = served.fixture.root / path
    files = {deb.name for deb in folder.glob("*.deb")}
    for stanza in stanzas(served, path):
        deb = folder / stanza["Filename"]
        content = deb.read_bytes()
        assert hashlib.sha256(content).hexdigest() == stanza["SHA256"]
        assert len(content) == int(stanza["Size"])
        files.remove(deb.name)
    assert not files
    assert gzip.decompress((folder / "Packages.gz").read_bytes()) == (folder / "Packages").read_bytes()


def test_the_keyring_package(served: Served, tmp_path: Path) -> None:
    """It has the key that signed, a source that is the vendor's, and a digest that is known."""
    for path, digest in served.fixture.keyring_debs.items():
        deb = served.fixture.root / path / "cuda-keyring_1.1-1_all.deb"
        assert hashlib.sha256(deb.read_bytes()).hexdigest() == digest
        root = tmp_path / Path(path).parent.name
        subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
        keyring = root / "usr/share/keyrings/cuda-archive-keyring.gpg"
        assert keyring.read_bytes() == served.fixture.keyring.read_bytes()
        (source,) = (root / "etc/apt/sources.list.d").iterdir()
        assert f"https://developer.download.nvidia.com/{path}/ /" in source.read_text()
        subprocess.run(["gpgv", "--keyring", keyring, served.fixture.root / path / "InRelease"],
                       check=True, capture_output=True)  # fmt: skip


def test_the_changelog_says_what_it_is(ubuntu_root: Path) -> None:
    text = (ubuntu_root / "usr/share/doc/libnvidia-compute-580/changelog.Debian").read_text()
    assert text.startswith("nvidia-graphics-drivers-580 (580.95.05-0ubuntu1) ")
    assert "not NVIDIA's software" in text


def test_libraries_have_their_version_and_links(ubuntu_root: Path) -> None:
    """As the project's own reader of driver versions sees it."""
    for soname in (driver.LIBCUDA, driver.NVML):
        path = driver.library(soname, str(ubuntu_root))
        assert driver.library_version(path) == "580.95.05", soname


@pytest.mark.skipif(libraries.Libraries.compiler("amd64") is None, reason="no C compiler for amd64")
def test_libraries_answer_as_without_a_driver(ubuntu_root: Path) -> None:
    folder = ubuntu_root / "usr/lib/x86_64-linux-gnu"
    cuda = ctypes.CDLL(str(folder / "libcuda.so.1"))
    assert cuda.cuInit(0) == 100  # CUDA_ERROR_NO_DEVICE
    version = ctypes.c_int()
    assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
    assert version.value == 13000  # CUDA 13.0 came with 580.95.05
    assert ctypes.CDLL(str(folder / "libnvidia-ml.so.1")).nvmlInit_v2() == 9  # NVML_ERROR_DRIVER_NOT_LOADED
    for library, soname in (
        ("libnvidia-cfg.so.580.95.05", "libnvidia-cfg.so.1"),
        ("libcuda.so.580.95.05", "libcuda.so.1"),
    ):
        dynamic = subprocess.run(
            ["objdump", "-p", folder / library], capture_output=True, text=True, check=True
        )
        assert re.search(r"SONAME +(\S+)", dynamic.stdout)[1] == soname  # type: ignore[index]


def test_without_a_compiler_there_is_only_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "there-is-no-such-compiler")
    made = libraries.Libraries().get(
        "libcuda.so.1", "native/libcuda.c", arch="amd64", variables={}, place="x"
    )
    assert made[:4] == b"\x7fELF"
    assert made[18:20] == b"\x3e\x00"  # EM_X86_64
    assert libraries.header_only("arm64")[18:20] == b"\xb7\x00"  # EM_AARCH64


def test_nvidia_smi_finds_no_driver(ubuntu_root: Path) -> None:
    done = subprocess.run([ubuntu_root / "usr/bin/nvidia-smi"], capture_output=True, text=True, check=False)
    assert done.returncode == 9
    (message,) = [found for line in done.stdout.splitlines() if line and (found := messages.explain(line))]
    assert message.driver


def test_units_and_their_pitfalls(served: Served, ubuntu_root: Path, tmp_path: Path) -> None:
    units = "usr/lib/systemd/system"
    persistenced = (ubuntu_root / units / "nvidia-persistenced.service").read_text()
    assert "WantedBy=multi-user.target" in persistenced
    assert "Condition" not in persistenced
    done = subprocess.run(
        [ubuntu_root / "usr/bin/nvidia-persistenced"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    root = unpack(served, UBUNTU, tmp_path, ["nvidia-fabricmanager", "nvidia-imex"], "580.95.05-1")
    unpack(served, UBUNTU, tmp_path, ["datacenter-gpu-manager-4-core"], "4.4.1-1")
    manager = (root / units / "nvidia-fabricmanager.service").read_text()
    assert re.search(r"^After=.*multi-user\.target", manager, re.M)
    assert "WantedBy=multi-user.target" in manager
    assert (root / units / "nvidia-imex.service").exists()
    assert (root / units / "nvidia-dcgm.service").exists()
    for program, code in (("nv-fabricmanager", 1), ("nvidia-imex", 1), ("dcgmi", 255)):
        assert (
            subprocess.run([root / "usr/bin" / program], capture_output=True, check=False).returncode == code
        )


@pytest.mark.parametrize(
    ("gpus", "version", "code", "said"),
    [
        (8, "580.95.05", 0, ""),
        (8, "590.48.01", 1, "interface version 590.48.01 don't match with driver version 580.95.05"),
        (1, "580.95.05", 1, "NV_WARN_NOTHING_TO_DO"),
    ],
)
def test_daemons_on_a_simulated_machine(
    served: Served, tmp_path: Path, gpus: int, version: str, code: int, said: str
) -> None:
    """With the simulator's files over the packages' the daemons find a driver, and NVSwitches if any."""
    root = unpack(served, UBUNTU, tmp_path, ["nvidia-persistenced"], "580.95.05-0ubuntu1")
    unpack(served, UBUNTU, root, ["nvidia-fabricmanager"], f"{version}-1")
    gpu_sim.lay_out(root, gpu_sim.Scenario(gpus=gpus, model="h100-sxm", driver="580.95.05", dcgm="4.4.1"))
    started = []
    try:
        for program in ("nvidia-persistenced", "nv-fabricmanager"):
            done = subprocess.run([root / "usr/bin" / program], capture_output=True, text=True, check=False)
            started += root.glob("run/*/*.pid")
            assert done.returncode == (code if program == "nv-fabricmanager" else 0), done.stderr
        assert said in done.stderr
        assert len(set(started)) == 2 - code
    finally:
        for pid in set(started):
            os.kill(int(pid.read_text()), signal.SIGTERM)


def test_the_simulator_brings_no_second_version(
    served: Served, tmp_path: Path, gpu_libraries: Mapping[str, Path]
) -> None:
    names = ["libnvidia-compute-580", "nvidia-utils-580"]
    root = unpack(served, UBUNTU, tmp_path, names, "580.95.05-0ubuntu1")
    scenario = gpu_sim.Scenario(driver="580.95.05", dcgm="4.4.1")
    gpu_sim.lay_out(root, scenario, gpu_libraries)
    found = {path.name for path in root.rglob("*.so.*") if re.match(r"lib(cuda|nvidia-ml)\.", path.name)}
    assert found == {
        f"{name}.so.{end}" for name in ("libcuda", "libnvidia-ml") for end in ("1", "580.95.05")
    }
    done = subprocess.run([root / "usr/bin/nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert gpu_sim.UUID_PREFIX in done.stdout


def test_which_units_a_package_enables(served: Served, tmp_path: Path) -> None:
    def script(name: str, version: str) -> str:
        deb = served.fixture.deb(UBUNTU, f"{name}_{version}_")
        out = tmp_path / name
        subprocess.run(["dpkg-deb", "-e", deb, out], check=True)
        return (out / "postinst").read_text() if (out / "postinst").exists() else ""

    assert "deb-systemd-helper enable 'nvidia-persistenced.service'" in script(
        "nvidia-persistenced", "580.95.05-0ubuntu1"
    )
    assert "enable" not in script("nvidia-fabricmanager", "580.95.05-1")
    assert "systemd" not in script("datacenter-gpu-manager-4-core", "4.4.1-1")


def test_module_sources_lie_where_dkms_looks(served: Served, tmp_path: Path) -> None:
    names = ["nvidia-dkms-580-open", "nvidia-kernel-source-580-open"]
    root = unpack(served, UBUNTU, tmp_path / "ubuntu", names, "580.95.05-0ubuntu1")
    source = root / "usr/src/nvidia-580.95.05"
    assert 'PACKAGE_VERSION="580.95.05"' in (source / "dkms.conf").read_text()
    assert 'MODULE_LICENSE("Dual MIT/GPL")' in (source / "nvidia/nv.c").read_text()
    root = unpack(served, DEBIAN, tmp_path / "debian", ["nvidia-kernel-dkms"], "580.95.05-1")
    source = root / "usr/src/nvidia-current-580.95.05"
    assert 'DEST_MODULE_NAME[0]="$PACKAGE_NAME"' in (source / "dkms.conf").read_text()
    assert 'MODULE_LICENSE("NVIDIA")' in (source / "nvidia/nv.c").read_text()
    assert '"580.95.05"' in (source / "common/fixture.h").read_text()


def test_configuration_is_conffiles(served: Served, tmp_path: Path) -> None:
    deb = served.fixture.deb(DEBIAN, "nvidia-kernel-support_580.95.05-1_")
    subprocess.run(["dpkg-deb", "-e", deb, tmp_path / "control"], check=True)
    listed = (tmp_path / "control/conffiles").read_text().split()
    assert listed == ["/etc/modprobe.d/nvidia.conf", "/etc/modprobe.d/nvidia-blacklists-nouveau.conf"]


def test_the_same_input_gives_the_same_packages(served: Served, tmp_path: Path) -> None:
    again = apt_fixture.build(tmp_path / "again", Options(sets=("toolkit",), archs=("amd64",)))
    first, second = (
        {deb.name: deb.read_bytes() for deb in (root / TOOLKIT).glob("*.deb")}
        for root in (served.fixture.root, again.root)
    )
    assert first == second
    assert again.fingerprint != served.fixture.fingerprint


def test_the_catalog() -> None:
    """Every package has its source; both architectures and an older driver are there."""
    found = catalog.packages()
    assert all(package.evidence for package in found)
    drivers = {(p.repository, p.version) for p in found if p.name in ("libcuda1", "libnvidia-compute-580")}
    assert drivers == {
        *(("ubuntu2404", f"{version}-0ubuntu1") for version in ("580.82.07", "580.95.05", "580.105.08")),
        *(("debian13", f"{version}-1") for version in ("580.82.07", "580.95.05", "580.105.08", "590.48.01")),
    }
    assert {p.archs for p in found if p.name == "libnvsdm"} == {("amd64",)}
    assert {p.version for p in found if p.name == "datacenter-gpu-manager-4-core"} >= {"1:4.4.1-1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Package: x", "own.control:3: no Evidence"),
        ("Package: x|Evidence: e", "own.control:3: no Versions, Description"),
        ("Package: x|Versions: @y|END", "own.control:4: no set y"),
        ("Package: x|Versions: 1|END", "own.control:4: 1 is no version with a revision"),
        ("Package: x|Versions: 1-1|Depend: y|END", "own.control:5: unknown field Depend"),
        ("Package: x|Versions: 1-1|Depends: y${z}|END", "own.control:5: ${z} is not defined"),
        ("Package: x|Versions: 1-1|Files:| put /x|END", "own.control:6: Files knows no 'put'"),
        ("Package: x|Versions: 1-1|Files:| file /x|END", "own.control:6: file needs 3 operands"),
        ("Package: x|Package: y", "own.control:4: Package stands twice"),
        ("Package x", "own.control:3: not FIELD: VALUE"),
        (" x", "own.control:3: a continued line without a field"),
        ("Package: x|Kind: y|Versions: 1-1|END", "own.control:4: Kind 'y' is none of"),
        ("Package: x|Versions: 1-1 in=z|END", "own.control:4: repositories.txt has no z"),
        ("Package: x x|Versions: 1-1|END", "own.control:3: x 1-1 is also at own.control:3"),
    ],
)
def test_mistakes_in_the_catalog(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "repositories.txt").write_text("toolkit somewhere amd64 A label\n")
    stanza = text.replace("END", "Description: d|Evidence: e").replace("|", "\n")
    (tmp_path / "own.control").write_text(f"Repository: toolkit\n\n{stanza}\n")
    with pytest.raises(UserError) as caught:
        catalog.packages(tmp_path)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("file /x 0644 etc/nothing", "no file etc/nothing below files/"),
        ("file /x rw etc/gsp", "rw is no mode"),
        ("modules /usr/src/x flavour=both", "flavour=both is none of open, proprietary"),
        ("unit nothing.service", "no file units/nothing.service below files/"),
    ],
)
def test_mistakes_in_contents(tmp_path: Path, line: str, message: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "repositories.txt").write_text("toolkit somewhere amd64 A label\n")
    (data / "own.control").write_text(
        f"Repository: toolkit\n\nPackage: x\nVersions: 1-1\nDescription: d\nEvidence: e\nFiles:\n {line}\n"
    )
    with pytest.raises(UserError, match=f"own.control:8: {re.escape(message)}"):
        apt_fixture.build(tmp_path / "out", Options(archs=("amd64",)), data=data)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_adding_a_package_needs_no_code(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "repositories.txt").write_text("toolkit somewhere amd64 A label\n")
    (data / "own.control").write_text(
        "Repository: toolkit\n\nPackage: libnew\nVersions: 2:1.0-1 2:1.1-1\nDepends: libc6\n"
        "Description: new\nEvidence: here\nFiles:\n lib libnew.so.1\n"
    )
    fixture = apt_fixture.build(tmp_path / "out", Options(archs=("amd64",)), data=data)
    assert fixture.repositories == {"somewhere": 2}
    command = ["dpkg-deb", "-f", fixture.deb("somewhere", "libnew_1.1-1"), "Version", "Depends"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout == "Version: 2:1.1-1\nDepends: libc6\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(without=("nvidia-nothing",)), "no package fits 'nvidia-nothing'"),
        (Options(wrong_sha256=("nvidia-open=1",)), "no package fits 'nvidia-open=1'"),
        (Options(sets=("fedora42",)), "no repository for fedora42"),
    ],
)
def test_options_that_mean_nothing(tmp_path: Path, options: Options, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        apt_fixture.build(tmp_path / "out", options)


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UserError, match="exists"):
        apt_fixture.build(tmp_path)
    assert (tmp_path / "mine").read_text() == "mine"


def test_modules_that_do_not_compile(tmp_path: Path) -> None:
    options = Options(
        sets=("ubuntu2404",), archs=("amd64",), only=("nvidia-kernel-source-580*",), compiles=False
    )
    fixture = apt_fixture.build(tmp_path / "out", options)
    deb = fixture.deb(UBUNTU, "nvidia-kernel-source-580-open_580.95.05-0ubuntu1_")
    subprocess.run(["dpkg-deb", "-x", deb, tmp_path / "root"], check=True)
    assert "ioremap_nocache(" in (tmp_path / "root/usr/src/nvidia-580.95.05/nvidia/nv.c").read_text()


def test_a_key_goes_with_its_context() -> None:
    with pytest.raises(KeyboardInterrupt), keys.generate() as key:
        assert key.home.exists()
        assert key.public and "PGP PUBLIC KEY" in key.armored
        raise KeyboardInterrupt
    assert not key.home.exists()


def test_without_the_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="not installed: dpkg-deb, gpg, gpgconf"):
        apt_fixture.build(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_where_the_keyring_package_points(tmp_path: Path) -> None:
    options = Options(
        sets=("debian13",), archs=("arm64",), only=("cuda-keyring",), site="http://127.0.0.1:8/"
    )
    fixture = apt_fixture.build(tmp_path / "out", options)
    (path,) = fixture.repositories
    subprocess.run(["dpkg-deb", "-x", fixture.deb(path, "cuda-keyring"), tmp_path / "root"], check=True)
    source = (tmp_path / "root/etc/apt/sources.list.d/cuda-debian13-sbsa.list").read_text()
    assert source == (
        "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] "
        "http://127.0.0.1:8/compute/cuda/repos/debian13/sbsa/ /\n"
    )
