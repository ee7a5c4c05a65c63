"""A quotation is no event; a program that imitates the kernel is one, and marked."""

from __future__ import annotations

import json

import pytest

from tests.validation.kernel_log.transports import fields
from validation.kernel_log import events

XID = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
SYSLOG = "Nov 07 18:17:15 gpu-1 "


@pytest.mark.parametrize(
    "line",
    [
        f"{SYSLOG}sshd[1234]: Invalid user {XID} from 192.0.2.7 port 22",
        f"{SYSLOG}sshd[1234]: {XID}",
        f"{SYSLOG}kubelet[1]: E1107 18:17:15.123456       1 xid.go:45] {XID}",
        f"{SYSLOG}kubelet[1]: {XID}",
        f'{SYSLOG}gpud[77]: {{"level":"warn","msg":"{XID}"}}',
        f'{SYSLOG}dockerd[77]: time="2024-11-07T18:17:15Z" level=error msg="{XID}"',
        f"{SYSLOG}gpu-boot-check[812]: FAIL: kernel log: {XID}",
        f"{SYSLOG}gpu-boot-check[812]: {XID}",
        f"{SYSLOG}sudo: root : TTY=pts/0 ; PWD=/root ; COMMAND=/usr/bin/grep {XID} /var/log/kern.log",
        f"{SYSLOG}bash[9]: HISTORY: echo '{XID}' > /dev/kmsg",
        f'{SYSLOG}kernel: audit: type=1123 audit(1700000000.1:7): pid=9 msg=\'cmd="{XID}"',
        f'{SYSLOG}kernel: foo: "{XID}"',
        f"type=USER_CMD msg=audit(1700000000.1:7): pid=9 cmd={XID}",
        f"[   12.500000] systemd[1]: Started check of {XID}",
        f"[   12.500000] audit: type=1400 audit(1:2): comm={XID}",
        f"30,4711,1843308145,-;systemd[1]: {XID}",
        f"[   12.500000] gpu-boot-check: FAIL {XID}",
        f"[   12.500000] kubelet: {XID}",
        f"E1107 18:17:15.123456       1 xid.go:45] {XID}",
        f"# dmesg | grep '{XID}'",
        f'root@gpu-1:~# echo "{XID}" > /dev/kmsg',
        f"> {XID}",
        f"the log said: {XID}",
        f"FAIL: [   12.5] {XID}",
        f"{SYSLOG}watch[1]: gpu-1: [   12.5] {XID}",
        f"{SYSLOG}watch[1]: kern.log:12:[   12.5] {XID}",
        f"{SYSLOG}watch[1]: 12:[   12.5] {XID}",
        f"{SYSLOG}sshd-session[9]: {XID}",
        f"{SYSLOG}-bash[9]: {XID}",
        f"Thu 2024-11-07 18:17:15 UTC gpu-1 kubelet.service[9]: {XID}",
        f"{SYSLOG}containerd[9]: {XID}",
        f"[2025-03-01 10:00:00] INFO watcher: {XID}",
        f"2025-03-01 10:00:00,123 INFO watcher - {XID}",
        f"node-1 | ERROR: nhc: check_gpu_xid: GPU Xid errors detected: [ 3606.832215] {XID}",
        f"yesterday we saw {XID}",
        json.dumps({"level": "error", "msg": XID}),
        json.dumps({"message": XID}),
        json.dumps(fields(f"found {XID}", _TRANSPORT="syslog", SYSLOG_IDENTIFIER="watch")),
        json.dumps({"log": f"I1107 watcher: {XID}\n", "stream": "stderr", "time": "2024-11-07T18:17:15Z"}),
        f"{SYSLOG}sshd[1]: nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        f"{SYSLOG}watch[1]: saw pcieport 0000:00:01.0: AER: Corrected error received: 0000:3b:00.0",
        f"{SYSLOG}watch[1]: saw NVRM: The NVIDIA probe routine failed for 1 device(s).",
        f"{SYSLOG}watch[1]: detected NVSwitch fatal error 20034 on fid 0 on pci bus id 00000000:86:00.0",
    ],
)
def test_quotation(line: str) -> None:
    assert list(events([line])) == []


@pytest.mark.parametrize(
    "lines",
    [
        [
            f"{SYSLOG}kubelet[1]: kernel log:",
            f"                              {XID}",
            f"        [ 1.5] {XID}",
        ],
        [f"{SYSLOG}watch[1]: kernel log:", f"                              {XID}"],
        ["[   12.5] watch[1]: kernel log:", f"           {XID}"],
        ["kernel log, as we found it:", f"    {XID}"],
    ],
)
def test_quotation_in_further_lines(lines: list[str]) -> None:
    assert list(events(lines)) == []
    assert list(events(["\n".join(lines)])) == []


@pytest.mark.parametrize(
    "line",
    [
        f"[ 1.5] usb 1-1: new {XID}",
        f"[ 1.5] pcieport 0000:00:01.0: link {XID}",
        f"{SYSLOG}kernel: EXT4-fs (sda1): mounted {XID}",
        f"4,4711,1843308145,c;eth0: link up {XID}",
        f"NVRM: loading NVIDIA UNIX {XID}",
        f"cpuidle: using governor {XID}",
        f"nvidia 0000:3b:00.0: enabling {XID}",
        json.dumps(fields(f"eth0: link up {XID}")),
    ],
)
def test_kernel_glues_lines(line: str) -> None:
    (event,) = events([line])
    assert (event.code, event.injected) == (79, False)


def test_two_in_one_line() -> None:
    found = list(events(["[ 1.5] NVRM: Xid (PCI:0000:01:00): 31, Ch 8 NVRM: Xid (PCI:0000:02:00): 79, off"]))
    assert [(event.code, event.pci) for event in found] == [(31, "0000:01:00"), (79, "0000:02:00")]


@pytest.mark.parametrize(
    "line",
    [
        f"12,4711,1843308145,-;{XID}",
        f"11,4711,1843308145,-;[6085126.134786] {XID}",
        f"<12>[ 1843.308145] {XID}",
        f"<13>Nov 07 18:17:15 gpu-1 root: {XID}",
        f"user  :warn  : [ 1843.308145] {XID}",
        f"192.0.2.1: user: warning: [2026-04-22T21:25:20.458998481Z]: {XID}",
        f"{SYSLOG}root: {XID}",
        f"{SYSLOG}python3[4711]: {XID}",
        # journald takes the first word of what a program writes to /dev/kmsg for its name.
        f"{SYSLOG}{XID}",
        json.dumps(fields(XID.removeprefix("NVRM: "), SYSLOG_IDENTIFIER="NVRM", SYSLOG_FACILITY="1")),
        json.dumps(fields(XID, SYSLOG_FACILITY="3")),
        json.dumps(fields(XID, _TRANSPORT="syslog", SYSLOG_IDENTIFIER="root", SYSLOG_FACILITY="1")),
        json.dumps(fields(XID, _TRANSPORT="syslog", SYSLOG_IDENTIFIER="kernel", SYSLOG_FACILITY="0")),
        json.dumps(fields(XID, _TRANSPORT="stdout", SYSLOG_IDENTIFIER="job")),
        f"<14>1 2024-08-30T11:43:09Z gpu-1 test 4711 - - {XID}",
    ],
)
def test_injected(line: str) -> None:
    (event,) = events([line])
    assert (event.code, event.injected) == (79, True)
    assert event.line == XID


def test_injected_and_real_stay_apart() -> None:
    found = list(events([f"12,1,1000,-;{XID}", f"4,2,2000,-;{XID}"]))
    assert [event.injected for event in found] == [True, False]


def test_fabric_manager_is_no_forgery() -> None:
    text = (
        "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3"
    )
    found = list(events([f"{SYSLOG}nv-fabricmanager[5183]: {text}"]))
    found += events([json.dumps(fields(text, _TRANSPORT="syslog", SYSLOG_IDENTIFIER="nv-fabricmanager"))])
    assert [(event.code, event.pci, event.severity, event.injected) for event in found] == [
        (20034, "0000:86:00", "fatal", False)
    ] * 2


def test_repetitions_that_syslog_counted() -> None:
    lines = [
        f"Nov  7 18:17:15 gpu-1 kernel: [   12.345678] {XID}",
        f"Nov  7 18:17:17 gpu-1 kernel: message repeated 3 times: [ [   12.345678] {XID}]",
    ]
    (event,) = events(lines)
    assert (event.count, event.last, event.line) == (4, "--11-07T18:17:17", XID)
    assert list(events([f"Nov  7 18:17:17 gpu-1 watch: message repeated 3 times: [ saw {XID}]"])) == []
