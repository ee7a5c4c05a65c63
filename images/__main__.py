"""``python -m images``: Invoke, with this project's exit code for wrong input (``docs/exit-codes.md``)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from invoke import __version__
from invoke.exceptions import Exit, ParseError
from invoke.program import Program

from images.errors import ExitCode


class Launcher(Program):
    """Invoke ends with 1 for options it does not know, which here means that a build or check failed."""

    def parse_core(self, argv: list[str] | None) -> None:
        """As Invoke's; wrong input is exit code 2."""
        with _wrong_input():
            super().parse_core(argv)

    def parse_collection(self) -> None:
        """As Invoke's; wrong input is exit code 2."""
        with _wrong_input():
            super().parse_collection()

    def parse_tasks(self) -> None:
        """As Invoke's; wrong input is exit code 2."""
        with _wrong_input():
            super().parse_tasks()

    def parse_cleanup(self) -> None:
        """As Invoke's; wrong input is exit code 2."""
        with _wrong_input():
            super().parse_cleanup()


@contextlib.contextmanager
def _wrong_input() -> Iterator[None]:
    try:
        yield
    except ParseError as error:
        task = getattr(getattr(error, "context", None), "name", None)
        hint = f"./inv {task} --help" if task else "./inv --list"
        raise Exit(f"error: {error}\nhint:  {hint}", code=ExitCode.USAGE) from None


def help_first(argv: Sequence[str]) -> list[str]:
    """``inv TASK ... --help`` as ``inv --help TASK``: Invoke takes a ``--help`` behind a task for the value
    of the positional argument that is still missing."""
    words = [word for word in argv[1:] if not word.startswith("-")]
    if words and ("--help" in argv[2:] or "-h" in argv[2:]):
        return [argv[0], "--help", words[0]]
    return list(argv)


if __name__ == "__main__":
    launcher = Launcher(name="inv", binary="inv", binary_names=["inv"], version=__version__)
    launcher.run(help_first(sys.argv))
