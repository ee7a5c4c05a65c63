"""Compiles the two libraries."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.gpu_sim.tables import HERE

FLAGS = (
    "-std=c11",
    "-O1",
    "-g",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Werror",
)
SOURCES = {"libcuda": ("cuda.c", "memory.c"), "libnvidia-ml": ("nvml.c",)}


class NoCompiler(Exception):
    """There is no C compiler, or it has no C library to compile against."""


def compile_libraries(out: Path) -> dict[str, Path]:
    """Compiles both libraries into ``out`` and returns where each is, by its name without ``.so``.

    Needs cc and the C library's headers (Debian: gcc, libc6-dev); raises ``NoCompiler`` without.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise NoCompiler("no C compiler (cc): install gcc and libc6-dev")
    out.mkdir(parents=True, exist_ok=True)
    made = {}
    for name, own in SOURCES.items():
        target = out / f"{name}.so"
        sources = [str(HERE / "native" / source) for source in (*own, "sim.c")]
        command = [
            compiler,
            *FLAGS,
            f"-Wl,-soname,{name}.so.1",
            "-o",
            str(target),
            *sources,
            "-ldl",
            "-lpthread",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "stdio.h" in done.stderr:
            raise NoCompiler("the C library's headers are missing: install libc6-dev")
        if done.returncode:
            raise RuntimeError(f"{name} does not compile:\n{done.stderr}")
        made[name] = target
    return made
