"""The command ``python -m validation.faults``: explains a fault, or lists the catalog.

Exit codes: 0 printed (also for a code that nobody documents: the page says so), 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence

from validation.faults import catalog, nvlink5, page
from validation.faults.model import Fault, Severity

LARGEST = 10**9  # no code is near it: a longer number is a slip

EXAMPLES = """\
examples:
  explain xid 79                            GPU has fallen off the bus
  explain sxid 20034                        an error of an NVSwitch
  explain nvlink5 145 RLW_REMAP 0x40        a sub-code of Xid 144-150: unit, error status (second register)
  explain nvlink5 149 NETIR_LINK_EVT 0x0 0x021425c6    with the first register, which tells sub-codes apart
  explain dcgm 46                           an error id of dcgmi diag; also by name: DCGM_FR_PCIE_WIDTH
  explain kernel init_failed                a kernel message without a code
  list xid --severity fatal

exit codes: 0 printed (also for a code that nobody documents: the page says so), 2 wrong arguments
"""


class BadArgument(Exception):
    """What was asked cannot be looked up; the message says why."""


def main(argv: Sequence[str]) -> int:
    """Runs the command with these arguments and returns its exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        if options.command == "explain":
            faults = explained(options.kind, options.what)
        else:
            faults = [f for f in catalog.every(options.kind) if options.severity in (None, f.severity.value)]
    except BadArgument as error:
        parser.error(str(error))
    if options.json:
        documents = [page.document(fault) for fault in faults]
        alone = options.command == "explain" and len(documents) == 1
        print(json.dumps(documents[0] if alone else documents, indent=2))
    elif options.command == "explain" and len(faults) <= 2:
        print("\n".join(page.text(fault) for fault in faults), end="")
    else:
        for fault in faults:
            print(page.line(fault))
    return 0


def explained(kind: str, what: Sequence[str]) -> list[Fault]:
    """The entries that the words after ``explain KIND`` ask for. Raises ``BadArgument``."""
    if kind == "nvlink5":
        return _explained_nvlink5(what)
    if len(what) != 1:
        raise BadArgument(f"'explain {kind}' takes one code or name, not {len(what)}: {' '.join(what)}")
    (word,) = what
    if kind == "kernel":
        fault = catalog.kernel(word)
        if not fault.sources:
            names = ", ".join(entry.name for entry in catalog.every("kernel"))
            raise BadArgument(f"there is no kernel message {word!r}; there are: {names}")
        return [fault]
    find = {"xid": catalog.xid, "sxid": catalog.sxid, "dcgm": catalog.dcgm_error}[kind]
    if word.lstrip("-").isdecimal():
        return [find(_number(word, 10))]
    fault = find(word)
    if not fault.sources:
        raise BadArgument(f"{word!r} is neither a number nor a name of the catalog; see 'list {kind}'")
    return [fault]


def _explained_nvlink5(what: Sequence[str]) -> list[Fault]:
    if not 1 <= len(what) <= 4:
        raise BadArgument("'explain nvlink5' takes XID [UNIT [STATUS [INTRINFO]]]: 145 RLW_REMAP 0x40")
    code = _number(what[0], 10)
    if code not in nvlink5.CODES:
        raise BadArgument(f"only Xid 144 to 150 have sub-codes, not {code}; see 'explain xid {code}'")
    unit = what[1] if len(what) > 1 else None
    status = _number(what[2], 16) if len(what) > 2 else None
    if unit and status is not None and len(what) == 4:
        decoded = nvlink5.decode(code, unit, _number(what[3], 16), status)
        if decoded:
            return [decoded.fault]
    faults = nvlink5.rows(code, unit, status)
    if faults:
        return faults
    if unit and not nvlink5.rows(code, unit):
        units = sorted({fault.name for fault in nvlink5.rows(code)})
        raise BadArgument(f"Xid {code} has no unit {unit!r}; there are: {', '.join(units)}")
    about = catalog.xid(code)
    unknown = "the sub-code table has no row for this error status"
    return [about._replace(kind="nvlink5", name=f"{unit} {what[2]}", meaning=f"{about.meaning}; {unknown}")]


def _number(word: str, base: int) -> int:
    try:
        number = int(word, base)
    except ValueError:
        raise BadArgument(f"{word!r} is not a number") from None
    if not 0 <= number <= (LARGEST if base == 10 else 0xFFFFFFFF):
        raise BadArgument(f"{word} is out of range")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m validation.faults",
        description="Explains faults of GPUs and NVSwitches: what a code means, how bad it is, what to do.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="{explain,list}")
    for name, about in (("explain", "all about one code"), ("list", "the catalog, one line an entry")):
        command = commands.add_parser(
            name,
            help=about,
            description=about,
            epilog=EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_argument("kind", type=str.lower, choices=catalog.KINDS, help="which numbers")
        if name == "explain":
            what = "code or name; nvlink5: XID [UNIT [STATUS [INTRINFO]]]"
            command.add_argument("what", nargs="+", help=what)
        else:
            command.add_argument("--severity", choices=[severity.value for severity in Severity])
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has enough (head) is no error
    sys.exit(main(sys.argv[1:]))
