"""Real and constructed records, each with the code, address and severity that it must give."""

from __future__ import annotations

import json
import re

import pytest

from tests.validation.kernel_log.cases import CASES, Case
from validation.kernel_log import events
from validation.kernel_log.record import parse
from validation.kernel_log.xid import SXID, XID


def test_the_table_is_whole() -> None:
    assert len(CASES) == 79
    assert all(case.source for case in CASES)
    assert {case.kind for case in CASES} >= {
        "xid",
        "sxid",
        "sxid-detail",
        "fallen_off_bus",
        "none",
        "companion",
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: re.sub(r"\W+", "-", case.text)[:60])
def test_case(case: Case) -> None:
    found = list(events([case.text]))
    if case.code is not None:
        (event,) = found
        assert (event.kind, event.code, event.pci) == (case.kind.split("-")[0], case.code, case.pci)
        assert event.severity == case.severity
        assert event.injected is case.text.startswith("12,")
    elif case.kind == "fallen_off_bus":
        (event,) = found
        assert (event.kind, event.pci, event.severity) == ("fallen_off_bus", case.pci, case.severity)
    elif case.kind == "driver-probe":
        (event,) = found
        assert (event.kind, event.code) == ("driver", None)
    else:
        assert found == []
    for event in found:
        assert event.action
        assert event.count == 1
        assert json.loads(json.dumps(event.document()))["kind"] == event.kind


@pytest.mark.parametrize("case", [case for case in CASES if "\n" in case.text], ids=lambda case: case.kind)
def test_line_by_line(case: Case) -> None:
    whole = list(events([case.text]))
    assert list(events(case.text.split("\n"))) == whole


def test_published_pattern_agrees() -> None:
    """The forms of an Xid and SXid line, as a pattern that others derived from the driver's source."""
    xid = re.compile(
        r"NVRM: Xid \((?:PCI:)?((?:[0-9a-fA-F]+:){1,2}[0-9a-fA-F]+)(?:\.[0-9a-fA-F])?"
        r"((?: GPU-C?I:\d+)*)\): (\d+)(?=[,\s\"]|$)"
    )
    sxid = re.compile(
        r"nvidia-nvswitch\d+:? SXid \(PCI:((?:[0-9a-fA-F]+:){2}[0-9a-fA-F]+)\.[0-9a-fA-F]\): (\d+)(?=,|$)"
    )
    for case in CASES:
        for record in parse(case.text.encode()):
            for theirs, ours in ((xid, XID()), (sxid, SXID())):
                there, here = theirs.search(record.text), ours.search(record.text)
                assert bool(there) == bool(here)
                if there and here:
                    assert there.groups()[:2] == here.groups()[:2]
