"""``python -m tests.apt_fixture --serve DIR`` and ``--build DIR``: the repositories, for people.

Exit codes as everywhere here: 0 done (so too a server that was ended by SIGINT or SIGTERM), 1 failed,
2 wrong input, 130 interrupted while building.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from images.errors import ExitCode, UserError
from tests.apt_fixture import Options, build, serve


class _Ended(BaseException):
    """SIGINT or SIGTERM came. Not an Exception: nobody on the way takes it for an error."""


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.apt_fixture", description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--build", metavar="DIR", type=Path, help="build into DIR, which must not exist")
    what.add_argument(
        "--serve",
        metavar="DIR",
        type=Path,
        help="serve DIR; if it does not exist, build it, and remove it at the end",
    )
    parser.add_argument("--address", default="127.0.0.1", help="within 127.0.0.0/8")
    parser.add_argument("--port", type=int, default=0, help="0: one that is free")
    for field in dataclasses.fields(Options):
        name, default = "--" + field.name.replace("_", "-"), field.default
        if isinstance(default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=default)
        elif isinstance(default, tuple):
            shown = " ".join(default) or "none"
            parser.add_argument(name, nargs="+", metavar="X", default=default, help=f"default: {shown}")
        elif field.name == "signed":
            parser.add_argument(name, choices=("key", "foreign", "nobody"), default=default)
        else:
            parser.add_argument(name, default=default)
    return parser


def _options(arguments: argparse.Namespace) -> Options:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Options):
        value = getattr(arguments, field.name)
        values[field.name] = tuple(value) if isinstance(field.default, tuple) else value
    return Options(**values)


def _serve(arguments: argparse.Namespace) -> None:
    ours = not arguments.serve.exists()
    try:
        if ours:
            build(arguments.serve, _options(arguments))
        with serve(arguments.serve, address=arguments.address, port=arguments.port) as served:
            for path, count in served.fixture.repositories.items():
                print(f"{served.uri(path)}/  {count} packages", file=sys.stderr)
            print(f"keyring: {served.fixture.keyring.absolute()}", file=sys.stderr)
            print(served.url, flush=True)
            threading.Event().wait()
    finally:
        if ours:
            shutil.rmtree(arguments.serve, ignore_errors=True)


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments = _arguments().parse_args(argv)

    def end(signum: int, _: object) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_IGN)  # cleaning up takes moments
        raise _Ended

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, end)
    try:
        if arguments.build:
            fixture = build(arguments.build, _options(arguments))
            print(fixture.root)
        else:
            _serve(arguments)
    except _Ended:
        return ExitCode.INTERRUPTED if arguments.build else ExitCode.DONE
    except UserError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.code
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
