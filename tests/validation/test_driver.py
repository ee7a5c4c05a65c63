"""Which driver is there: the loaded module, and the libraries that a program would get."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from validation import driver

MULTIARCH = f"usr/lib/{os.uname().machine}-linux-gnu"
# /proc/driver/nvidia/version, as nv_procfs_read_version of the two kinds of module prints it.
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)
PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025\n"
    "GCC version:  gcc version 14.2.0 (Debian 14.2.0-19)\n"
)


def put(root: Path, path: str, content: str | bytes = "") -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def link(root: Path, path: str, target: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to(target)


def test_no_module(tmp_path: Path) -> None:
    assert not driver.module_loaded(str(tmp_path))
    assert driver.module_version(str(tmp_path)) is None


def test_the_modules_version(tmp_path: Path) -> None:
    put(tmp_path, "sys/module/nvidia/version", "580.95.05\n")
    assert driver.module_loaded(str(tmp_path))
    assert driver.module_version(str(tmp_path)) == "580.95.05"


@pytest.mark.parametrize(
    ("text", "version"), [(OPEN, "580.95.05"), (PROPRIETARY, "550.163.01"), ("", None), ("nonsense", None)]
)
def test_the_modules_version_from_proc(tmp_path: Path, text: str, version: str | None) -> None:
    put(tmp_path, "proc/driver/nvidia/version", text)
    assert driver.module_loaded(str(tmp_path))
    assert driver.module_version(str(tmp_path)) == version


def test_a_library_as_a_vendors_package_installs_it(tmp_path: Path) -> None:
    put(tmp_path, f"{MULTIARCH}/libnvidia-ml.so.580.95.05")
    link(tmp_path, f"{MULTIARCH}/libnvidia-ml.so.1", "libnvidia-ml.so.580.95.05")
    found = driver.library(driver.NVML, str(tmp_path))
    assert found == str(tmp_path / MULTIARCH / "libnvidia-ml.so.580.95.05")
    assert driver.library_version(found) == "580.95.05"
    assert driver.library(driver.LIBCUDA, str(tmp_path)) is None


def test_a_library_behind_debians_alternatives(tmp_path: Path) -> None:
    """Absolute links lead into the laid-out machine, not into ours."""
    alternative = "etc/alternatives/glx--libcuda.so.1"
    put(tmp_path, f"{MULTIARCH}/nvidia/current/libcuda.so.550.163.01")
    link(tmp_path, f"{MULTIARCH}/nvidia/current/libcuda.so.1", "libcuda.so.550.163.01")
    link(tmp_path, alternative, f"/{MULTIARCH}/nvidia/current/libcuda.so.1")
    link(tmp_path, f"{MULTIARCH}/libcuda.so.1", f"/{alternative}")
    found = driver.library(driver.LIBCUDA, str(tmp_path))
    assert found == str(tmp_path / MULTIARCH / "nvidia/current/libcuda.so.550.163.01")
    assert driver.library_version(found) == "550.163.01"


def test_what_ld_so_conf_names_comes_first(tmp_path: Path) -> None:
    put(tmp_path, f"{MULTIARCH}/libcuda.so.1")
    put(tmp_path, "etc/ld.so.conf", "# a comment\ninclude /etc/ld.so.conf.d/*.conf\n")
    put(tmp_path, "etc/ld.so.conf.d/10-site.conf", "/opt/nvidia/lib  # ours\n")
    put(tmp_path, "etc/ld.so.conf.d/ignored.txt", "/opt/wrong\n")
    put(tmp_path, "opt/wrong/libcuda.so.1")
    assert driver.library(driver.LIBCUDA, str(tmp_path)) == str(tmp_path / MULTIARCH / "libcuda.so.1")
    put(tmp_path, "opt/nvidia/lib/libcuda.so.1")
    assert driver.library(driver.LIBCUDA, str(tmp_path)) == str(tmp_path / "opt/nvidia/lib/libcuda.so.1")


def test_include_loops_end(tmp_path: Path) -> None:
    put(tmp_path, "etc/ld.so.conf", "include /etc/ld.so.conf\ninclude ld.so.conf\n")
    assert driver.library(driver.LIBCUDA, str(tmp_path)) is None


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    link(tmp_path, f"{MULTIARCH}/libcuda.so.1", "libcuda.so.580.95.05")
    link(tmp_path, "usr/lib/libcuda.so.1", "libcuda.so.1")
    assert driver.library(driver.LIBCUDA, str(tmp_path)) is None


def test_a_library_for_32_bits_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "lib64/libcuda.so.1", b"\x7fELF\x01\x01\x01")
    put(tmp_path, "usr/lib/libcuda.so.1", b"\x7fELF\x02\x01\x01")
    assert driver.library(driver.LIBCUDA, str(tmp_path)) == str(tmp_path / "usr/lib/libcuda.so.1")


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", "580.95.05"),
        ("/x/libnvidia-ml.so.470.256.02", "470.256.02"),
        ("/x/libcuda.so.390.157", "390.157"),
        ("/x/libcuda.so.1", None),
        ("/x/libcuda.so", None),
        (None, None),
    ],
)
def test_the_version_in_a_file_name(path: str | None, version: str | None) -> None:
    assert driver.library_version(path) == version
