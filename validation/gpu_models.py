"""NVIDIA GPU models by form factor, and the least a healthy one does: ``gpu_models.json`` and its reader.

An SXM and a PCIe H100 differ by 40 %, so the family ("h100") is not enough to judge a figure. ``find``
tells the model from what nvidia-smi says, ``judge`` a figure of it. Every floor in the table names its
source; where nobody published one there is none, and the figure is only recorded (``not_run``).

A slice of a GPU, MIG or vGPU, is known for what it is and has no floors: those are of whole GPUs.
"""

from __future__ import annotations

import json
import math
import os.path
import re
from functools import lru_cache
from typing import Any, NamedTuple

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu_models.json")
NVIDIA = 0x10DE
# "MIG 1g.10gb", "MIG 1c.3g.40gb", "MIG 1g.10gb+me"; in capitals in some CUDA versions.
MIG = re.compile(r"(?P<gpu>.+?) mig (?P<partition>(?:\d+c\.)?\d+g\.\d+gb(?:[+.-][a-z.]+)*)")
# "GRID T4-16Q", "NVIDIA A10-24" (no suffix: a whole GPU for bare compute), "NVIDIA H100XM-1-10CME": on MIG.
VGPU = re.compile(r"(?:grid )?(?P<gpu>.+?)-(?P<partition>(?:\d+-)?\d+(?:b4|[qcab]|cme)?)")
# What stands for a name where the driver has none, or could not ask the GPU; PG...: boards before release.
NAMELESS = re.compile(
    r"nvidia|graphics device|pg\d.*|\W*(?:n/a|unknown.*|not supported|err!?|.*(?:lost|reset).*)?\W*"
)
NAME_LIMIT = 200  # characters; NVML's names have at most 95
# Two parts with one name: what memory.total says may be this much above the least that is known.
MEMORY_SPREAD = 1.05
# No part is ten times as good as its floor; a figure that says so is in another unit (MB/s for GB/s).
IMPLAUSIBLE = 10
RATES = frozenset({"GB/s", "MB/s", "GFLOPS", "W", "MiB"})


class Floor(NamedTuple):
    """The least that a healthy GPU reaches in one metric."""

    metric: str  # "pcie_h2d_gb_s": the keys of "metrics" in the table
    value: float
    unit: str
    source: str  # its title, for people
    url: str
    how: str  # what was measured, and when the floor says nothing
    note: str  # how the value came out of the source, and what others say; "" when there is nothing to say


class Model(NamedTuple):
    """What is known of one model in one form factor. None: not known."""

    key: str  # "h100-sxm"
    family: str  # "h100": as gpu_families of an image and "gpu" of a machine type have it
    name: str  # as nvidia-smi prints it; of a slice, the whole GPU's
    form_factor: str  # SXM2 to SXM6, SXM, PCIe, superchip
    device_ids: tuple[int, ...]  # PCI, of vendor 10de
    memory_gb: int | None  # as NVIDIA sells it
    memory_least_mib: int | None  # least memory.total of nvidia-smi; None for a slice
    pcie_generation: int | None  # of the part; a cloud may connect less
    pcie_width: int | None
    nvlink: str | None  # "board": always joined, "bridge": where one is fitted, "none"
    nvlinks: int | None  # links of one GPU when all are joined
    nvswitch: str | None  # "always", "eight-GPU board": on that form of the board, "never"
    ecc: bool
    row_remap: bool | None  # has row remapping; False: retires pages instead
    temperature_margin: bool | None  # nvidia-smi says temperature.gpu.tlimit
    fabric: bool | None  # nvidia-smi says a fabric state where there are NVSwitches
    partition: str = ""  # "1g.10gb" of MIG, "24Q" of vGPU; "": the whole GPU


class Judgement(NamedTuple):
    """What a figure says: ``verdict`` pass, fail or not_run, ``reason`` for people."""

    verdict: str
    reason: str
    floor: Floor | None


def find(name: str, *, device_id: int | None = None, memory_mib: int | None = None) -> Model | None:
    """The model that nvidia-smi calls ``name``; None when unknown, or when nothing tells two models apart.

    ``device_id`` is the PCI device (0x2330), or nvidia-smi's pci.device_id with the vendor in its lower half
    (0x233010DE); ``memory_mib`` is memory.total. The name counts first. Where two models share it, or where
    nvidia-smi's table cut it off ("NVIDIA A100-SXM..."), the id decides, then the memory. The id alone
    counts where there is no name ("NVIDIA Graphics Device", "") or an unknown one of the same family: boards
    of other products carry some of the ids as well. Little memory never makes a GPU a slice or another
    model: it is a fault to be seen. Raises nothing.
    """
    table = _table()
    wanted = _normal(name)
    device = _device(device_id)
    if known := _named(table.names, wanted):
        return _decide(known, device, memory_mib)
    if not NAMELESS.fullmatch(wanted):
        if match := MIG.fullmatch(wanted):
            known = _named(table.names, match["gpu"]) or _of_family(match["gpu"], device)
            return _slice(_decide(known, device), match["partition"])
        if match := VGPU.fullmatch(wanted):
            known = _named(table.vgpus, match["gpu"]) or _of_family(match["gpu"], device)
            return _slice(_decide(known, device), match["partition"].upper())
        if cut := re.fullmatch(r"(.{3,}?)\s*(?:\.{2,}|…)", wanted):
            known = [model for full, model in table.names if full.startswith(cut[1])]
            return _decide(known, device, memory_mib)
    return _decide(_of_family(wanted, device), device)


def floors(model: Model) -> dict[str, Floor]:
    """The floors of a model by metric; none for a slice of a GPU, or where there is no public source."""
    return {} if model.partition else dict(_table().floors.get(model.key, {}))


def judge(metric: str, value: float | None, model: Model | None) -> Judgement:
    """Holds a figure, in the metric's unit, against the model's floor.

    ``not_run``: no floor, no model, no figure, or one that cannot be in the metric's unit. Raises nothing.
    """
    unit = _table().units.get(metric, "")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return Judgement("not_run", f"{metric} was not measured", None)
    figure = f"{_number(value)} {unit}".rstrip()
    if model is None:
        return Judgement("not_run", f"{figure}; GPU model unknown, so no floor for {metric}", None)
    if model.partition:
        reason = f"{figure}; floors are of the whole GPU, this is a slice of it ({model.partition})"
        return Judgement("not_run", reason, None)
    floor = floors(model).get(metric)
    if floor is None:
        return Judgement("not_run", f"{figure}; no floor known for {metric} of {model.key}", None)
    words = f"{figure}, floor {_number(floor.value)} {floor.unit} ({floor.source})"
    if unit in RATES and value > IMPLAUSIBLE * floor.value:
        return Judgement("not_run", f"{words}: more than any such GPU can do; is it in {unit}?", floor)
    return Judgement("pass" if value >= floor.value else "fail", words, floor)


def models() -> tuple[Model, ...]:
    """All models of the table, in its order."""
    return _table().models


class _Table(NamedTuple):
    models: tuple[Model, ...]
    floors: dict[str, dict[str, Floor]]  # by model, by metric
    units: dict[str, str]  # by metric
    names: tuple[tuple[str, Model], ...]  # normal, several models may share one
    vgpus: tuple[tuple[str, Model], ...]


@lru_cache(maxsize=1)
def _table() -> _Table:
    with open(TABLE, encoding="utf-8") as file:
        table: dict[str, Any] = json.load(file)
    found, names, vgpus = [], [], []
    all_floors = {}
    for entry in table["models"]:
        own = {key: _floor(key, floor, table) for key, floor in entry["floors"].items()}
        model = _model(entry, own)
        found.append(model)
        all_floors[model.key] = own
        names += [(_normal(name), model) for name in entry["names"]]
        vgpus += [(_normal(stem), model) for stem in entry["vgpu"]]
    units = {key: metric["unit"] for key, metric in table["metrics"].items()}
    return _Table(tuple(found), all_floors, units, tuple(names), tuple(vgpus))


def _floor(metric: str, entry: dict[str, Any], table: dict[str, Any]) -> Floor:
    kind, source = table["metrics"][metric], table["sources"][entry["source"]]
    note = entry.get("note", "")
    return Floor(metric, entry["value"], kind["unit"], source["title"], source["url"], kind["how"], note)


def _model(entry: dict[str, Any], own: dict[str, Floor]) -> Model:
    least = own.get("memory_total_mib")
    facts = {field: entry[field] for field in Model._fields if field in entry}
    facts["device_ids"] = tuple(int(device, 16) for device in entry["device_ids"])
    return Model(name=entry["names"][0], memory_least_mib=least and int(least.value), **facts)


def _named(table: tuple[tuple[str, Model], ...], name: str) -> list[Model]:
    return [model for known, model in table if known == name]


def _of_family(name: str, device: int | None) -> list[Model]:
    """What the id says, unless the name is one of another family ("GeForce RTX 3050" on an A10G's id)."""
    same = [model for model in models() if device in model.device_ids]
    if NAMELESS.fullmatch(name):
        return same
    return [model for model in same if re.search(rf"\b{model.family}(?!\d)", name)]


def _decide(known: list[Model], device: int | None, memory_mib: int | None = None) -> Model | None:
    """One model of several that have the same name."""
    candidates = list(dict.fromkeys(known))  # one model may have several of the names
    if len(candidates) > 1:
        same = [model for model in candidates if device in model.device_ids]
        if not same and isinstance(memory_mib, (int, float)):
            same = [model for model in candidates if _fits(model, memory_mib)]
        candidates = same
    return candidates[0] if len(candidates) == 1 else None


def _slice(model: Model | None, partition: str) -> Model | None:
    return model and model._replace(partition=partition, memory_least_mib=None)


def _fits(model: Model, memory_mib: float) -> bool:
    least = model.memory_least_mib
    return least is not None and least <= memory_mib <= least * MEMORY_SPREAD


def _normal(name: object) -> str:
    """A name as it is compared: drivers before R470 and some tools leave the brand out."""
    words = str(name)[:NAME_LIMIT].casefold().split()
    if len(words) > 1 and words[0] in ("nvidia", "tesla"):
        del words[0]
    return " ".join(words)


def _device(device_id: int | None) -> int | None:
    if not isinstance(device_id, int):
        return None
    if device_id > 0xFFFF and device_id & 0xFFFF == NVIDIA:
        return device_id >> 16
    return device_id


def _number(value: float) -> str:
    return f"{value:.10g}"
