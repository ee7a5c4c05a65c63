"""The two tables of the simulator: GPU models (``models.json``) and nvidia-smi's fields (``fields.tsv``)."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent

#: CUDA version by driver branch, as nvidia-smi prints it (CUDA release notes, table of driver versions).
CUDA = {
    "525": "12.0", "530": "12.1", "535": "12.2", "545": "12.3", "550": "12.4", "555": "12.5", "560": "12.6",
    "565": "12.7", "570": "12.8", "575": "12.9", "580": "13.0", "590": "13.1", "595": "13.2",
}  # fmt: skip


class Field(NamedTuple):
    """One field of ``--query-gpu``: what it is called, also, and its unit (empty: none)."""

    name: str
    alias: str
    unit: str


@functools.cache
def models() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((HERE / "models.json").read_bytes())["models"]
    return found


def branch(driver: str) -> int:
    """The branch of a driver version: ``580.95.05`` is 580."""
    return int(driver.split(".")[0])


def series(driver: str) -> str:
    """Which list of fields a driver has: 525, 535 or 580 (which 570 already has)."""
    number = branch(driver)
    return "580" if number >= 570 else "535" if number >= 535 else "525"


def cuda_version(driver: str) -> str:
    """What the driver supports: ``13.0``."""
    known = [number for number in sorted(CUDA) if int(number) <= branch(driver)]
    return CUDA[known[-1] if known else "525"]


@functools.cache
def fields(driver: str) -> list[Field]:
    """The fields that this driver's nvidia-smi offers, in its order."""
    wanted = series(driver)
    found = []
    for line in (HERE / "fields.tsv").read_text().splitlines():
        if line.startswith(("#", "name\talias\t")):
            continue
        name, alias, unit, offered = line.split("\t")
        if wanted not in offered.split(","):
            continue
        if wanted == "525" and name.startswith("clocks_event_reasons."):
            name, alias = alias, ""  # 535.54.03 renamed them
        if wanted != "580" and alias.startswith(("gpu.power.", "module.power.", "remapped_rows.")):
            alias = ""
        found.append(Field(name, alias, unit))
    return found
