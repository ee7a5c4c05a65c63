"""The fast way through a stream finds what the plain way through lines finds, in constant memory."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from images.settings import CHECKOUT
from tests.validation.kernel_log.cases import CASES
from tests.validation.kernel_log.transports import DMESG, OTHERS, SHORT
from validation.kernel_log import events, events_of_stream, needles, transport

NOISE = [
    "usb 1-1.4: new high-speed USB device number 7 using xhci_hcd",
    'audit: type=1400 audit(1.2:3): apparmor="ALLOWED" operation="open" comm="sssd_nss"',
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
    "NVRM: GPU0 nvAssertFailed: something",
    "",
]


def log(name: str, wrap: Callable[[str], str], seed: int) -> str:
    random.seed(f"{name} {seed}")
    lines = []
    for case in random.sample(CASES, 25):
        lines += [wrap(random.choice(NOISE)) for _ in range(random.randrange(4))]
        lines.append(wrap(case.text))
    return "\n".join(lines) + "\n"


LINES = {
    **DMESG,
    **SHORT,
    **{name: OTHERS[name] for name in ("/dev/kmsg", "rsyslog", "Talos", "journalctl json")},
}


@pytest.mark.parametrize("block", [64, 1000, 1 << 18])
@pytest.mark.parametrize("name", LINES)
def test_stream_and_lines_agree(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BLOCK", block)
    text = log(name, LINES[name], block)
    expected = list(events(text.split("\n")))
    assert len(expected) > 5
    assert list(events_of_stream(io.BytesIO(text.encode()).readinto)) == expected


@pytest.mark.parametrize("name", ["journalctl export", "journalctl json-pretty"])
def test_structured_stream_in_small_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BLOCK", 100)
    wrap = OTHERS[name]
    ends = "" if name.endswith("export") else "\n"
    text = "".join(wrap(case.text) + ends for case in CASES if case.kind == "xid")
    expected = list(events(text.split("\n")))
    assert len(expected) > 20
    assert list(events_of_stream(io.BytesIO(text.encode()).readinto)) == expected


def test_binary_file_is_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text(log("dmesg ", DMESG["dmesg "], 2))
    with path.open("rb") as file, path.open("rb", buffering=0) as raw, path.open() as text:
        expected = list(events(path.read_text().split("\n")))
        assert list(events(file)) == list(events(raw)) == list(events(text)) == expected
        assert not file.read(1)


def test_short_reads() -> None:
    text = log("dmesg ", DMESG["dmesg "], 1).encode()
    source = io.BytesIO(text)

    def one_byte(buffer: memoryview) -> int:
        return source.readinto(buffer[:1])

    assert list(events_of_stream(one_byte)) == list(events(text.decode().split("\n")))


def test_record_longer_than_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BLOCK", 1 << 10)
    monkeypatch.setattr(transport, "CAPACITY", 1 << 12)
    xid = b"\n[ 2.0] NVRM: Xid (PCI:0000:01:00): 79, off\n"
    for filler in (b"x" * 20_000, b"\n ".join([b"y" * 50] * 400), b"\n" * 20_000, b"\0" * 20_000):
        raw = b"[ 1.0] " + filler + xid + filler
        assert [event.code for event in events_of_stream(io.BytesIO(raw).readinto)] == [79]


def test_last_line_without_a_line_break() -> None:
    raw = b"[ 1.0] usb 1-1: new device\n[ 2.0] NVRM: Xid (PCI:0000:01:00): 79"
    assert [event.code for event in events_of_stream(io.BytesIO(raw).readinto)] == [79]


@pytest.mark.parametrize(
    "raw", [b"", b"\n", b"{", b"{\n", b"}\n", b"__CURSOR=", b"__CURSOR=\n\n", b"\xff" * 9]
)
def test_nothing(raw: bytes) -> None:
    assert list(events_of_stream(io.BytesIO(raw).readinto)) == []
    assert list(events([raw])) == []


def test_search_without_libc(monkeypatch: pytest.MonkeyPatch) -> None:
    text = log("plain", DMESG["dmesg "], 3)
    monkeypatch.setattr(needles, "_libc", lambda buffer: (None, 0))
    assert list(events_of_stream(io.BytesIO(text.encode()).readinto)) == list(events(text.split("\n")))


@pytest.mark.parametrize("nul", [False, True])
@pytest.mark.parametrize("libc", [False, True])
def test_haystack(libc: bool, nul: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not libc:
        monkeypatch.setattr(needles, "_libc", lambda buffer: (None, 0))
    hay = needles.Haystack(64)
    hay.seal(0)
    text = b"NVRM\0.NVRMNVR" if nul else b"NVRM..NVRMNVR"
    hay.view[: len(text)] = text
    hay.view[len(text) : len(text) + 1] = b"M"  # left over from the block before
    hay.seal(len(text))
    assert [hay.find(b"NVRM", start, len(text)) for start in (0, 1, 6, 7)] == [0, 6, 6, -1]


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    line = b"[12345.678901] docker0: port 7(veth7a) entered forwarding state\n"
    flood = (
        b"[12345.678901] NVRM: Xid (PCI:0000:01:00): 95, pid=7, Uncontained: FBHUB. RST: Yes, D-RST: No\n"
    )
    program = (
        "import sys; from validation.kernel_log import __main__ as m; m.main(sys.argv[1:]);"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    used = []
    for size in (1, 40):
        path = tmp_path / f"{size}.log"
        path.write_bytes(line * (size * 15_000) + flood * (size * 100))
        words = [sys.executable, "-c", program, str(path)]
        done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=True)
        used.append(int(done.stdout.split()[-2]))
        assert done.stdout.count('"count"') == 1
    assert used[1] - used[0] < 2048  # KiB; the second log is 36 MB longer
