"""How fast a kernel log is read beside ``grep -F NVRM``, in turn, and in how much memory.

By itself: ``python -m benchmarks.kernel_log [MEGABYTES]``.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from images.settings import CHECKOUT

PYTHON = "/usr/bin/python3"  # what the machine reads with
MEGABYTES = 256
RUNS = 7
# An ordinary log, as far as its letters go: what servers with GPUs print day by day.
ORDINARY = (
    "usb 1-1.4: new high-speed USB device number {n} using xhci_hcd",
    "[UFW BLOCK] IN=eth0 OUT= MAC=00:16:3e:{n}:aa:bb SRC=10.0.{n}.7 DST=10.0.0.{n} LEN=40 PROTO=TCP SYN",
    'audit: type=1400 audit(17000000{n}.123:45): apparmor="ALLOWED" operation="open" pid={n} comm="sssd"',
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{n}: link becomes ready",
    "docker0: port {n}(veth{n}a) entered forwarding state",
    "EXT4-fs (nvme0n1p{n}): mounted filesystem with ordered data mode. Quota mode: none.",
    "pci 0000:{n}:00.0: BAR 14: assigned [mem 0xc0000000-0xc00fffff]",
    "systemd[1]: Started Session {n} of User root.",
    "CPU{n}: Core temperature above threshold, cpu clock throttled (total events = {n})",
    "mlx5_core 0000:{n}:00.0 ens{n}f0: Link up",
    "TCP: request_sock_TCP: Possible SYN flooding on port {n}. Sending cookies.  Check SNMP counters.",
    "perf: interrupt took too long ({n}123 > 2500), lowering kernel.perf_event_max_sample_rate to {n}000",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-{n},task=python3,pid={n}123,uid=0",
    "XFS (sdb{n}): Ending clean mount",
)
XID = "NVRM: Xid (PCI:0000:3b:00): 31, pid={n}123, name=python3, Ch 00000008, intr 00000000. MMU Fault"


class Figures(NamedTuple):
    """What was measured: medians over pairs."""

    megabytes: float
    grep: float  # seconds
    ours: float  # seconds
    speed: float  # ours as a part of grep's, pair by pair
    kib: int  # largest resident memory of ours
    events: int


def against_grep(folder: Path, *, megabytes: int = MEGABYTES) -> Figures:
    """Reads an ordinary log of that size, made in ``folder``, with grep and with ours in turn."""
    log = folder / "kern.log"
    write(log, megabytes)
    ours = [PYTHON, "-S", "-m", "validation.kernel_log", str(log)]
    pairs = [(_run(["grep", "-F", "NVRM", str(log)]), _run(ours)) for _ in range(RUNS + 1)][1:]
    return Figures(
        log.stat().st_size / 1e6,
        statistics.median(grep.seconds for grep, _ in pairs),
        statistics.median(own.seconds for _, own in pairs),
        statistics.median(grep.seconds / own.seconds for grep, own in pairs),
        _memory(log),
        pairs[0][1].lines,
    )


def write(log: Path, megabytes: int) -> None:
    """An ordinary log: lines of kern.log, and an Xid now and then."""
    generator = random.Random(1)
    lines = []
    for i in range(50_000):
        text = XID if i == 25_000 else generator.choice(ORDINARY)
        head = (
            f"Nov {7 + i // 20_000:2} {i // 3600 % 24:02}:{i // 60 % 60:02}:{i % 60:02} gpu-node-17 kernel: "
        )
        lines.append(f"{head}[{i * 2.5:12.6f}] {text.format(n=generator.randrange(10, 99))}\n")
    part = "".join(lines).encode()
    with log.open("wb") as file:
        for _ in range(megabytes * 1_000_000 // len(part) + 1):
            file.write(part)


class _Ended(NamedTuple):
    seconds: float
    lines: int


def _run(command: list[str]) -> _Ended:
    """Runs a command to its end. Its output is read: with /dev/null, grep would stop at the first line."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, check=True)
    return _Ended(time.perf_counter() - started, done.stdout.count(b"\n"))


def _memory(log: Path) -> int:
    """Largest resident memory in KiB. Not by getrusage: that counts the parent's, from before the exec."""
    program = (
        "import sys; from validation.kernel_log import __main__ as m; m.main(sys.argv[1:]);"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    words = [PYTHON, "-S", "-c", program, str(log)]
    done = subprocess.run(words, cwd=CHECKOUT, stdout=subprocess.PIPE, check=True)
    return int(done.stdout.split()[-2])


def main(megabytes: int) -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory(prefix="kernel-log-", dir="/var/tmp") as folder:
        found = against_grep(Path(folder), megabytes=megabytes)
    print(f"{found.megabytes:.0f} MB, {found.events} events; median of {RUNS} pairs")
    print(f"grep -F NVRM {found.grep:.3f} s, ours {found.ours:.3f} s: {found.speed:.2f} of its speed")
    print(f"{found.kib} KiB resident at most")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MEGABYTES)
