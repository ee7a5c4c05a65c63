"""What a release says of itself in words."""

from __future__ import annotations

from images import release
from tests.images.manifest import examples


def test_what_was_not_tested_is_said_once_for_each_reason() -> None:
    gates = [
        examples.PASSED,
        {**examples.NOT_RUN, "id": "b", "reason": "no disk"},
        {**examples.NOT_RUN, "id": "a", "reason": "no disk"},
        {**examples.NOT_RUN, "id": "a", "reason": "no disk", "phase": "reboot"},
        {**examples.NOT_RUN, "id": examples.PASSED["id"], "reason": "too early", "phase": "build"},
    ]
    lines = release.not_tested(examples.release(gates=gates))
    assert "a, b: no disk" in lines
    assert not [line for line in lines if "too early" in line]  # it passed in another phase


def test_a_simulated_cloud_is_said_first() -> None:
    build = {**examples.DATA["build"], "simulation": "AWS in a box"}
    lines = release.not_tested(examples.release(build=build))
    assert lines[0] == "a real cloud: this was AWS in a box"
    assert not [line for line in release.not_tested(examples.release()) if "cloud" in line]
