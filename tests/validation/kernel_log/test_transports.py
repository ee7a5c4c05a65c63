"""Whatever the transport, the same record gives the same event."""

from __future__ import annotations

import io
import json

import pytest

from tests.validation.kernel_log.transports import ONE_LINE, TRANSPORTS, WALL, Transport, fields, kmsg
from validation.kernel_log import Event, events, events_of_stream

MESSAGES = {
    "xid": "NVRM: Xid (PCI:0000:C3:00.0): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "sxid": "nvidia-nvswitch3: SXid (PCI:0000:0a:00.0): 22013, Non-fatal, Link 55 Minion Link interrupt",
    "driver": "NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x24:0x65:1568)",
    "glued, not ASCII": "NVRM: cpuidle noise NVRM: Xid (PCI:0000:0a:00): 31, pid=7, name=ä\\b, Ch 00000008",
    "port": "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
    "GPU": "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
}
LOST = """\
NVRM: The NVIDIA GPU 0000:b3:00.0
NVRM: (PCI ID: 10de:26b5) installed in this system has
NVRM: fallen off the bus and is not responding to commands."""
# Records that are not lines need a stream that begins with one.
STRUCTURED = ("export", "json-pretty", "dmesg -J")


def without_times(found: list[Event]) -> list[Event]:
    return [event._replace(first=None, last=None) for event in found]


def streamed(text: str) -> list[Event]:
    return list(events_of_stream(io.BytesIO(text.encode()).readinto))


def same_everywhere(text: str, transport: Transport, *, lines: bool) -> None:
    expected = without_times(list(events([text])))
    assert len(expected) == 1
    printed = transport(text)
    assert without_times(list(events([printed]))) == expected
    assert without_times(list(events(printed.split("\n")))) == expected
    assert without_times(list(events([line + "\r\n" for line in printed.split("\n")]))) == expected
    assert without_times(list(events(printed.encode().split(b"\n")))) == expected
    assert without_times(streamed(printed)) == expected
    if lines:
        assert (
            without_times(streamed(f"[    1.0] usb 1-1: new device\n{printed}\n[    9.0] end\n")) == expected
        )


@pytest.mark.parametrize("transport", ONE_LINE)
@pytest.mark.parametrize("message", MESSAGES)
def test_one_line(transport: str, message: str) -> None:
    lines = not any(name in transport for name in STRUCTURED)
    same_everywhere(MESSAGES[message], ONE_LINE[transport], lines=lines)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_three_lines(transport: str) -> None:
    lines = not any(name in transport for name in STRUCTURED)
    same_everywhere(LOST, TRANSPORTS[transport], lines=lines)


@pytest.mark.parametrize("transport", ONE_LINE)
def test_time(transport: str) -> None:
    (event,) = events([ONE_LINE[transport](MESSAGES["xid"])])
    assert event.first == event.last
    if transport.endswith("reltime"):
        assert event.first == "--08-30T11:43"
    elif any(name in transport for name in ("reltime", "delta", "notime")) and "short" not in transport:
        assert event.first is None
    elif isinstance(event.first, float):
        assert event.first == 1843.308145
        assert not any(name in transport for name in ("iso", "ISO", "rsyslog", "RFC", "journalctl short-f"))
    else:
        assert event.first is not None
        assert WALL.replace("2024", "").replace("08-30", "") in event.first.replace("08-30", "").replace(
            "08-03", ""
        )


def test_zone_is_kept() -> None:
    (event,) = events(["2024-08-30T11:43:09.5-0700 host kernel: " + MESSAGES["xid"]])
    assert event.first == "2024-08-30T11:43:09.5-07:00"


@pytest.mark.parametrize(
    "head",
    [
        "Nov 31 25:61:61 host kernel: ",
        "2024-13-45T99:99:99+99:99 host kernel: ",
        "[Foo30 25:61] ",
        "[Fri Foo 30 11:43:09 2024] ",
        "<4>",
    ],
)
def test_impossible_times_are_no_times(head: str) -> None:
    (event,) = events([head + MESSAGES["xid"]])
    assert event.first is None


def test_several_events_in_structured_streams() -> None:
    texts = [f"NVRM: Xid (PCI:0000:{bus:02x}:00): 79, GPU has fallen off the bus." for bus in range(1, 6)]
    noise = "usb 1-1: new device"
    for name in ("journalctl export", "journalctl json-pretty", "journalctl json", "/dev/kmsg"):
        printed = "\n".join(
            TRANSPORTS[name](text).rstrip("\n") + "\n" * (1 + (name == "journalctl export"))
            for one in texts
            for text in (noise, one, noise)
        )
        if name == "journalctl export":
            printed = printed.replace("\n\n\n", "\n\n")
        for found in (streamed(printed), list(events(printed.split("\n")))):
            assert [event.pci for event in found] == [f"0000:{bus:02x}:00" for bus in range(1, 6)], name


def test_dmesg_json_of_several() -> None:
    objects = ",".join(
        f'{{\n         "pri": 4,\n         "time": {bus}.5,\n'
        f'         "msg": "NVRM: Xid (PCI:0000:{bus:02x}:00): 79, Data {{0x1}}, x"\n      }}'
        for bus in range(1, 5)
    )
    printed = f'{{\n   "dmesg": [\n      {objects}\n   ]\n}}\n'
    for found in (streamed(printed), list(events(printed.split("\n"))), list(events([printed]))):
        assert [(event.pci, event.first) for event in found] == [
            (f"0000:{b:02x}:00", b + 0.5) for b in range(1, 5)
        ]


def test_message_of_the_journal_that_is_too_long() -> None:
    assert list(events([json.dumps(fields("", MESSAGE=None, NOTE="NVRM: Xid"))])) == []
    twice = fields("", MESSAGE=["NVRM: Xid (PCI:0000:01:00): 79, x", "second"])
    assert [event.code for event in events([json.dumps(twice)])] == [79]


def test_journal_that_does_not_tell_the_writer() -> None:
    (event,) = events([json.dumps({"__CURSOR": "s=1", "MESSAGE": MESSAGES["xid"]})])
    assert (event.code, event.injected) == (79, False)
    (event,) = events([json.dumps({"MESSAGE": MESSAGES["xid"], "SYSLOG_IDENTIFIER": "job"})])
    assert event.injected


def test_kmsg_with_a_level_but_no_flags() -> None:
    (event,) = events(["6,1000,100;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."])
    assert (event.first, event.injected) == (0.0001, False)


def test_colours_and_byte_order_mark() -> None:
    line = "\ufeff\x1b[32m[ 1843.308145] \x1b[0m\x1b[33mNVRM: \x1b[0mXid (PCI:0000:01:00): 79, x"
    (event,) = events([line])
    assert (event.code, event.first) == (79, 1843.308145)


def test_nul_bytes_of_a_crash() -> None:
    head = "Nov  7 18:17:15 host kernel: "
    text = "\0" * 4096 + head + MESSAGES["xid"] + "\n" + head + MESSAGES["driver"] + "\n"
    assert [event.kind for event in streamed(text)] == ["xid", "driver"]


def test_invalid_utf8() -> None:
    raw = b"[ 1.5] NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=\xff\xfe, Ch 8\n"
    (event,) = events_of_stream(io.BytesIO(raw).readinto)
    assert (event.code, event.details["process"]) == (31, "\\xff\\xfe")


@pytest.mark.parametrize("priority", [12, 11, 30, 4 + 8 * 16])
def test_kmsg_of_a_program_is_injected(priority: int) -> None:
    (event,) = events([kmsg(MESSAGES["xid"], priority)])
    assert event.injected
