"""What every writer needs: content-addressed objects, and trying again after a lost race."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from images.errors import ExitCode, UserError
from images.manifest.store import Conflict, Store

Result = TypeVar("Result")

#: Lost races in a row before we give up. Each lost race means that somebody else succeeded.
ATTEMPTS = 100


def put(store: Store, key: str, content: bytes) -> None:
    """Creates a content-addressed object; finding the same bytes there is success."""
    try:
        store.create(key, content)
    except Conflict:
        if store.get(key)[0] != content:
            raise UserError(
                f"{key} in the manifest at {store.name} has other bytes than its name says: it is damaged",
                code=ExitCode.FAILED,
            ) from None


def until_written(decide: Callable[[], Result], *, what: str, hint: str) -> Result:
    """What ``decide`` returns the first time that it raises no ``Conflict``.

    ``decide`` reads, decides and writes, all of it anew each time: a lost race is no reason to write again
    what was decided before it. Raises ``UserError`` after ``ATTEMPTS`` lost races.
    """
    for _ in range(ATTEMPTS):
        with contextlib.suppress(Conflict):
            return decide()
    raise UserError(
        f"{what} changed {ATTEMPTS} times while it was being written", hint=hint, code=ExitCode.FAILED
    )
