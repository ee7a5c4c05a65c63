"""Which figure of DCGM's diagnostic is which metric of the floors, and the reader of ``dcgmi dmon``.

The sentences are those of DCGM's plugins (see ``validation.dcgm.figures``), the metrics those of
``validation/gpu_models.json``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from validation import gpu_models
from validation.gate.gpu_facts import Gpus
from validation.gate.gpu_readers import number


class Metric(NamedTuple):
    """Where a metric comes from: the diagnostic's test, words in the figure's name, the least level.

    ``other`` says how the floors were measured where that is not comparable with the diagnostic's figure.
    """

    test: str
    words: tuple[str, ...]
    level: int
    other: str = ""


#: DCGM's pcie test gives 28 GB/s on an H100 on which nvbandwidth gives more than 50 (captures of both:
#: https://github.com/NVIDIA/go-dcgm pkg/dcgm/diag_test.go, and the floors' sources).
NVBANDWIDTH = "nvbandwidth"

METRICS = {
    "pcie_h2d_gb_s": Metric("pcie", ("host to gpu", "bandwidth"), 2, other=NVBANDWIDTH),
    "pcie_d2h_gb_s": Metric("pcie", ("gpu to host", "bandwidth"), 2, other=NVBANDWIDTH),
    "memory_bandwidth_gb_s": Metric("memory_bandwidth", ("bandwidth",), 3),
    "targeted_stress_gflops": Metric("targeted_stress", ("stress", "rate"), 3),
    "targeted_power_w": Metric("targeted_power", ("max power",), 3),
}
POWER, POWER_RATIO = "targeted_power_w", 0.75  # DCGM's target_power_min_ratio: the floor is this much of it
#: Units as the plugins print them, in the metric's own.
_SCALE = {"gb/s": 1.0, "mb/s": 1e-3, "tb/s": 1e3, "gib/s": 1.073741824, "mib/s": 0.001048576}
_SCALE |= {"gigaflops": 1.0, "gflops": 1.0, "teraflops": 1e3, "tflops": 1e3, "w": 1.0, "": 1.0}
_ENTITY = re.compile(r"GPU (\d+)")


def of(data: Mapping[str, Any], metric: str) -> dict[int, float]:
    """The figures of a metric in a judgement's data, by GPU: the lowest where a GPU has several."""
    wanted = METRICS[metric]
    found: dict[int, float] = {}
    for figure in data.get("figures") or ():
        name, gpu = str(figure["name"]).lower(), _ENTITY.fullmatch(str(figure.get("entity", "")))
        scale = _SCALE.get(str(figure["unit"]).lower())
        if figure["test"] != wanted.test or not gpu or scale is None:
            continue
        if _named(name, wanted.words):
            value = figure["value"] * scale
            found[int(gpu[1])] = min(value, found.get(int(gpu[1]), value))
    return found


def _named(name: str, words: Sequence[str]) -> bool:
    """A rate is called by any of its words, a bandwidth by all."""
    match = any if "stress" in words else all
    return match(word in name for word in words)


def against_floors(figures: Mapping[int, float], metric: str, gpus: Gpus) -> dict[str, gpu_models.Judgement]:
    """Each GPU's figure and what its model's floor makes of it. DCGM numbers GPUs as nvidia-smi does."""
    rows = {row.index: row for row in gpus.rows}
    judged = {}
    if other := METRICS[metric].other:
        reason = f"recorded only: public floors are of {other}, which measures otherwise"
        return {f"GPU {index}": gpu_models.Judgement("not_run", reason, None) for index in figures}
    for index, value in sorted(figures.items()):
        row = rows.get(index)
        model = gpus.model(row) if row else None
        found = gpu_models.judge(metric, value, model)
        limit = number(row, "enforced.power.limit") if row else None
        if metric == POWER and found.floor and limit and limit < found.floor.value / POWER_RATIO:
            # DCGM's target is the whole board's power: a capped one cannot reach it.
            reason = f"{value:g} W; the power limit of {limit:g} W is below DCGM's target"
            found = gpu_models.Judgement("not_run", reason, found.floor)
        judged[f"GPU {index}"] = found
    return judged


def watched(text: str) -> tuple[dict[str, float], str | None]:
    """The last value of each GPU that ``dcgmi dmon -e FIELD -c N`` printed, and what is wrong with it.

    A line is ``GPU 0     0.000``. The first sample after the host engine has started is N/A (a public
    capture of DCGM 3.3.9); a field that cannot be watched has no other.
    """
    seen: dict[str, float | None] = {}
    for line in text.splitlines():
        match = re.match(r"\s*(?:GPU\s+)?(\d+)\s+(N/A|-?\d+(?:\.\d+)?)\s*$", line)
        if match:
            seen[f"GPU {match[1]}"] = None if match[2] == "N/A" else float(match[2])
    values = {name: value for name, value in seen.items() if value is not None}
    empty = sorted(seen.keys() - values.keys())
    if empty:
        return values, f"no value of {', '.join(empty[:8])}"
    if not values:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return values, f"dcgmi dmon printed no value: {lines[-1][:200] if lines else 'nothing'}"
    return values, None
