"""The NVIDIA driver on this machine: which module is loaded, and which user-space libraries are there.

The two have to be of one version: the module refuses the calls of other libraries ("API mismatch"), which
happens after an upgrade without a reboot (https://github.com/NVIDIA/ubuntu-packaging-nvidia-driver/issues/3).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

MODULE = "sys/module/nvidia"
PROC = "proc/driver/nvidia/version"
NVML = "libnvidia-ml.so.1"  # what nvidia-smi and DCGM load
LIBCUDA = "libcuda.so.1"  # what every CUDA program loads


def module_loaded(root: str = "/") -> bool:
    """The kernel module ``nvidia`` is loaded."""
    return os.path.isdir(os.path.join(root, MODULE)) or os.path.exists(os.path.join(root, PROC))


def module_version(root: str = "/") -> str | None:
    """The version of the loaded module, ``580.95.05``; None when none is loaded or it does not say."""
    version = _text(os.path.join(root, MODULE, "version")).strip()
    if not version:
        # "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (...)"
        found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", _text(os.path.join(root, PROC)))
        version = found[1] if found else ""
    return version or None


def library(soname: str, root: str = "/") -> str | None:
    """The file that a program gets which loads ``soname``; None when there is none.

    Looks where ldconfig looks (ldconfig(8)), and follows links as if ``root`` were the machine's root.
    """
    for folder in _library_folders(root):
        path = _resolved(os.path.join(folder, soname), root)
        if path and not _of_another_architecture(path):
            return path
    return None


def library_version(path: str | None) -> str | None:
    """The version in a driver library's file name, ``libcuda.so.580.95.05``; None when it has none."""
    found = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", path or "")
    return found[1] if found else None


def _library_folders(root: str) -> Iterator[str]:
    multiarch = f"{os.uname().machine}-linux-gnu"
    configured = list(_configured(os.path.join(root, "etc/ld.so.conf"), root, depth=0))
    usual = [f"lib/{multiarch}", f"usr/lib/{multiarch}", "lib64", "usr/lib64", "lib", "usr/lib"]
    seen = set()
    for folder in [*configured, *(os.path.join(root, name) for name in usual)]:
        if folder not in seen:
            seen.add(folder)
            yield folder


def _configured(path: str, root: str, *, depth: int) -> Iterator[str]:
    """The folders in an ld.so.conf, with what it includes."""
    for line in _text(path).splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("include ") and depth < 5:
            for pattern in line.split()[1:]:
                for name in _matching(pattern, os.path.dirname(path), root):
                    yield from _configured(name, root, depth=depth + 1)
        elif line.startswith("/"):
            yield os.path.join(root, line.lstrip("/"))


def _matching(pattern: str, here: str, root: str) -> list[str]:
    """The files of an include line; of patterns it knows the usual, ``FOLDER/*SUFFIX``."""
    pattern = os.path.join(root, pattern.lstrip("/")) if pattern.startswith("/") else f"{here}/{pattern}"
    folder, name = os.path.split(pattern)
    if not name.startswith("*"):
        return [pattern]
    try:
        return [f"{folder}/{found}" for found in sorted(os.listdir(folder)) if found.endswith(name[1:])]
    except OSError:
        return []


def _resolved(path: str, root: str) -> str | None:
    for _ in range(40):  # as many as the kernel follows
        try:
            target = os.readlink(path)
        except OSError:  # no link
            return path if os.path.isfile(path) else None
        base = root if target.startswith("/") else os.path.dirname(path)
        path = os.path.join(base, target.lstrip("/"))
    return None


def _of_another_architecture(path: str) -> bool:
    """It is an ELF file of 32 bits on a 64-bit system, or the other way round."""
    try:
        with open(path, "rb") as file:
            head = file.read(5)
    except OSError:
        return False
    return head[:4] == b"\x7fELF" and head[4:] != (b"\x02" if sys.maxsize > 2**32 else b"\x01")


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""
