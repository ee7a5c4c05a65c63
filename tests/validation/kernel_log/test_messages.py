"""Messages of the driver, of NVSwitches and of PCIe, and how bad each is."""

from __future__ import annotations

import pytest

from tests.validation.kernel_log.lines import GPU, recovery, timed, xid
from validation.kernel_log import events


def test_nvlink5_word_and_table_disagree() -> None:
    """The graver counts, and both are kept."""
    (event,) = events(
        [xid(145, "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082 0x00000040 0x0 0x0 0x0 0x0)")]
    )
    assert (event.severity, event.details["word"]) == ("fatal", "Nonfatal")
    assert event.details["table"] == {
        "unit": "RLW_REMAP",
        "severity": "Fatal",
        "bucket": "RESET_GPU",
        "investigate": "CONTACT_SUPPORT",
        "layout": "v1",
    }
    (event,) = events([xid(145, "RLW_REMAP Fatal XC1 i0 Link 10 (0x00000004 0x00000001 0x0 0x0 0x0 0x0)")])
    assert (event.severity, event.details["table"]["severity"]) == ("fatal", "Non-fatal")
    assert event.details["table"]["layout"] == "v2"


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("NETIR Link Fatal XC0 i0 Link -1", "fatal"),
        ("SOME_NEW_UNIT Nonfatal XC0 i0 Link 3 (0xffffffff 0xffffffff)", "warn"),
        ("SOME_NEW_UNIT Fatal XC0 i0", "fatal"),
        ("pid=7, name=a, b, SOME_NEW_UNIT Nonfatal XC0 i0 Link 3", "warn"),
        ("pid=<n/a>, name=<unknown>, SOME_NEW_UNIT Nonfatal XC0 i0 Link 3", "warn"),
        ("NETIR_LINK_EVT Nonfatal XC 1 i 2 Link 01 [0x000005c6 0x00000000]", "fatal"),
        ("cut off after the c", "unknown"),
        ("", "unknown"),
    ],
)
def test_nvlink5_without_a_row(text: str, severity: str) -> None:
    (event,) = events([xid(149, text)])
    assert event.severity == severity


@pytest.mark.parametrize(
    ("code", "text", "severity"),
    [
        (
            12020,
            "Non-fatal, Link 1 egress sequence ID error",
            "fatal",
        ),  # always fatal by the Fabric Manager guide
        (22013, "Non-fatal, Link 1 Minion Link DLREQ interrupt", "info"),  # noise at boot
        (20009, "Fatal, Link 1 RX Short Error Rate", "fatal"),
        (20009, "Non-fatal, Link 1 RX Short Error Rate", "warn"),
        (20009, "Correctable, Link 1 x", "info"),
        (99998, "Fatal, Link 1 new", "fatal"),
        (99998, "Non-fatal, Link 1 new", "warn"),
        (99998, "new", "unknown"),
        (10004, "Thermal slowdown Engaged", "warn"),
        (10005, "Thermal slowdown Disengaged", "info"),
        (28005, "x", "fatal"),
        (24007, "Severity 0 Engine instance 12", "warn"),
        (24007, "Data {0x1}", "unknown"),  # fatal or not: only the other records say
    ],
)
def test_switch_severity(code: int, text: str, severity: str) -> None:
    (event,) = events([f"nvidia-nvswitch1: SXid (PCI:0000:06:00.0): {code}, {text}"])
    assert event.severity == severity


@pytest.mark.parametrize(
    ("target", "severity"), [(0, "info"), (1, "fatal"), (2, "fatal"), (3, "warn"), (4, "fatal")]
)
def test_recovery_action(target: int, severity: str) -> None:
    (event,) = events([recovery(target)])
    assert (event.code, event.severity) == (154, severity)


def test_recovery_action_nobody_knows() -> None:
    (event,) = events([recovery(9)])
    assert event.severity == "unknown"


def test_aer_of_a_port_and_its_gpu() -> None:
    found = list(
        events(
            timed(
                (1, "pcieport 0000:00:01.1: AER: Corrected error received: 0000:01:00.0"),
                (
                    1,
                    "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (R)",
                ),
                (
                    5,
                    "pcieport 0000:00:01.1: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
                ),
            )
        )
    )
    assert [(event.name, event.pci, event.severity, event.count) for event in found] == [
        ("aer_corrected", "0000:01:00", "info", 1),
        ("aer_fatal", "0000:01:00", "fatal", 1),
    ]
    assert found[0].details["port"] == "0000:00:01"


@pytest.mark.parametrize(
    ("line", "pci", "severity"),
    [
        ("pcieport 0000:00:1c.4: AER: Uncorrected (Fatal) error received: id=00e4", "0000:00:1c", "fatal"),
        (
            "pcieport 0001:00:01.0: AER: Uncorrected (Non-Fatal) error received: id=3b00",
            "0001:3b:00",
            "warn",
        ),
        (
            "pcieport 0000:00:01.0: AER: Multiple Uncorrectable (Non-Fatal) error message "
            "received from 0000:3b:00.1",
            "0000:3b:00",
            "warn",
        ),
        ("pcieport 0000:02:00.0: AER: Corrected error received", "0000:02:00", "info"),
        (
            "pci 0000:00:01.0: AER: Correctable error message received from 0000:02:00.0 (no details found)",
            "0000:02:00",
            "info",
        ),
        (
            "0000:50:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, id=0500(R)",
            "0000:50:00",
            "fatal",
        ),
        (
            "nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=T, (R)",
            "0000:3b:00",
            "warn",
        ),
        (
            "vfio-pci 10000:e1:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (R)",
            "10000:e1:00",
            "info",
        ),
    ],
)
def test_aer_forms(line: str, pci: str, severity: str) -> None:
    (event,) = events([line])
    assert (event.kind, event.pci, event.severity) == ("aer", pci, severity)


def test_aer_of_others() -> None:
    port = "pcieport 0000:00:1d.0: AER: Corrected error received: 0000:03:00.0"
    disk = "nvme 0000:03:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (R)"
    assert list(events([disk])) == []
    assert list(events(timed((1, port), (1, disk)))) == []
    assert [event.pci for event in events(timed((1, port)))] == ["0000:03:00"]
    sound = "snd_hda_intel 0000:03:00.1: PCIe Bus Error: severity=Corrected, type=Transaction Layer, (R)"
    assert [event.pci for event in events(timed((1, port), (1, sound)))] == ["0000:03:00"]


def test_reset_flag() -> None:
    text = "pid=7, Contained: CE User Channel (0x9). RST: {}, D-RST: {}"
    (event,) = events([xid(94, text.format("No", "Yes"))])
    assert (event.severity, event.details["reset"], event.details["drain_and_reset"]) == (
        "warn",
        False,
        True,
    )
    (event,) = events([xid(94, text.format("Yes", "No"))])
    assert event.severity == "fatal"


def test_uuid_is_kept() -> None:
    uuid = "GPU-12345678-1234-1234-1234-123456789012"
    (event,) = events([f"NVRM: GPU at PCI:{GPU}: {uuid}", xid(31)])
    assert event.document()["uuid"] == uuid


@pytest.mark.parametrize(
    ("line", "name", "pci"),
    [
        ("NVRM: RmInitAdapter failed! (0x30:0xffff:660)", "init_failed", None),
        ("NVRM: rm_init_adapter failed for device bearing minor number 0", "init_failed", None),
        (
            "NVRM: GPU 0000:41:00.0: rm_init_adapter failed, device minor number 1",
            "init_failed",
            "0000:41:00",
        ),
        ("NVRM: RmInitAdapter: Cannot initialize GSP firmware RM", "init_failed", None),
        ("NVRM: rm_init_adapter(0) failed", "init_failed", None),
        ("NVRM: No NVIDIA graphics adapter found!", "no_gpu_found", None),
        ("NVRM: None of the NVIDIA graphics adapters were initialized!", "probe_failed", None),
        ("NVRM: No NVIDIA graphics adapter probed!", "probe_not_called", None),
        (
            "NVRM: GPU 0000:01:00.0: GPU does not have the necessary power cables connected.",
            "power_cable",
            "0000:01:00",
        ),
        ("NVRM: Can't find an IRQ for your NVIDIA card!", "irq_missing", None),
        ("NVRM: request_mem_region failed for 16M @ 0xfc000000. This can", "region_busy", None),
        ("NVRM: BAR1 is 256M @ 0x00000000 (PCI:0001:00.0)", "bar_invalid", "0001:00"),
        (
            "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring",
            "uvm_fatal",
            None,
        ),
    ],
)
def test_driver_messages(line: str, name: str, pci: str | None) -> None:
    (event,) = events([line])
    assert (event.kind, event.name, event.pci) == ("driver", name, pci)


def test_driver_messages_of_one_gpu_are_one_event() -> None:
    lines = [
        (i * 3 + k, f"NVRM: GPU 0000:41:00.0: {text}")
        for i in range(5)
        for k, text in enumerate(
            ("RmInitAdapter failed! (0x62:0x40:2404)", "rm_init_adapter failed, device minor number 1")
        )
    ]
    (event,) = events(timed(*lines))
    assert (event.name, event.count) == ("init_failed", 10)
