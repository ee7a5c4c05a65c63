from __future__ import annotations

import dataclasses
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images import archive
from images.errors import ExitCode, UserError
from tests.images import ubuntu_archive
from tests.images.ubuntu_archive import Archive

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
@index Suite: trixie-security
@index Date: Sat, 28 Nov 2026 02:53:01 UTC
@index Digest: bfacad4ca61899ce20d4a0d439f29339f66541561b67506364efb88e27dee870
@index Suite: trixie
@index Date: Sat, 21 Nov 2026 09:15:44 UTC
I: success in 5.3197 seconds
"""


@pytest.fixture(scope="module")
def ubuntu() -> Iterator[Archive]:
    """An archive like Ubuntu's, on loopback. Without the programs that sign it there is none."""
    if missing := [name for name in ("gpg", "gpg-agent", "gpgconf") if not shutil.which(name)]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    with ubuntu_archive.served() as served:
        yield served


@pytest.fixture
def asked(ubuntu: Archive, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of ``resolve`` for noble on that archive."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return {
        "distribution": "ubuntu",
        "suite": "noble",
        "arch": "amd64",
        "kernel_package": "linux-aws-lts-24.04",
        "mirror": ubuntu.url,
        "keyring": ubuntu.keyring,
    }


def versions(packages: tuple[archive.Package, ...]) -> dict[str, str]:
    return {package.name: package.version for package in packages}


def test_reads_packages_as_the_archive_has_them() -> None:
    image, meta = archive.read_packages(OUTPUT)
    assert image == archive.Package(
        name="linux-image-6.12.118+deb13-cloud-amd64",
        version="6.12.118-1",
        sha256="07f23ba1de88377d700e1e2f5b2ee495ff89b0d0bb73fdbd3eac8f6b27609b9a",
        size=34699820,
        file=FILE,
    )
    assert (meta.name, meta.size) == ("linux-image-cloud-amd64", 1496)


def test_reads_indexes() -> None:
    assert archive.read_indexes(OUTPUT) == (
        archive.Index(
            "trixie",
            "Sat, 21 Nov 2026 09:15:44 UTC",
            "bfacad4ca61899ce20d4a0d439f29339f66541561b67506364efb88e27dee870",
        ),
        archive.Index(
            "trixie-security",
            "Sat, 28 Nov 2026 02:53:01 UTC",
            "928ed9a0128b0395be1f23a4b1379562d1ccd08ac2a5a24ed445d182be1f7608",
        ),
    )


@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_ubuntu_meta_image_and_modules_of_one_abi(asked: dict[str, Any], arch: str) -> None:
    resolved = archive.resolve(**{**asked, "arch": arch})
    release, packages = archive.kernel_of(resolved, "linux-aws-lts-24.04", series="6.8")
    assert release == "6.8.0-1036-aws"
    assert versions(packages) == dict.fromkeys(
        [
            "linux-aws-lts-24.04",
            "linux-headers-aws-lts-24.04",
            "linux-image-6.8.0-1036-aws",
            "linux-image-aws-lts-24.04",
            "linux-modules-6.8.0-1036-aws",
        ],
        "6.8.0-1036.38",
    )
    image = next(package for package in packages if package.name == "linux-image-6.8.0-1036-aws")
    assert image.file == f"pool/main/l/linux/linux-image-6.8.0-1036-aws_6.8.0-1036.38_{arch}.deb"
    assert (image.size, image.sha256) == (ubuntu_archive.SIZE, ubuntu_archive.digest_of(image.file))
    headers = set(versions(resolved.packages)) - set(versions(packages))
    assert headers == {"linux-headers-6.8.0-1036-aws", "linux-aws-headers-6.8.0-1036"}
    # By pocket, though the Codename in all three is noble.
    assert [index.suite for index in resolved.indexes] == ["noble", "noble-security", "noble-updates"]
    assert len({index.sha256 for index in resolved.indexes}) == 3


def test_modules_extra_where_the_meta_has_them(asked: dict[str, Any]) -> None:
    resolved = archive.resolve(**{**asked, "kernel_package": "linux-generic"})
    release, packages = archive.kernel_of(resolved, "linux-generic", series="6.8")
    assert release == "6.8.0-79-generic"
    assert "linux-modules-extra-6.8.0-79-generic" in versions(packages)
    with pytest.raises(UserError, match=r"no package linux-modules-extra-6\.8\.0-1008-aws"):
        archive.resolve(**{**asked, "kernel_package": "linux-generic", "release": "6.8.0-1008-aws"})


def test_a_pinned_kernel_is_an_older_one_without_metas(asked: dict[str, Any]) -> None:
    resolved = archive.resolve(**asked, release="6.8.0-1008-aws")
    release, packages = archive.kernel_of(
        resolved, "linux-aws-lts-24.04", series="6.8", release="6.8.0-1008-aws"
    )
    assert release == "6.8.0-1008-aws"
    assert versions(packages) == dict.fromkeys(
        ["linux-image-6.8.0-1008-aws", "linux-modules-6.8.0-1008-aws"], "6.8.0-1008.8"
    )


def test_other_packages_come_along_in_the_version_asked_for(asked: dict[str, Any]) -> None:
    resolved = archive.resolve(**asked, packages=["linux-modules-6.8.0-1008-aws=6.8.0-1008.8"])
    assert versions(resolved.packages)["linux-modules-6.8.0-1008-aws"] == "6.8.0-1008.8"
    with pytest.raises(UserError, match=r"no longer has linux-aws-headers-6.8.0-1008 1\.0") as caught:
        archive.resolve(**asked, packages=["linux-aws-headers-6.8.0-1008=1.0"])
    assert caught.value.hint == archive.SPEC_HINT


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"kernel_package": "linux-nope"}, "has no package linux-nope", "kernel_package"),
        ({"release": "6.8.0-1-aws"}, "has no package linux-image-6.8.0-1-aws", "kernel.release"),
        ({"suite": "nosuch"}, "has no suite nosuch", "os.codename"),
        ({"kernel_package": "linux-broken"}, "linux-broken needs not-in-the-archive", "kernel_package"),
        ({"arch": "riscv64"}, "nothing for riscv64 in suite noble", "architecture"),
        ({"components": ["nosuch"]}, "nothing for amd64 in suite noble", "component"),
    ],
)
def test_what_the_archive_does_not_have(
    asked: dict[str, Any], change: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        archive.resolve(**{**asked, **change})
    assert hint in (caught.value.hint or "")
    assert caught.value.code == ExitCode.USAGE


def test_an_archive_that_another_key_signed(asked: dict[str, Any], ubuntu: Archive) -> None:
    with pytest.raises(UserError, match=f"no key of the keyring .*: {ubuntu.url} noble") as caught:
        archive.resolve(**{**asked, "keyring": ubuntu.other_keyring})
    assert "keyring package" in (caught.value.hint or "")


def test_an_archive_that_does_not_answer(asked: dict[str, Any]) -> None:
    with socket.socket() as bound:  # bound and not listening: refused
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(UserError, match="no network") as caught:
            archive.resolve(**{**asked, "mirror": f"http://127.0.0.1:{bound.getsockname()[1]}/"})
    assert "http_proxy" in (caught.value.hint or "")
    assert caught.value.code == ExitCode.FAILED


@pytest.mark.parametrize(
    ("distribution", "hint"),
    [("debian", "apt install debian-archive-keyring"), ("ubuntu", "apt install ubuntu-keyring")],
)
def test_a_missing_keyring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distribution: str, hint: str
) -> None:
    absent = dataclasses.replace(archive.DISTRIBUTIONS[distribution], keyring=tmp_path / "absent.gpg")
    monkeypatch.setattr(archive, "DISTRIBUTIONS", {distribution: absent})
    with pytest.raises(UserError, match=f"keyring of {distribution}'s archive") as caught:
        archive.resolve(distribution=distribution, suite="any", arch="amd64", kernel_package="any")
    assert hint in (caught.value.hint or "")


def test_ubuntu_serves_other_architectures_from_another_host() -> None:
    # As in mmdebstrap(1) and in the sources.list of Ubuntu's own images.
    def lines(arch: str, mirror: str | None = None) -> list[str]:
        distribution = archive.DISTRIBUTIONS["ubuntu"]
        return archive.sources(
            distribution, suite="noble", arch=arch, components=("main", "restricted"), mirror=mirror
        )

    assert lines("amd64") == [
        "deb http://archive.ubuntu.com/ubuntu noble main restricted",
        "deb http://archive.ubuntu.com/ubuntu noble-updates main restricted",
        "deb http://archive.ubuntu.com/ubuntu noble-security main restricted",
    ]
    assert lines("arm64")[0] == "deb http://ports.ubuntu.com/ubuntu-ports noble main restricted"
    assert lines("arm64", "http://mirror.example/ubuntu/")[2] == (
        "deb http://mirror.example/ubuntu noble-security main restricted"
    )


def test_a_mirror_of_debian_leaves_the_security_archive(tmp_path: Path) -> None:
    apt = tmp_path / "etc/apt"
    apt.mkdir(parents=True)
    # What mmdebstrap writes for trixie, with other hosts.
    (apt / "sources.list").write_text(
        "deb http://deb.example/debian trixie main\n"
        "deb http://deb.example/debian trixie-updates main\n"
        "deb http://security.example/debian-security trixie-security main\n"
    )
    environment = {"MIRROR": "https://mirror.example/pub/debian", "PATH": "/usr/bin:/bin"}
    subprocess.run(["sh", "-c", archive.MIRROR_HOOK, "sh", tmp_path], check=True, env=environment)
    assert (apt / "sources.list").read_text() == (
        "deb https://mirror.example/pub/debian trixie main\n"
        "deb https://mirror.example/pub/debian trixie-updates main\n"
        "deb http://security.example/debian-security trixie-security main\n"
    )


def resolved_with(*names: str) -> archive.Resolved:
    return archive.Resolved(tuple(archive.Package(name, "1", "0" * 64, 1, "pool/x") for name in names), ())


def test_debian_kernel_and_its_meta() -> None:
    resolved = archive.Resolved(archive.read_packages(OUTPUT), archive.read_indexes(OUTPUT))
    release, packages = archive.kernel_of(resolved, "linux-image-cloud-amd64", series="6.12")
    assert release == "6.12.118+deb13-cloud-amd64"
    assert [package.name for package in packages] == [f"linux-image-{release}", "linux-image-cloud-amd64"]
    pinned = archive.kernel_of(resolved, "linux-image-cloud-amd64", series="6.12", release=release)
    assert pinned == (release, packages[:1])


@pytest.mark.parametrize(
    ("resolved", "release", "message", "hint"),
    [
        (
            resolved_with("linux-aws", "linux-image-6.8.0-1-aws", "linux-image-6.8.0-2-aws"),
            None,
            "does not stand for one kernel: 6.8.0-1-aws, 6.8.0-2-aws",
            "kernel.release pins one",
        ),
        (
            resolved_with("linux-aws"),
            None,
            "does not stand for one kernel: it pulls in none",
            "meta package",
        ),
        (
            resolved_with("linux-aws", "linux-modules-6.8.0-1-aws"),
            None,
            "does not stand for one kernel",
            "meta package",
        ),
        (
            resolved_with("linux-aws", "linux-image-6.8.0-1-aws"),
            "6.8.0-2-aws",
            "does not stand for one kernel",
            "kernel.release",
        ),
        (
            resolved_with("linux-aws", "linux-image-6.14.0-1013-aws"),
            None,
            r"^spec\.yaml:7: the spec asks for kernel 6\.8; the archive's linux-aws is 6\.14\.0-1013-aws",
            "change kernel.series",
        ),
        (
            resolved_with("linux-aws", "linux-image-6.80.0-1-aws"),
            None,
            "the spec asks for kernel 6.8;",
            "change kernel.series",
        ),
    ],
)
def test_what_is_not_one_kernel_of_the_series(
    resolved: archive.Resolved, release: str | None, message: str, hint: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        archive.kernel_of(resolved, "linux-aws", series="6.8", release=release, where="spec.yaml:7")
    assert hint in (caught.value.hint or "")


def test_two_flavours_are_two_kernels(asked: dict[str, Any]) -> None:
    """What apt itself answers: the rolling flavour beside the one of the series."""
    resolved = archive.resolve(**asked, packages=["linux-aws"])
    with pytest.raises(UserError, match=r"6\.14\.0-1013-aws, 6\.8\.0-1036-aws"):
        archive.kernel_of(resolved, "linux-aws-lts-24.04", series="6.8")


@pytest.mark.full
@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_debian_real_archive(arch: str) -> None:
    """Over the network, and for the architecture that this machine has not."""
    flavour = f"linux-image-cloud-{arch}"
    resolved = archive.resolve(distribution="debian", suite="trixie", arch=arch, kernel_package=flavour)
    release, packages = archive.kernel_of(resolved, flavour, series="6.12")
    assert release.startswith("6.12.")
    assert release.endswith(f"-cloud-{arch}")
    for package in packages:
        assert package.file.endswith(f"/{package.name}_{package.version}_{arch}.deb")
    assert [index.suite for index in resolved.indexes] == ["trixie", "trixie-security", "trixie-updates"]
