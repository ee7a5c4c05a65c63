"""Lets tests import the suite's modules: the project's own pytest is strict about markers."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gate_check(check): what makes a test of the gate a check")
