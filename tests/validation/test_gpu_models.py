"""GPU models: names of real machines find theirs, floors agree with their sources, figures are judged."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from images import bundle
from validation import gpu_models

CHECKOUT = Path(__file__).parents[2]
FIXTURES = CHECKOUT / "tests" / "fixtures" / "gpu_models"
MODELS = {model.key: model for model in gpu_models.models()}
TABLE = json.loads(Path(gpu_models.TABLE).read_text())


def rows(name: str) -> list[dict[str, str]]:
    lines = (FIXTURES / name).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


CAPTURES: list[dict[str, Any]] = json.loads((FIXTURES / "captures.json").read_text())["captures"]
NAMES = rows("driver_names.csv")
AMBIGUOUS = {"NVIDIA B200", "NVIDIA GB300"}


def key(name: str, **also: int | None) -> str | None:
    model = gpu_models.find(name, **also)
    return model and model.key


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture["model"])
def test_a_captured_gpu_is_its_model_by_name_and_by_id(capture: dict[str, Any]) -> None:
    device = int(capture["device"], 16)
    model = gpu_models.find(capture["name"], device_id=device, memory_mib=capture["memory"])
    assert model is not None and model.key == capture["model"]
    assert key(capture["name"], memory_mib=capture["memory"]) == capture["model"]
    assert key("NVIDIA Graphics Device", device_id=device) == capture["model"]
    assert device >> 16 in model.device_ids
    # A healthy machine passes its own floors.
    for metric, figure in (("memory_total_mib", capture["memory"]), ("pcie_width_lanes", capture["width"])):
        assert gpu_models.judge(metric, figure, model).verdict == "pass"
    for field, seen in (
        (model.row_remap, capture["remap"]),
        (model.temperature_margin, capture["tlimit"]),
        (model.fabric, capture["fabric"]),
    ):
        assert seen is None or field == seen


@pytest.mark.parametrize("row", NAMES, ids=lambda row: f"{row['id']} {row['name']}")
def test_every_name_of_the_driver_finds_its_model_or_none(row: dict[str, str]) -> None:
    wanted = row["model"] or None
    assert key(row["name"], device_id=int(row["id"], 16)) == wanted
    if row["name"] not in AMBIGUOUS:
        assert key(row["name"]) == wanted
        # Drivers before R470 leave the brand out, some tools change case and spaces.
        assert key(row["name"].removeprefix("NVIDIA ").removeprefix("Tesla ").upper() + "  ") == wanted
    if wanted:
        assert int(row["id"], 16) in MODELS[wanted].device_ids


def test_no_model_has_a_name_or_an_id_that_the_driver_does_not() -> None:
    driver = {(int(row["id"], 16), row["name"], row["model"]) for row in NAMES}
    for entry in TABLE["models"]:
        ids = [int(device, 16) for device in entry["device_ids"]]
        assert any((device, entry["names"][0], entry["key"]) in driver for device in ids), entry["key"]


@pytest.mark.parametrize(
    ("name", "also", "wanted"),
    [
        # The rack's and the desk's GB300 have one name: 284208 and 256703 MiB.
        ("NVIDIA GB300", {}, None),
        ("NVIDIA GB300", {"memory_mib": 284208}, "gb300"),
        ("NVIDIA GB300", {"memory_mib": 256703}, "gb300-dgx-station"),
        ("NVIDIA GB300", {"device_id": 0x31C310DE}, "gb300-dgx-station"),
        ("NVIDIA GB300", {"device_id": 0x31C2, "memory_mib": 256703}, "gb300"),  # lost memory stays seen
        ("NVIDIA B200", {"memory_mib": 183359}, "b200"),
        ("NVIDIA B200", {"device_id": 0x2901, "memory_mib": 9}, "b200"),
        ("NVIDIA H100 80GB HBM3", {"memory_mib": 40000}, "h100-sxm"),
        # nvidia-smi's table before R525 cuts names off.
        ("NVIDIA A100-SXM...", {}, None),
        ("NVIDIA A100-SXM...", {"memory_mib": 81251}, "a100-sxm4-80gb"),
        ("NVIDIA A100-SXM...", {"device_id": 0x20B0}, "a100-sxm4-40gb"),
        ("NVIDIA A100 80G...", {}, "a100-pcie-80gb"),
        ("Tesla V100-SXM2...", {"memory_mib": 32480}, "v100-sxm2-32gb"),
        ("Tesla V100-SXM2…", {"memory_mib": 16384}, "v100-sxm2-16gb"),
        ("NVIDIA H100...", {"memory_mib": 81559}, None),  # SXM and PCIe have the same
        # No name to go by.
        ("", {"device_id": 0x2331}, "h100-pcie"),
        ("[N/A]", {"device_id": 0x2331}, "h100-pcie"),
        ("[GPU is lost]", {"device_id": 0x2331}, "h100-pcie"),
        ("ERR!", {"device_id": 0x2331}, "h100-pcie"),
        ("NVIDIA PG509-210", {"device_id": 0x20B2}, "a100-sxm4-80gb"),
        ("NVIDIA Graphics Device", {"device_id": 0x3021}, None),
        ("NVIDIA Graphics Device", {}, None),
        # Unknown, of the family that the id says, and of another.
        ("NVIDIA H100 SXM5 80GB", {"device_id": 0x2330}, "h100-sxm"),
        ("NVIDIA A100 something", {"device_id": 0x2236}, None),
        ("Quadro RTX 6000", {"device_id": 0x2330}, None),
        ("AMD Instinct MI300X", {}, None),
    ],
)
def test_what_decides_where_the_name_does_not(name: str, also: dict[str, int], wanted: str | None) -> None:
    assert key(name, **also) == wanted


@pytest.mark.parametrize(
    ("name", "device", "wanted", "partition"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, "h100-sxm", "1g.10gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", None, "h100-sxm", "1g.10gb+me"),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", None, "a100-sxm4-40gb", "1c.3g.20gb"),
        ("NVIDIA H100 PCIe MIG 1G.10GB+ME", None, "h100-pcie", "1g.10gb+me"),
        ("NVIDIA A30 MIG 2g.12gb+me", None, "a30", "2g.12gb+me"),
        ("NVIDIA B200 MIG 1g.23gb", 0x2901, "b200", "1g.23gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb+me.all", None, None, "1g.24gb+me.all"),
        ("NVIDIA A10-24Q", None, "a10", "24Q"),
        ("NVIDIA A10-24", None, "a10", "24"),
        ("GRID A100DX-80C", None, "a100-sxm4-80gb", "80C"),
        ("GRID A100X-1-5C", None, "a100-sxm4-40gb", "1-5C"),
        ("NVIDIA H100XM-1-10CME", None, "h100-sxm", "1-10CME"),
        ("NVIDIA H100L-94C", None, "h100-nvl", "94C"),
        ("GRID T4-16Q", None, "t4", "16Q"),
        ("GRID T4-2B4", None, "t4", "2B4"),
        ("GRID RTX T4-8Q", None, "t4", "8Q"),
        ("GRID V100DX-32C", None, "v100-sxm2-32gb", "32C"),
        ("NVIDIA L4-3Q", None, "l4", "3Q"),  # AWS g6f
        ("NVIDIA RTX Pro 6000 Blackwell DC-4-96Q", None, "rtx-pro-6000-blackwell-server", "4-96Q"),
        ("NVIDIA B200X-180C", 0x2901, "b200", "180C"),  # a stem that is not in the table yet
    ],
)
def test_a_slice_of_a_gpu_has_no_floors(
    name: str, device: int | None, wanted: str | None, partition: str
) -> None:
    model = gpu_models.find(name, device_id=device)
    assert model is not None and model.partition == partition
    assert wanted is None or model.key == wanted
    assert gpu_models.floors(model) == {} and model.memory_least_mib is None
    judgement = gpu_models.judge("memory_total_mib", 10_000, model)
    assert (judgement.verdict, judgement.floor) == ("not_run", None) and partition in judgement.reason


FLOORS = [(model, floor) for model in MODELS.values() for floor in gpu_models.floors(model).values()]


@pytest.mark.parametrize(("model", "floor"), FLOORS, ids=lambda it: getattr(it, "key", None) or it.metric)
def test_every_floor_says_what_where_and_how(model: gpu_models.Model, floor: gpu_models.Floor) -> None:
    assert floor.value > 0 and floor.unit and floor.source and floor.how
    assert re.fullmatch(r"https://\S+", floor.url)
    # What has no page of its own says what to look for.
    assert not floor.url.endswith("search?type=code") or floor.note.startswith("search ")
    below = gpu_models.judge(floor.metric, floor.value * 0.999, model)
    at = gpu_models.judge(floor.metric, floor.value, model)
    assert (below.verdict, at.verdict) == ("fail", "pass")
    assert f"floor {floor.value:.10g} {floor.unit} ({floor.source})" in at.reason and at.floor == floor


# Slips of the file, and the one model that another source goes below: what we took instead, by its notes.
INSTEAD = {
    ("a100-sxm4-40gb", "memory_bandwidth_gb_s"): 969.75,
    ("h200-sxm", "memory_bandwidth_gb_s"): 2333,
    ("l40", "memory_bandwidth_gb_s"): 490.5,
    ("l4", "pcie_generation"): 1,
    ("l4", "pcie_width_lanes"): 8,
}
# Of DCGM's defaults: target_perf_min_ratio, target_power_min_ratio; MB/s to GB/s.
DCGM = {
    "targeted_stress": ("targeted_stress_gflops", 0.95),
    "sm_stress": ("sm_stress_gflops", 0.95),
    "targeted_power": ("targeted_power_w", 0.75),
    "minimum_bandwidth": ("memory_bandwidth_gb_s", 0.001),
    "min_pci_generation": ("pcie_generation", 1),
    "min_pci_width": ("pcie_width_lanes", 1),
}


def test_floors_are_dcgms_own_thresholds() -> None:
    lowest: dict[tuple[str, str], float] = defaultdict(lambda: float("inf"))
    for row in rows("dcgm_skus.csv"):
        (model,) = [m for m in MODELS.values() if int(row["id"][:4], 16) in m.device_ids]
        for column, (metric, factor) in DCGM.items():
            if row[column]:
                lowest[model.key, metric] = min(lowest[model.key, metric], factor * float(row[column]))
    metrics = {metric for metric, _ in DCGM.values()}
    ours = {(m.key, f.metric): f.value for m, f in FLOORS if f.metric in metrics}
    assert ours == pytest.approx({**lowest, **INSTEAD}, rel=1e-6)
    assert INSTEAD.keys() <= lowest.keys()


# NVIDIA's data sheets: what the memory of the part can do, GB/s.
BANDWIDTH = {
    "h100-sxm": 3350, "h100-pcie": 2039, "h100-nvl": 3938, "h200-sxm": 4800, "h200-nvl": 4800, "b200": 8000,
    "gb200": 8000, "a100-sxm4-40gb": 1555, "a100-pcie-40gb": 1555, "a100-sxm4-80gb": 2039,
    "a100-pcie-80gb": 1935, "a10": 600, "a10g": 600, "a30": 933, "a40": 696, "l4": 300, "l40": 864,
    "l40s": 864, "t4": 320, "v100-sxm2-16gb": 900, "v100-pcie-32gb": 900,
    "rtx-pro-6000-blackwell-server": 1597,
}  # fmt: skip


def test_no_floor_is_above_or_far_below_what_the_part_can_do() -> None:
    """Catches a lost digit or a wrong unit: B200's and GB200's targets are the lowest, at a third."""
    for name, most in BANDWIDTH.items():
        floor = gpu_models.floors(MODELS[name])["memory_bandwidth_gb_s"]
        assert 0.3 * most < floor.value < 0.85 * most, name


def test_form_factors_of_one_family_have_floors_of_their_own() -> None:
    sxm, pcie = (gpu_models.floors(MODELS[name]) for name in ("h100-sxm", "h100-pcie"))
    for metric in ("targeted_stress_gflops", "memory_bandwidth_gb_s", "targeted_power_w"):
        assert 0.45 < pcie[metric].value / sxm[metric].value < 0.7


def test_pcie_floors_are_below_what_the_link_can_carry() -> None:
    """Gen 3, 4, 5 x16: 8, 16, 32 GT/s, 128b/130b, so 15.75, 31.5 and 63 GB/s one way."""
    for model, floor in FLOORS:
        if floor.metric in ("pcie_h2d_gb_s", "pcie_d2h_gb_s") and model.pcie_generation in (3, 4, 5):
            link = 16 / 8 * 2.0**model.pcie_generation * 128 / 130
            assert 0.6 * link < floor.value < 0.95 * link, model.key


@pytest.mark.parametrize(
    ("metric", "value", "name", "verdict", "words"),
    [
        ("pcie_h2d_gb_s", 55.2, "h100-sxm", "pass", "55.2 GB/s, floor 48 GB/s (Azure"),
        (
            "pcie_h2d_gb_s",
            27,
            "h100-sxm",
            "fail",
            "27 GB/s, floor 48 GB/s (Azure",
        ),  # a link at half its width
        ("memory_total_mib", 81559 - 16384, "h100-sxm", "fail", "floor 81559 MiB"),
        ("memory_bandwidth_gb_s", 0, "h100-sxm", "fail", "floor 1905 GB/s"),
        ("pcie_h2d_gb_s", 12.8, "l4", "not_run", "12.8 GB/s; no floor known for pcie_h2d_gb_s of l4"),
        ("no_such_metric", 1, "l4", "not_run", "no floor known"),
        ("memory_bandwidth_gb_s", 2_541_000, "h100-sxm", "not_run", "is it in GB/s?"),  # MB/s
        ("pcie_width_lanes", 16, "gb200", "pass", "floor 1 lanes"),
        ("memory_bandwidth_gb_s", None, "h100-sxm", "not_run", "not measured"),
        ("memory_bandwidth_gb_s", float("nan"), "h100-sxm", "not_run", "not measured"),
        ("memory_bandwidth_gb_s", float("inf"), "h100-sxm", "not_run", "not measured"),
        ("memory_bandwidth_gb_s", True, "h100-sxm", "not_run", "not measured"),
        ("memory_bandwidth_gb_s", 2541, None, "not_run", "GPU model unknown"),
    ],
)
def test_judge(metric: str, value: float | None, name: str | None, verdict: str, words: str) -> None:
    judgement = gpu_models.judge(metric, value, MODELS[name] if name else None)
    assert judgement.verdict == verdict and words in judgement.reason


def test_the_table_holds_together() -> None:
    assert len(MODELS) == len(TABLE["models"])
    ids = [device for model in MODELS.values() for device in model.device_ids]
    assert len(ids) == len(set(ids))
    assert {f["source"] for m in TABLE["models"] for f in m["floors"].values()} == TABLE["sources"].keys()
    assert {floor.metric for _, floor in FLOORS} == TABLE["metrics"].keys()
    for model in MODELS.values():
        assert model.nvlink in ("board", "bridge", "none", None)
        assert model.nvswitch in ("always", "eight-GPU board", "never", None)
        assert (model.nvlinks == 0) == (model.nvlink == "none")


def test_every_family_of_the_catalog_and_the_clouds_has_a_model() -> None:
    families = {model.family for model in MODELS.values()}
    for path in (CHECKOUT / "images" / "catalog").glob("*.yaml"):
        assert set(yaml.safe_load(path.read_text()).get("gpu_families", [])) <= families
    clouds = json.loads((CHECKOUT / "validation" / "machine_types.json").read_text())["clouds"]
    known = {family["gpu"] for cloud in clouds.values() for family in cloud["families"]}
    old = {"k80", "m60", "p4", "p40", "p100"}  # older than any GPU that images are for
    assert known - old <= families


def test_the_table_is_in_the_bundle() -> None:
    paths = {file.path for file in bundle.collect()}
    assert {f"/usr/lib/gpu-image/validation/gpu_models.{end}" for end in ("py", "json")} <= paths


PIECES = st.sampled_from(
    [*(row["name"] for row in NAMES), "NVIDIA ", "GRID ", " MIG ", "1g.10gb", "-24Q", "...", "…", "[N/A]"]
)
NUMBERS = st.none() | st.integers() | st.floats(allow_nan=True) | st.booleans()


JOINED = st.lists(PIECES | st.text(max_size=3), max_size=4).map("".join)


@given(st.text() | JOINED, NUMBERS, NUMBERS, NUMBERS)
def test_nothing_raises(name: str, device: Any, memory: Any, value: Any) -> None:
    model = gpu_models.find(name, device_id=device, memory_mib=memory)
    assert model is None or model.key in MODELS
    for metric in (*TABLE["metrics"], name):
        assert gpu_models.judge(metric, value, model).verdict in ("pass", "fail", "not_run")


@given(st.sampled_from(FLOORS), st.floats(0, 12), st.floats(0, 12))
def test_a_higher_figure_is_never_judged_worse(of: Any, one: float, other: float) -> None:
    model, floor = of
    low, high = sorted(times * floor.value for times in (one, other))
    verdicts = [gpu_models.judge(floor.metric, figure, model).verdict for figure in (low, high)]
    # Far above the floor it is no figure of this unit.
    order = ["fail", "pass", "not_run"]
    assert order.index(verdicts[0]) <= order.index(verdicts[1])
    assert (verdicts[0] == "fail") == (low < floor.value)


HUGE = ("." * 100_000, "a" * 100_000 + "...", "NVIDIA " * 20_000, "[" * 1_000_000 + "x", "-1" * 50_000)


@pytest.mark.parametrize("name", HUGE, ids=range(len(HUGE)))
def test_a_huge_name_is_no_trouble(name: str) -> None:
    assert gpu_models.find(name, device_id=None) is None
