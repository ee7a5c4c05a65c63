"""Logs that people have published: each file beside its events, written down from reading the log."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.validation.kernel_log.cases import FIXTURES
from validation.kernel_log import events, events_of_stream

LOGS = sorted((FIXTURES / "logs").glob("*.log"))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_log(log: Path) -> None:
    expected = json.loads(log.with_suffix(".json").read_text())
    assert expected["source"]
    found = [event.document() for event in events_of_stream(io.BytesIO(log.read_bytes()).readinto)]
    wanted = expected["events"]
    assert [
        {key: event.get(key) for key in want} for event, want in zip(found, wanted, strict=False)
    ] == wanted
    assert len(found) == len(wanted)
    assert not any(event["injected"] for event in found)
    assert found == [event.document() for event in events(log.read_text().splitlines())]


def test_there_are_logs() -> None:
    assert len(LOGS) >= 20
