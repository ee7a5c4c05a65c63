"""Runs nvidia-smi. What it printed is judged elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from validation.nvidia_smi.fields import OLDEST, choose, fields_offered
from validation.tools import Output, run

NVIDIA_SMI = "nvidia-smi"
# Seconds. 8 A100 without persistence mode take about 30 (https://github.com/Azure/aks-gpu/pull/105).
TIMEOUT = 90.0
HELP_TIMEOUT = 10.0  # it opens no GPU


def command(fields: Sequence[str], *, nvidia_smi: str = NVIDIA_SMI) -> list[str]:
    """The arguments that ask for these fields, with a header and with units."""
    return [nvidia_smi, f"--query-gpu={','.join(fields)}", "--format=csv"]


def query(
    *, timeout: float = TIMEOUT, fields: Sequence[str] | None = None, nvidia_smi: str = NVIDIA_SMI
) -> Output:
    """Asks nvidia-smi once for all fields that this version offers, in ``timeout`` seconds altogether.

    What it offers is asked first, which is a second process; with ``fields``, exactly these are asked
    instead. When the help gives no answer, what every driver has is asked. The text is stdout and, after it,
    stderr: some versions print there that a GPU does not answer.
    """
    started = time.monotonic()
    if fields is None:
        fields = offered(timeout=min(HELP_TIMEOUT, timeout), nvidia_smi=nvidia_smi)
    left = max(timeout - (time.monotonic() - started), 0.1)
    output = run(command(fields, nvidia_smi=nvidia_smi), timeout=left)
    text = output.text + ("\n" + output.stderr if output.stderr.strip() else "")
    return output._replace(text=text)


def offered(*, timeout: float = HELP_TIMEOUT, nvidia_smi: str = NVIDIA_SMI) -> list[str]:
    """Of the fields that we ask for, those that this nvidia-smi offers."""
    chosen = choose(fields_offered(run([nvidia_smi, "--help-query-gpu"], timeout=timeout).text))
    return chosen or list(OLDEST)
