"""Mutated texts for the readers: what a tool printed, cut, doubled, mixed and sprinkled with nonsense."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

NONSENSE = [
    "", "\n", ", ", "{", "}", "[", "]", '"', ":", "null", "true", "-1", "NaN", "1e999", "9" * 5000, "\x00",
    "\ud800", "\u2028", "\ufeff", "\r\n", "²", "[N/A]", "[GPU is lost]", "GPU-", "00000000:3B:00.0",
    "No devices were found\n", '"Pass"', '"Fail"', '"entity_id": 7',
    "Unable to determine the device handle for ",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, texts: Sequence[str]) -> str:
    """One of ``texts`` after one to five mutations."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 1, 5, 50, 1000])))
        match draw(st.integers(0, 4)):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:start] + draw(st.sampled_from(NONSENSE)) + text[end:]
            case 2:
                text = text[:start] + text[start:end] * draw(st.integers(2, 5)) + text[end:]
            case 3:
                other = draw(st.sampled_from(texts))
                begin = draw(st.integers(0, len(other)))
                text = text[:start] + other[begin : begin + 300] + text[end:]
            case _:
                text = text[:start] + draw(st.text(max_size=10)) + text[end:]
    return text
