"""The production code for AWS against the simulated account, in this process; its machines are a list."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.clouds.aws import api
from images.settings import Settings
from tests.cloud_sim.box import Box
from tests.cloud_sim.ledger import Ledger


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    with Box(target=Ledger(), source=tmp_path / "source", folder=tmp_path / "box") as box:
        box.account.machines.image_seconds = 0
        environment = box.environment()
        for name in set(os.environ) - set(environment):
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        api.client.cache_clear()
        yield box
        api.client.cache_clear()
    assert box.errors == []


@pytest.fixture
def settings() -> Settings:
    return Settings(clouds={"aws": {"source_cidr": "192.0.2.0/24", "poll_seconds": 0.05}})
