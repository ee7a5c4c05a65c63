"""Whether this process works in a simulated cloud (``./inv sim``)."""

from __future__ import annotations

import os

VARIABLE = "GPU_IMAGE_SIMULATION"


def name() -> str | None:
    """What is simulated, in words, or None. A release that was made there says so, and a lock from there
    is a fixture: neither can be taken for the real thing."""
    return os.environ.get(VARIABLE) or None
