"""The command ``python -m validation.nvidia_smi``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from validation import reader_command
from validation.judgement import Judgement
from validation.nvidia_smi.verdict import judge

PROG = "python -m validation.nvidia_smi"


def main(argv: Sequence[str]) -> int:
    """Runs the command with these arguments and returns its exit code."""
    parser = reader_command.parser(PROG, "Judges what nvidia-smi --query-gpu=... --format=csv printed.")
    options = parser.parse_args(argv)

    def judged(text: str) -> Judgement:
        return judge(text, expect_gpus=options.expect_gpus, exit_code=options.exit_code)

    return reader_command.main(options, judged, prog=PROG)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
