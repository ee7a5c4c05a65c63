"""The command ``python -m validation.kernel_log``: one JSON object for each fault in a kernel log.

Exit codes: 0 read to its end, whatever was found; 2 wrong arguments or a log that cannot be read.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence

from validation.kernel_log import events_of_stream, source

PROGRAM = "python -m validation.kernel_log"
USAGE = f"usage: {PROGRAM} [-h] [FILE|-]"
MANUAL = f"""\
{USAGE}

Reads a kernel log and prints one JSON object a line for each fault of a GPU or NVSwitch in it.

FILE may be a file, a pipe, or /dev/kmsg (read up to its end); - or nothing is standard input. Any of these:
  dmesg (with -T, -x, -r, -d, -J, --time-format=...)         journalctl -k (with any -o)
  /dev/kmsg           syslog, kern.log (RFC 3164, RFC 5424, ISO time)           talosctl dmesg
  fabricmanager.log   lines that a container runtime wrapped (json-file, CRI), or grep or pdsh with a name
Best: journalctl -k -b -o json, or /dev/kmsg, because only these tell who wrote a line.

Each object:
  kind      xid, sxid, fallen_off_bus (a GPU lost without an Xid), aer (PCIe error), driver (other messages)
  code      the number of an Xid or SXid, else null          name      NVIDIA's mnemonic, or ours
  pci       0000:3b:00, lower case, without function; null when no line said it
  severity  fatal, degraded, warn, info, unknown (nobody documents it)       action    what to do
  count     records with this code; related: codes of records that tell of the same fault and were joined
  first     time of the first record: ISO 8601 as far as the line gives it (--11-07T... without a year,
            no zone: local time), or seconds since boot, or null      last      the same of the last
  line      what the kernel said                  injected  true: a program wrote it, not the kernel
and, where a line says so: link(s), mig, unit, word, table, target, caused_by, reset, pid, process, uuid,
printed_one_of (the driver printed one in N of them), records (all that were joined, if more than count),
layer, driver, port (of a PCIe error).

A line that quotes the kernel (of sshd, of a health checker) is no fault. What a code means:
  python -m validation.faults explain xid 79

Exit codes: 0 read to its end, whatever was found; 2 wrong arguments or a log that cannot be read.
"""


def main(argv: Sequence[str]) -> int:
    """Runs the command with these arguments and returns its exit code."""
    if any(word in ("-h", "--help") for word in argv):
        print(MANUAL, end="")
        return 0
    options = [word for word in argv if word.startswith("-") and word not in ("-", "--")]
    paths = [word for word in argv if word != "--" and word not in options]
    if options or len(paths) > 1:
        one = f"one log at a time, not {len(paths)}: cat FILE FILE | {PROGRAM}"
        what = f"unknown option {options[0]}; see --help" if options else one
        print(f"{USAGE}\n{PROGRAM}: error: {what}", file=sys.stderr)
        return 2
    try:
        for event in events_of_stream(source.reader(paths[0] if paths else "-")):
            print(json.dumps(event.document()), flush=True)
    except source.Unreadable as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has enough (head) is no error
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
