"""A module of ours as a shell command, for Packer's ``shell-local``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from images.settings import CHECKOUT


def of(module: str, *arguments: str | Path) -> str:
    """``cd CHECKOUT && exec PYTHON -m MODULE ARGUMENTS``, quoted for a POSIX shell."""
    words = [sys.executable, "-m", module, *map(str, arguments)]
    return f"cd {shlex.quote(str(CHECKOUT))} && exec " + shlex.join(words)
