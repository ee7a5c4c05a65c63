"""The watch over a cloud's API: it takes several misses in a row, and ends with its context."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from images import reachability
from images.errors import ExitCode
from images.reachability import Unreachable, Watch
from tests.images.test_run import wait_for


class Cloud:
    """Answers as it is told, once for each look; then with the last answer."""

    name = "toy"

    def __init__(self, answers: list[str | None]) -> None:
        self.answers: Iterator[str | None] = iter(answers)
        self.last: str | None = None
        self.looks = 0

    def unreachable(self, _: Any) -> str | None:
        self.looks += 1
        self.last = next(self.answers, self.last)
        return self.last


def watch(cloud: Cloud) -> Watch:
    return Watch(cast(Any, cloud), cast(Any, SimpleNamespace()), period=0.001)


def test_an_api_that_is_gone_is_an_error_with_a_short_grace() -> None:
    cloud = Cloud(["refused"])
    with watch(cloud) as watching:
        assert wait_for(lambda: watching.why is not None)
        with pytest.raises(Unreachable, match="cannot be asked any more: refused") as caught:
            watching.check()
    assert caught.value.code == ExitCode.FAILED
    assert "./inv sweep --cloud=toy" in (caught.value.hint or "")
    assert caught.value.grace < 60
    assert cloud.looks >= reachability.LOOKS


def test_single_misses_are_nothing() -> None:
    cloud = Cloud(["refused", None, "refused", "refused", None])
    with watch(cloud) as watching:
        assert wait_for(lambda: cloud.looks > 8)
        watching.check()


def test_it_looks_no_more_when_the_context_has_ended() -> None:
    with watch(Cloud([None])) as watching:
        assert watching._thread.is_alive()
    assert wait_for(lambda: not watching._thread.is_alive())
