"""A store in a folder of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from images.manifest import FolderStore

from . import cloud


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs most of the time and changes nothing here: kill -9 loses no write, only a power cut does."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "manifest")


@pytest.fixture
def digest(store: FolderStore) -> str:
    """A published release of a cloud, in its home region alone."""
    return cloud.put(store)
