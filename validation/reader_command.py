"""The frame of the readers' commands: ``python -m validation.dcgm FILE`` and the like.

Exit codes: 0 pass, 1 fail, 2 unknown; what is no verdict has a code of sysexits.h.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable

from validation.arguments import Parser
from validation.judgement import FAIL, INPUT_LIMIT, PASS, UNKNOWN, Judgement, quote

EXIT_CODES = {PASS: 0, FAIL: 1, UNKNOWN: 2}
NO_INPUT, SOFTWARE, INTERRUPTED = 66, 70, 130
COUNT_LIMIT = 4096  # GPUs that can be expected


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """The arguments that the commands of all readers have; a reader adds its own."""
    made = Parser(
        prog=prog,
        description=description,
        epilog="Prints one JSON object. Exit codes: 0 pass, 1 fail, 2 unknown, 64 wrong arguments, "
        "66 the file cannot be read.",
    )
    made.add_argument("file", metavar="FILE", help="what the tool printed; - reads standard input")
    made.add_argument(
        "--expect-gpus", type=_count, metavar="N", help="the number of GPUs that the machine should have"
    )
    made.add_argument(
        "--exit-code", type=_exit_code, metavar="CODE", help="the exit code of the tool that printed it"
    )
    return made


def main(options: argparse.Namespace, judge: Callable[[str], Judgement], *, prog: str) -> int:
    """Reads ``options.file``, prints what ``judge`` says of it and returns the exit code.

    Nothing escapes as a traceback, and no error of ours has the exit code of a verdict.
    """
    try:
        text = read(options.file)
    except OSError as error:
        hint = "" if options.file == "-" else "; give a file, or - for standard input"
        print(f"{prog}: {options.file} cannot be read: {error.strerror or error}{hint}", file=sys.stderr)
        return NO_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    try:
        judgement = judge(text)
        output = json.dumps(judgement.document(), allow_nan=False, indent=2)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # a reader must not raise; if one does, that is no verdict either
        print(f"{prog}: an error in the reader itself: {type(error).__name__}: {error}", file=sys.stderr)
        return SOFTWARE
    try:
        print(output, flush=True)
    except BrokenPipeError:  # `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_CODES[judgement.verdict]


def read(path: str) -> str:
    """The text of a file, or of standard input for ``-``; more than ``INPUT_LIMIT`` bytes are cut off.

    A byte order mark decides between UTF-8 and UTF-16 (a log saved by PowerShell); bytes that are no text
    become U+FFFD. Raises ``OSError``.
    """
    if path == "-":
        content = sys.stdin.buffer.read(INPUT_LIMIT + 1)
    else:
        with open(path, "rb") as file:
            content = file.read(INPUT_LIMIT + 1)
    return decode(content)


def decode(content: bytes) -> str:
    """Bytes of a file as text; see ``read``."""
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return content.decode(encoding, errors="replace")


def _count(text: str) -> int:
    return _integer(text, low=0, high=COUNT_LIMIT, what="a number of GPUs")


def _exit_code(text: str) -> int:
    return _integer(text, low=-64, high=255, what="an exit code")


def _integer(text: str, *, low: int, high: int, what: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{quote(text, 40)!r} is not {what} ({low} to {high})")
    return value
