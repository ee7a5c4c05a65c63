"""Arguments of the commands whose exit code is a verdict."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

USAGE = 64  # EX_USAGE of sysexits.h: argparse's own 2 would read as "unknown"
MESSAGE = 400  # characters; an argument may be longer


class Parser(argparse.ArgumentParser):
    """Ends with ``USAGE`` for wrong arguments, and takes no abbreviations of options."""

    def __init__(self, *, prog: str, description: str, epilog: str) -> None:
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong, on one line, and exits."""
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {' '.join(message[:MESSAGE].split())}\n")
