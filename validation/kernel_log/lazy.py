"""Patterns that are compiled when they are first needed: most logs need few, and compiling takes longest."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable


def pattern(text: str, flags: int = 0) -> Callable[[], re.Pattern[str]]:
    """A function that returns the compiled pattern."""
    return functools.cache(lambda: re.compile(text, flags))
