"""The table of machine types against the clouds' own lists, as far as they were read (counts.tsv)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.validation.rows import rows
from validation import machine_types

CASES = rows("machine_types/counts.tsv")


@pytest.mark.parametrize(
    ("name", "count", "gpu"), [case[:3] for case in CASES], ids=[case[0] for case in CASES]
)
def test_number_and_model(name: str, count: str, gpu: str) -> None:
    found = machine_types.lookup(name)
    assert found.gpus == (None if count == "-" else int(count))
    if found.gpus:
        assert found.gpu == gpu
    assert found.known == bool(found.source)


def test_a_name_that_nobody_knows_is_not_a_machine_without_gpus() -> None:
    for name in ("", "x", ".", "standard", "m1", "large", "tiny.flavor", "gpu", "VM.", "BM.GPU", "a1"):
        found = machine_types.lookup(name)
        assert (found.gpus, found.known) == (None, False), name


def test_a_clouds_types_are_looked_up_in_that_cloud_only() -> None:
    assert machine_types.lookup("g6.xlarge", "aws").gpus == 1
    assert machine_types.lookup("BM.GPU.H100.8", "oracle").gpus == 8
    assert machine_types.lookup("e2-medium", "gce").gpus == 0
    assert machine_types.lookup("Standard_D2s_v5", "azure").gpus == 0
    # A flavour of somebody's OpenStack may have any name.
    for cloud in ("openstack", "azure", "nocloud", "aliyun"):
        assert machine_types.lookup("g6.xlarge", cloud).known is False


def test_no_name_belongs_to_two_clouds() -> None:
    """Without the cloud's name the first that knows a type decides."""
    for name, *_ in CASES:
        short = name.rpartition("/")[2]
        clouds = [cloud for cloud in machine_types.CLOUDS if machine_types.lookup(short, cloud).known]
        assert len(clouds) <= 1, name


def test_every_entry_has_a_source_and_a_sensible_number() -> None:
    table = json.loads(Path(machine_types.TABLE).read_text())
    assert table["clouds"].keys() == set(machine_types.CLOUDS.values())
    for entries in table["clouds"].values():
        for family in entries["families"]:
            assert family["source"]
            assert family["gpu"] == family["gpu"].lower()
            assert all(1 <= count <= 16 for count in family["types"].values())
        for rule in entries["rules"]:
            assert rule["source"]
            assert ("(?P<gpus>" in rule["match"]) != ("gpus" in rule)


@given(st.text(max_size=60) | st.from_regex(r"[a-z0-9]{1,4}([.-][a-z0-9]{1,8}){1,3}", fullmatch=True))
@settings(max_examples=300, deadline=None)
def test_any_name_can_be_looked_up(name: str) -> None:
    found = machine_types.lookup(name)
    assert found.gpus is None or 0 <= found.gpus < 100
    assert found.known or found.gpus is None
