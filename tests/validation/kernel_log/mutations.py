"""Logs that were damaged on their way.

Also a program: ``python -m tests.validation.kernel_log.mutations COUNT [SEED]``.
"""

from __future__ import annotations

import io
import random
import sys
import time

from tests.validation.kernel_log.cases import CASES
from tests.validation.kernel_log.transports import ONE_LINE, TRANSPORTS
from validation.kernel_log import events, events_of_stream

PIECES = [
    b"NVRM: Xid (PCI:0000:01:00): 79, ",
    b"NVRM: ",
    b"SXid (PCI:",
    b"AER: ",
    b"PCIe Bus Error: severity=",
    b"message repeated 999999999 times: [ ",
    b"#012",
    b"\\x0a",
    b"{",
    b'{"MESSAGE":[78,86,82,77,58,32',
    b"__CURSOR=s\nMESSAGE\n\xff\xff\xff\xff\xff\xff\xff\x7fNVRM",
    b"[999999999999.999999999] ",
    b"\n ",
    b"\0",
    b"\xff",
    b"\x1b[0m",
    b"9" * 5000,
    b"a" * 3000,
    b"pid=" + b"9" * 5000,
    b"(0x" + b"f" * 300,
]


def mutated(generator: random.Random) -> bytes:
    """One to four records in one transport, damaged."""
    case = generator.choice(CASES)
    names = list(TRANSPORTS if "\n" in case.text else ONE_LINE)
    wrap = ONE_LINE[generator.choice(names)]
    records = [
        case.text,
        *(generator.choice(CASES).text.replace("\n", " ") for _ in range(generator.randrange(4))),
    ]
    raw = bytearray("\n".join(wrap(text) for text in records).encode("utf-8", "surrogatepass"))
    for _ in range(generator.randrange(1, 9)):
        at = generator.randrange(len(raw) + 1)
        to = min(len(raw), at + generator.randrange(1, 40))
        match generator.randrange(7):
            case 0:
                del raw[at:to]
            case 1:
                raw[at:at] = generator.choice(PIECES)
            case 2:
                raw[at:to] = generator.randbytes(to - at)
            case 3:
                del raw[at:]
            case 4:
                raw[at:at] = raw[at:to] * generator.randrange(1, 50)
            case 5:
                del raw[:at]
            case _:
                for place in range(at, to):
                    raw[place] ^= 1 << generator.randrange(8)
    return bytes(raw)


def read(raw: bytes) -> int:
    """Reads it in each way and returns how many events there were. Raises what the reader raises."""
    found = list(events_of_stream(io.BytesIO(raw).readinto))
    for some in (found, list(events([raw])), list(events(raw.split(b"\n")))):
        for event in some:
            assert event.kind in ("xid", "sxid", "fallen_off_bus", "aer", "driver")
            assert event.severity in ("fatal", "degraded", "warn", "info", "unknown")
            assert event.count >= 1
            event.document()
    return len(found)


def main(count: int, seed: int) -> None:
    """Reads so many mutated logs and says what came of it."""
    generator = random.Random(seed)
    started = time.process_time()
    total = longest = 0.0
    for _ in range(count):
        raw = mutated(generator)
        before = time.process_time()
        total += read(raw)
        longest = max(longest, time.process_time() - before)
    seconds = time.process_time() - started
    print(f"{count} mutated logs, {total:.0f} events")
    print(f"{seconds:.0f} s of CPU, the longest {longest * 1000:.0f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
