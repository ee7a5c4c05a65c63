"""Runs dcgmi. What it printed is judged elsewhere.

``dcgmi diag`` without a host engine silently starts one of its own; ``dcgmi health`` needs
nvidia-dcgm.service, and its watches must be set first. A watch that has seen an Xid remembers it until the
host engine restarts (https://github.com/NVIDIA/DCGM/issues/277).
"""

from __future__ import annotations

from validation.tools import Output, run

DCGMI = "dcgmi"
# Seconds. The documentation says seconds, 2 minutes, 15 minutes and about an hour (8 large GPUs: more); a
# run that takes three times as long as that hangs (https://github.com/NVIDIA/DCGM/issues/247).
TIMEOUTS = {1: 300.0, 2: 900.0, 3: 3600.0, 4: 4 * 3600.0}
HEALTH_TIMEOUT = 60.0
# On SIGTERM dcgmi asks the host engine to stop the tests and waits up to 25 s for it (dcgmi/Diag.cpp): ended
# sooner, it would leave them running on the GPUs.
STOP_GRACE = 30.0


def diag(level: int, *, timeout: float | None = None, dcgmi: str = DCGMI) -> Output:
    """``dcgmi diag -r LEVEL -j`` on all GPUs of this machine; ``timeout`` in seconds, None: by the level."""
    if level not in TIMEOUTS:
        raise ValueError(f"level {level}: dcgmi diag has the levels 1 to 4")
    limit = TIMEOUTS[level] if timeout is None else timeout
    return run([dcgmi, "diag", "-r", str(level), "-j"], timeout=limit, grace=STOP_GRACE)


def health_watch(*, timeout: float = HEALTH_TIMEOUT, dcgmi: str = DCGMI) -> Output:
    """``dcgmi health -s a``: sets the watches of every system, for all GPUs. Exit code 0: they are set."""
    return run([dcgmi, "health", "-s", "a"], timeout=timeout)


def health(*, timeout: float = HEALTH_TIMEOUT, dcgmi: str = DCGMI) -> Output:
    """``dcgmi health -c -j``: what the watches have seen since they were set."""
    return run([dcgmi, "health", "-c", "-j"], timeout=timeout)
