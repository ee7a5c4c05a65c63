"""What the exit code of dcgmi means. Extra information: a verdict comes from the document.

dcgmi returns DCGM's return code, of which the shell sees the lowest 8 bits; 0 also when every test was
skipped or a CPU failed. Source: exit_codes.tsv beside this module.
"""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

_TABLE = os.path.join(os.path.dirname(__file__), "exit_codes.tsv")


class ExitStatus(NamedTuple):
    """``hardware``: the code itself says that a GPU is broken, or that a test failed."""

    code: int
    name: str
    hardware: bool
    hint: str

    def __str__(self) -> str:
        return f"exit code {self.code}, {self.name}" + (f": {self.hint}" if self.hint else "")


def exit_status(code: int) -> ExitStatus:
    """The meaning of dcgmi's exit code as a shell sees it (0 to 255), or of DCGM's own code (below 0)."""
    shell = code & 0xFF
    found = _table().get(shell)
    return found if found else ExitStatus(shell, "a code that DCGM does not document", False, "")


@functools.cache
def _table() -> dict[int, ExitStatus]:
    codes = {}
    with open(_TABLE, encoding="utf-8") as file:
        for line in file:
            if line[0].isdigit():
                shell, _, name, kind, hint = line.rstrip("\n").split("\t")
                codes[int(shell)] = ExitStatus(int(shell), name, kind.startswith("hardware"), hint)
    return codes
