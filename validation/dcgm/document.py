"""Finds the JSON documents in what dcgmi printed. Pure: text in, values out.

dcgmi may print lines before the document (a log line, "Health monitor systems report") and more than one
document: a run of several iterations that fails prints an error document and then the iterations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

# jsoncpp's styled writer begins a document in the first column and indents all that is in it, so the inner
# part of a document that was cut off is never taken for a document.
_BEGIN = re.compile(r"^[{\[]", re.MULTILINE)
ATTEMPTS = 50  # beginnings that are tried: a bound for texts that are full of them
DIGITS = 18  # of an integer that is read as one; longer ones are no number that dcgmi prints


class Found(NamedTuple):
    """``roots``: the documents. ``broken``: why other JSON cannot be read. ``rest``: the text around it."""

    roots: list[Any]
    broken: list[str]
    rest: str


def find(text: str) -> Found:
    """The JSON documents in a text."""
    text = text.lstrip("\ufeff \t\r\n")
    repeated: list[str] = []
    decoder = json.JSONDecoder(
        parse_int=_integer, parse_constant=str, object_pairs_hook=_object(repeated.append)
    )
    roots, broken, rest, position = [], [], [], 0
    for _ in range(ATTEMPTS):
        begin = _BEGIN.search(text, position)
        if not begin:
            break
        rest.append(text[position : begin.start()])
        try:
            root, position = decoder.raw_decode(text, begin.start())
            roots.append(root)
        except RecursionError:
            broken.append("JSON that is nested too deeply")
            break
        except json.JSONDecodeError as error:
            if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
                broken.append("JSON that is cut off")
                break
            broken.append(f"text that is no JSON from line {error.lineno} on: {error.msg}")
            position = begin.end()
    rest.append(text[position:])
    broken += [f"JSON with the key {key[:40]!r} twice in one object" for key in repeated[:3]]
    return Found(roots, broken, "".join(rest))


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= DIGITS else "(a number of " + str(len(digits)) + " digits)"


def _object(note: Callable[[str], None]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Reads an object and notes the keys that it has twice: which of the two is meant, nobody can say."""

    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            keys = [key for key, _ in pairs]
            for key in {key for key in keys if keys.count(key) > 1} if len(keys) < 1000 else ["(many)"]:
                note(key)
        return made

    return read


def mapping(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> list[Any]:
    """The value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def number(value: object) -> int | None:
    """A small non-negative integer, also one written as a string ("0", as DCGM 3 does); else None."""
    if isinstance(value, str) and len(value) <= 6 and value.isascii() and value.isdigit():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**6:
        return value
    return None
