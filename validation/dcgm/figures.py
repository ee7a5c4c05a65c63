"""The figures that a test prints into ``info``: bandwidths, latencies, rates, power.

The sentences are those of the plugins of https://github.com/NVIDIA/DCGM (nvvs/plugin_src): "GPU to Host
bandwidth:\t\t58.62 GB/s", "GPU 0 calculated at approximately 859.08 gigaflops during this test", "GPU 0
max power: 299.5 W average power usage: 299.0 W", "GPU 0 relative stress level 1929". DCGM 4 before 4.2
prints at most 16 of them a test (https://github.com/NVIDIA/DCGM/issues/215), so a missing one says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

LIMIT = 2000  # figures of one document
_LENGTH = 4000  # characters of one info text
_UNITS = r"GB/s|GiB/s|MB/s|MiB/s|TB/s|[Gg]igaflops|GFLOPS|[Tt]eraflops|TFLOPS|us|ms|W|bytes|MHz|C"
_FIGURE = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9 _/()-]{0,80}?)[ \t]*:?[ \t]*(?<![\w.])"
    rf"(?P<value>\d{{1,15}}(?:\.\d{{1,9}})?)[ \t]*(?P<unit>{_UNITS})\b"
)
_PLAIN = re.compile(r"(?P<name>relative stress level):?[ \t]+(?P<value>\d{1,12}(?:\.\d{1,6})?)\b")
_NOISE = re.compile(r"^(?:GPU \d+ )+|\b(?:calculated )?at approximately\b")


def figures(info: object) -> Iterator[dict[str, Any]]:
    """``name``, ``value`` and ``unit`` of each figure in an ``info`` entry: a text or a list of texts."""
    for text in info if isinstance(info, list) else [info]:
        if isinstance(text, str):
            yield from _in_text(text[:_LENGTH])


def _in_text(text: str) -> Iterator[dict[str, Any]]:
    for match in _FIGURE.finditer(text):
        name = " ".join(_NOISE.sub("", match["name"]).split()).strip(" -")
        yield {"name": name or "rate", "value": float(match["value"]), "unit": match["unit"]}
    for match in _PLAIN.finditer(text):
        yield {"name": match["name"], "value": float(match["value"]), "unit": ""}
