"""What a reader says of a document.

A reader takes the text that a tool printed and returns a ``Judgement``. It never raises: what cannot be
read is ``unknown``, with a reason that says what it is. The words are those of a check, without ``not_run``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

PASS = "pass"
FAIL = "fail"
UNKNOWN = "unknown"  # the document cannot tell: nothing was tested, or it cannot be read

ENTRIES = 1000  # of a list in one judgement; a broken tool can print any number of them
QUOTED = 300  # characters of somebody else's text in a reason
INPUT_LIMIT = 32 * 1024 * 1024  # bytes of input, and characters of a text; real documents have some 100 KiB


class Judgement(NamedTuple):
    """The verdict over one document and everything that led to it.

    ``failures``: what is broken; each says where (``gpu``, ``test`` or ``field``), ``message``, and by
    ``severity`` (a word of ``faults.Severity``) how bad it is for a machine that is already at work: a gate
    fails on each. ``not_run``: what was asked and not verified, each with its ``reason``. ``degraded``: what
    is less than it should be and no reason to fail. ``data``: what the document says besides.
    """

    verdict: str
    failures: list[dict[str, Any]]
    not_run: list[dict[str, Any]]
    reason: str
    degraded: list[str]
    data: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """The judgement as one JSON object, the verdict first."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "failures": self.failures,
            "not_run": self.not_run,
            "degraded": self.degraded,
            **self.data,
        }


def decide(
    *,
    passed: str,
    failures: Sequence[dict[str, Any]] = (),
    not_run: Sequence[dict[str, Any]] = (),
    degraded: Iterable[str] = (),
    data: dict[str, Any] | None = None,
) -> Judgement:
    """The judgement that follows: any failure fails, anything not verified is unknown, else it passed.

    ``passed`` is the reason of a pass. Each failure needs a ``message``, each of ``not_run`` a ``reason``.
    """
    if failures:
        verdict, reason = FAIL, _first(failures, "message")
    elif not_run:
        verdict, reason = UNKNOWN, _first(not_run, "reason")
    else:
        verdict, reason = PASS, passed
    cut = {
        f"more_{name}": len(entries) - ENTRIES
        for name, entries in (("failures", failures), ("not_run", not_run))
        if len(entries) > ENTRIES
    }
    return Judgement(
        verdict,
        list(failures[:ENTRIES]),
        list(not_run[:ENTRIES]),
        reason,
        list(dict.fromkeys(degraded))[:ENTRIES],
        {**(data or {}), **cut},
    )


def unknown(reason: str, **data: Any) -> Judgement:
    """Nothing can be said; ``reason`` says why and what to do."""
    return decide(passed="", not_run=[{"reason": reason}], data=data)


def quote(text: str, limit: int = QUOTED) -> str:
    """Somebody else's text on one line, no longer than ``limit`` characters."""
    text = " ".join(text[: 4 * limit].split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def numbers(values: Iterable[int]) -> str:
    """Numbers as people write them: ``0-3, 7``."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def gpus(values: Iterable[int]) -> str:
    """``GPU 3``, ``GPUs 0-3, 7``."""
    unique = set(values)
    return f"GPU{'' if len(unique) == 1 else 's'} {numbers(unique)}"


def counted(count: int, what: str) -> str:
    """``1 GPU``, ``8 GPUs``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def _first(entries: Sequence[dict[str, Any]], key: str) -> str:
    rest = len(entries) - 1
    return str(entries[0][key]) + (f" (and {rest} more)" if rest else "")
