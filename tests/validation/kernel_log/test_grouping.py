"""Records of one fault are one event; other faults stay others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.validation.kernel_log.lines import GPU, recovery, timed, untimed, xid
from validation.kernel_log import Event, events

OTHER = "0000:02:00"
LOST = "GPU has fallen off the bus."
Clock = Callable[..., list[str]]
both = pytest.mark.parametrize("clock", [timed, untimed])


def codes(found: list[Event]) -> list[tuple[int | None, int, tuple[int, ...]]]:
    return [(event.code, event.count, event.related) for event in found]


@both
def test_memory_error(clock: Clock) -> None:
    contained = "pid=7, Contained: SM (0x1). RST: No, D-RST: No"
    (event,) = events(clock((1, xid(48)), (1.001, xid(63)), (1.002, xid(94, contained))))
    assert (event.code, event.count, event.related, event.severity) == (48, 1, (63, 94), "fatal")
    assert event.details["records"] == 3


@both
def test_memory_error_that_is_named_last(clock: Clock) -> None:
    (event,) = events(clock((1, xid(94)), (1.001, xid(63)), (1.002, xid(171)), (1.003, xid(48))))
    assert (event.code, event.count, event.severity) == (48, 1, "fatal")
    assert set(event.related) == {94, 63, 171}
    assert event.line == xid(48)


@both
def test_nvlink5_fault(clock: Clock) -> None:
    """Times as measured for one injected link fault (NVIDIA/NVSentinel and others: +0.6, +283, +404 ms)."""
    down = xid(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x016415c6 0x00000000 0x0 0x0 0x0 0x0)")
    removed = xid(45, "pid=7, name=python3, Ch 0000000c caused by previous Xid 149")
    (event,) = events(clock((1.0006, down), (1.283, removed), (1.3, removed), (1.404, recovery(1))))
    assert (event.code, event.severity, event.related) == (149, "fatal", (45, 154))
    assert (event.details["target"], event.details["link"], event.details["word"]) == (1, 0, "Fatal")


def test_nvlink5_warning_that_154_makes_fatal() -> None:
    nonfatal = xid(145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x0 0x0 0x0 0x0)")
    (alone,) = events(timed((1, nonfatal)))
    assert alone.severity == "warn"
    assert alone.details["table"]["bucket"] == "XID_154_EVAL"
    (event,) = events(timed((1, nonfatal), (1.4, recovery(2))))
    assert (event.code, event.severity, event.action) == (145, "fatal", "drain, then reboot the node")


def test_nvlink5_the_gravest_names_it() -> None:
    nonfatal = xid(145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x1 0x0 0x0 0x4)")
    down = xid(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 13 (0x021425c6 0x00000000 0x0 0x0 0x0 0x0)")
    (event,) = events(timed((1, nonfatal), (1.1, down)))
    assert (event.code, event.related, event.severity) == (149, (145,), "fatal")


@both
def test_many_links_are_one_fault(clock: Clock) -> None:
    text = "NETIR_LINK_EVT Fatal XC0 i0 Link {:02} (0x021425c6 0x00000000 0x0 0x0 0x0 0x0)"
    (event,) = events(clock(*[(1 + link / 1000, xid(149, text.format(link))) for link in range(18)]))
    assert (event.count, event.details["links"]) == (18, list(range(18)))


@both
def test_lost_gpu(clock: Clock) -> None:
    short = f"NVRM: GPU {GPU}.0: {LOST}"
    serial = f"NVRM: GPU {GPU}.0: GPU serial number is 1650923000000."
    for lines in ((xid(79, LOST), short), (short, xid(79, LOST))):
        (event,) = events(
            clock((1, lines[0]), (1, lines[1]), (1.1, serial), (2, recovery(2)), (7, xid(119)))
        )
        assert (event.kind, event.code, event.count, event.related) == ("xid", 79, 1, (154, 119))


def test_lost_gpu_of_which_only_the_second_line_is_left() -> None:
    (event,) = events([f"NVRM: GPU {GPU}.0: {LOST}"])
    assert (event.kind, event.code, event.pci, event.severity) == ("fallen_off_bus", None, GPU, "fatal")
    (event,) = events(["NVRM: GPU 02:00.0: GPU has fallen off the bus."])
    assert event.pci == "0000:02:00"
    (event,) = events(["NVRM: GPU at 0000:02:00.0 has fallen off the bus."])
    assert (event.kind, event.pci) == ("fallen_off_bus", "0000:02:00")


def test_two_gpus_lost_in_one_probe() -> None:
    lines = []
    for bus in ("b3", "b4"):
        lines += [
            f"NVRM: The NVIDIA GPU 0000:{bus}:00.0",
            "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        ]
        lines += ["NVRM: fallen off the bus and is not responding to commands."]
    for version in (lines, [f"Nov  7 18:17:15 gpu-1 kernel: {line}" for line in lines]):
        found = list(events(version))
        assert [(event.kind, event.pci, event.count) for event in found] == [
            ("fallen_off_bus", "0000:b3:00", 1),
            ("fallen_off_bus", "0000:b4:00", 1),
        ]


@both
def test_switch(clock: Clock) -> None:
    head = "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 24007, "
    first = f"{head}Fatal, Link 28 sourcetrack timeout error (First)"
    severity = f"{head}Severity 1 Engine instance 28 Sub-engine instance 00"
    data = f"{head}Data {{0x10000000, 0x10008100}}"
    (event,) = events(clock((1, first), (1.001, severity), (1.002, data)))
    assert (event.code, event.count, event.severity, event.details["link"]) == (24007, 3, "fatal", 28)


def test_switch_links_are_interleaved() -> None:
    head = "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 11004, "
    lines = [f"{head}Non-fatal, Link {link} ingress invalid ACL (First)" for link in (36, 42)]
    lines += [f"{head}Severity 0 Engine instance {link} Sub-engine instance 00" for link in (36, 42)]
    found = list(events(lines))
    assert [(event.details["link"], event.count) for event in found] == [(36, 2), (42, 2)]


def test_data_record_does_not_overrule_the_word() -> None:
    """The driver prints 19055 as Fatal; where it said Non-fatal, a record without a word changes nothing."""
    head = "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 19055, "
    (event,) = events([f"{head}Non-fatal, Link 30 x", f"{head}Data {{0x5}}"])
    assert event.severity == "warn"
    (event,) = events([f"{head}Data {{0x5}}", f"{head}Severity 0 Engine instance 30"])
    assert event.severity == "warn"


@both
def test_interleaved_gpus(clock: Clock) -> None:
    records = [
        (1 + i / 1000, xid(code, pci=pci)) for i, code in enumerate((48, 63, 94)) for pci in (GPU, OTHER)
    ]
    found = list(events(clock(*records)))
    assert [(event.pci, *codes([event])[0]) for event in found] == [
        (GPU, 48, 1, (63, 94)),
        (OTHER, 48, 1, (63, 94)),
    ]


def test_mig_instances_are_apart() -> None:
    text = "94, pid=7, Contained: CE User Channel (0x9). RST: No, D-RST: No"
    found = list(events([f"NVRM: Xid (PCI:{GPU} GPU-I:{i:02}): {text}" for i in (5, 5, 6)]))
    assert [(event.details["mig"], event.count) for event in found] == [("5", 2), ("6", 1)]
    removed = f"NVRM: Xid (PCI:{GPU} GPU-I:05 GPU-CI:00): 45, pid=7, name=a, Ch 1"
    found = list(events([f"NVRM: Xid (PCI:{GPU} GPU-I:{i:02}): {text}" for i in (5, 6)] + [removed]))
    assert [(event.details["mig"], event.related) for event in found] == [("5", (45,)), ("6", ())]


@both
def test_recovery_ends_a_fault(clock: Clock) -> None:
    found = list(events(clock((1, xid(119)), (2, recovery(1)), (20, recovery(0)), (30, xid(119)))))
    assert codes(found) == [(119, 1, (154,)), (154, 1, ()), (119, 1, ())]
    assert [event.severity for event in found] == ["fatal", "info", "fatal"]
    assert found[1].details["target"] == 0


@both
def test_driver_load_ends_a_fault(clock: Clock) -> None:
    load = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
    assert codes(list(events(clock((1, xid(79)), (2, load), (3, xid(79)))))) == [(79, 1, ()), (79, 1, ())]


@both
def test_power_smoothing(clock: Clock) -> None:
    (event,) = events(clock((1, xid(163)), (1000, xid(162))))
    assert (event.code, event.severity, event.related) == (163, "info", (162,))
    (event,) = events(clock((1, xid(163))))
    assert event.severity == "warn"
    assert codes(list(events(clock((1, xid(163)), (2, xid(162)), (3, xid(163)))))) == [
        (163, 1, (162,)),
        (163, 1, ()),
    ]


def test_removed_channels_follow_what_they_name() -> None:
    named = "Ch 1 caused by previous Xid 31"
    found = list(events(timed((1, xid(31)), (1.1, xid(119)), (1.2, xid(45, named)))))
    assert codes(found) == [(31, 1, (45,)), (119, 1, ())]
    found = list(events(timed((1, xid(119)), (1.2, xid(45, named)))))
    assert codes(found) == [(119, 1, ()), (45, 1, ())]
    assert found[1].details["caused_by"] == 31


def test_removed_channels_alone() -> None:
    (event,) = events(timed(*[(1 + i, xid(45, f"pid=7, name=a, Ch {i:08}")) for i in range(672)]))
    assert (event.code, event.count, event.severity) == (45, 672, "info")


def test_pause_ends_a_fault() -> None:
    found = list(events(timed((1, xid(13)), (1.0001, xid(13)), (40, xid(13)), (5000, xid(13)))))
    assert codes(found) == [(13, 3, ()), (13, 1, ())]
    assert (found[0].first, found[0].last, found[1].first) == (1.0, 40.0, 5000.0)


def test_pause_between_times_without_seconds() -> None:
    found = list(events([f"[Aug30 {clock}] {xid(13)}" for clock in ("11:43", "11:44", "12:44")]))
    assert [(event.count, event.first, event.last) for event in found] == [
        (2, "--08-30T11:43", "--08-30T11:44"),
        (1, "--08-30T12:44", "--08-30T12:44"),
    ]
    assert codes(list(events([f"[Aug30 11:43] {xid(48)}", f"[Aug30 11:44] {xid(94)}"]))) == [(48, 1, (94,))]


def test_pause_in_a_month_with_a_foreign_name() -> None:
    for month in ("kwi", "Okt", "août", "jan."):
        times = ("15 07:56:59", "15 07:57:19", "15 08:57:19", "15 08:57:59.5")
        found = list(events([f"{month} {time} gpu-1 kernel: {xid(13)}" for time in times]))
        assert [(event.count, event.first, event.last) for event in found] == [
            (2, "---15T07:56:59", "---15T07:57:19"),
            (2, "---15T08:57:19", "---15T08:57:59.5"),
        ]
    assert len(list(events([f"{time} 1 00:00:00 gpu-1 kernel: {xid(13)}" for time in ("kwi", "maj")]))) == 1


def test_reboot_ends_a_fault() -> None:
    found = list(events(timed((90000, xid(79)), (12, xid(79)))))
    assert codes(found) == [(79, 1, ()), (79, 1, ())]


def test_rate_limited_timeouts() -> None:
    limit = (
        f"NVRM: Rate limiting GSP RPC error prints for GPU at PCI:{GPU} (printing 1 of every 30).  The GPU"
    )
    lines = timed((1, xid(119)), (7, xid(119)), (13, limit), (193, xid(119)), (373, xid(119)))
    (event,) = events(lines)
    assert (event.count, event.details["printed_one_of"]) == (4, 30)
    assert list(events([limit])) == []


def test_events_come_as_they_end() -> None:
    def lines() -> Iterator[str]:
        yield from timed((1, xid(79)), (2, xid(31, pci=OTHER)), (100, xid(13)), (101, "usb 1-1: new device"))
        raise AssertionError("read too far")

    found = events(lines())
    assert [next(found).code, next(found).code] == [79, 31]


def test_flood_is_one_event() -> None:
    text = "pid={}, Uncontained: FBHUB. RST: Yes, D-RST: No"
    lines = (f"[{1000 + i / 500:12.6f}] {xid(95, text.format(i % 7))}" for i in range(5_000))
    (event,) = events(lines)
    assert (event.count, event.first, event.last) == (5_000, 1000.0, 1009.998)


def test_flood_of_all_kinds_costs_bounded_memory() -> None:
    from validation.kernel_log.grouping import MOST_OPEN, Groups
    from validation.kernel_log.reader import MOST_KNOWN, Reader
    from validation.kernel_log.record import parse

    groups, reader, given = Groups(), Reader(), 0
    for i in range(4_000):
        line = f"NVRM: Xid (PCI:{i % 256:04x}:{i // 256:02x}:00): {i % 500}, pid={i}"
        for record in parse(line.encode()):
            for finding in reader.findings(record):
                given += sum(1 for _ in groups.add(finding, record.when, 1, injected=False))
    assert len(groups._open) <= MOST_OPEN
    assert sum(len(keys) for keys in groups._by_device.values()) == len(groups._open)
    assert len(reader._known) <= MOST_KNOWN
    assert given + sum(1 for _ in groups.close()) > 3_600
    assert not groups._open and not groups._by_device
