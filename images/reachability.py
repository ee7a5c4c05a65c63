"""Watches the cloud's API while a build runs.

When it is gone, Packer tries for seven minutes to delete what it cannot reach. Better known early: the build
ends after a short grace, and what is left is named for the sweep.
"""

from __future__ import annotations

import contextvars
import threading
from types import TracebackType

from images.clouds import Cloud
from images.clouds.model import Context
from images.errors import ExitCode, UserError

PERIOD = 15.0  # seconds between two looks
LOOKS = 3  # in a row that find nothing: an API may restart


class Unreachable(UserError):
    """The cloud's API cannot be reached; ``grace`` is what Packer gets to end, seconds."""

    grace = 10.0

    def __init__(self, cloud: Cloud, why: str) -> None:
        super().__init__(
            f"the cloud {cloud.name} cannot be asked any more: {why}",
            hint=f"machines end by themselves; once it is back: ./inv sweep --cloud={cloud.name}",
            code=ExitCode.FAILED,
        )


class Watch:
    """Looks every few seconds from a thread of its own; ``check`` raises what it found."""

    def __init__(self, cloud: Cloud, context: Context, *, period: float = PERIOD) -> None:
        self.cloud, self.context, self.period = cloud, context, period
        self.why: str | None = None
        self._stop = threading.Event()
        inherited = contextvars.copy_context()
        self._thread = threading.Thread(target=inherited.run, args=(self._look,), daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()

    def _look(self) -> None:
        misses = 0
        while not self._stop.wait(self.period):
            why = self.cloud.unreachable(self.context)
            misses = misses + 1 if why else 0
            self.why = why if misses >= LOOKS else None

    def check(self) -> None:
        """Raises ``Unreachable`` when the API has been gone for some looks in a row."""
        if self.why:
            raise Unreachable(self.cloud, self.why)
