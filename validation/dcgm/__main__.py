"""The command ``python -m validation.dcgm``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from validation import reader_command
from validation.dcgm.verdict import LEVELS, judge
from validation.judgement import Judgement

PROG = "python -m validation.dcgm"


def main(argv: Sequence[str]) -> int:
    """Runs the command with these arguments and returns its exit code."""
    parser = reader_command.parser(PROG, "Judges what dcgmi diag -j or dcgmi health -c -j printed.")
    parser.add_argument(
        "--level", type=int, choices=LEVELS, help="the level of the diagnostic that was asked for"
    )
    options = parser.parse_args(argv)

    def judged(text: str) -> Judgement:
        return judge(text, level=options.level, expect_gpus=options.expect_gpus, exit_code=options.exit_code)

    return reader_command.main(options, judged, prog=PROG)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
