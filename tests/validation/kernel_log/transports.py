"""One kernel record as each transport prints it.

Forms: dmesg(1) of util-linux 2.38, journalctl(1) and https://systemd.io/JOURNAL_EXPORT_FORMATS/ of systemd
252, Documentation/ABI/testing/dev-kmsg of Linux, rsyslog's templates TraditionalFileFormat, FileFormat and
SyslogProtocol23Format (https://www.rsyslog.com/doc/configuration/templates.html), RFC 5424, busybox syslogd,
talosctl dmesg, the json-file driver of Docker and the Kubernetes CRI log format.
"""

from __future__ import annotations

import json
from collections.abc import Callable

Transport = Callable[[str], str]

BOOT = 1843.308145
WALL = "2024-08-30T11:43:09"


def _headed(head: str) -> Transport:
    """Further lines stand below the text, as dmesg and journalctl print them."""
    return lambda text: head + text.replace("\n", "\n" + " " * len(head))


def _escaped(text: str) -> str:
    """As the kernel gives it in /dev/kmsg."""
    raw = text.encode()
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in raw)


def kmsg(text: str, priority: int = 4) -> str:
    return f"{priority},4711,{int(BOOT * 1e6)},-;{_escaped(text)}"


def _rsyslog(head: str) -> Transport:
    return lambda text: head + text.replace("\n", "#012")


def fields(text: str, **more: object) -> dict[str, object]:
    """Fields of a journal entry of the kernel."""
    return {
        "__CURSOR": "s=1;i=2",
        "__REALTIME_TIMESTAMP": "1725018189000000",
        "__MONOTONIC_TIMESTAMP": "1843308145",
        "_SOURCE_MONOTONIC_TIMESTAMP": "1843308145",
        "_TRANSPORT": "kernel",
        "SYSLOG_FACILITY": "0",
        "SYSLOG_IDENTIFIER": "kernel",
        "PRIORITY": "4",
        "_HOSTNAME": "gpu-1",
        "MESSAGE": text,
        **more,
    }


def export(entry: dict[str, object]) -> str:
    lines = []
    for name, value in entry.items():
        text = str(value)
        if "\n" in text:
            size = len(text.encode()).to_bytes(8, "little").decode("latin-1")
            lines.append(f"{name}\n{size}{text}")
        else:
            lines.append(f"{name}={text}")
    return "\n".join(lines) + "\n\n"


def verbose(text: str) -> str:
    lines = [
        f"    {name}={value}" for name, value in fields(text.replace("\n", " ")).items() if name[:2] != "__"
    ]
    return "Fri 2024-08-30 11:43:09.000000 UTC [s=0f;i=2;b=3;m=4;t=5;x=6]\n" + "\n".join(lines)


SHORT: dict[str, Transport] = {
    f"journalctl {name}": _headed(head)
    for name, head in {
        "short": "Aug 30 11:43:09 gpu-1 kernel: ",
        "short-precise": "Aug 30 11:43:09.308145 gpu-1 kernel: ",
        "short-iso": "2024-08-30T11:43:09+0200 gpu-1 kernel: ",
        "short-iso, new": "2024-08-30T11:43:09+02:00 gpu-1 kernel: ",
        "short-iso-precise": "2024-08-30T11:43:09.308145+0200 gpu-1 kernel: ",
        "short-full": "Fri 2024-08-30 11:43:09 CEST gpu-1 kernel: ",
        "short-monotonic": "[ 1843.308145] gpu-1 kernel: ",
        "short-delta": "[ 1843.308145 <    0.000012 >] gpu-1 kernel: ",
        "short-unix": "1725018189.308145 gpu-1 kernel: ",
        "with-unit": "Fri 2024-08-30 11:43:09 UTC gpu-1 kernel: ",
    }.items()
}

DMESG: dict[str, Transport] = {
    f"dmesg {name}": _headed(head)
    for name, head in {
        "": "[ 1843.308145] ",
        "caller": "[ 1843.308145] [ T1234] ",
        "console, caller": "[ 1843.308145][    C3] ",
        "-T": "[Fri Aug 30 11:43:09 2024] ",
        "--time-format=iso": "2024-08-30T11:43:09,308145+02:00 ",
        "--time-format=delta": "[<    0.000012>] ",
        "--time-format=reltime": "[Aug30 11:43] ",
        "--time-format=reltime, same minute": "[  +0.000012] ",
        "-d": "[ 1843.308145 <    0.000012>] ",
        "-x": "kern  :warn  : [ 1843.308145] ",
        "-x -T": "kern  :warn  : [Fri Aug 30 11:43:09 2024] ",
        "-x --notime": "kern  :warn  : ",
        "-r": "<4>[ 1843.308145] ",
        "--notime": "",
    }.items()
}

OTHERS: dict[str, Transport] = {
    "/dev/kmsg": kmsg,
    "/dev/kmsg with device": lambda text: kmsg(text) + "\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0",
    "rsyslog": _rsyslog("Aug 30 11:43:09 gpu-1 kernel: [ 1843.308145] "),
    "rsyslog, no kernel time": _rsyslog("Aug  3 11:43:09 gpu-1 kernel: "),
    "rsyslog, ISO time": _rsyslog("2024-08-30T11:43:09.308145+02:00 gpu-1 kernel: [ 1843.308145] "),
    "rsyslog, priority": _rsyslog("<4>Aug 30 11:43:09 gpu-1 kernel: "),
    "RFC 5424": _rsyslog("<4>1 2024-08-30T11:43:09.308145+02:00 gpu-1.example kernel - - - "),
    "RFC 5424, data": _rsyslog(
        '1 2024-08-30T11:43:09Z gpu-1 kernel - ID47 [a@32473 x="1\\]" y="2"][b] \ufeff'
    ),
    "busybox": _rsyslog("Aug 30 11:43:09 gpu-1 kern.warn kernel: [ 1843.308145] "),
    "no host": _rsyslog("kernel: [ 1843.308145] "),
    "serial console": _rsyslog("2024-08-30 11:43:09 [ 1843.308145] "),
    "Talos": _rsyslog("192.0.2.1: kern: warning: [2024-08-30T11:43:09.308145981Z]: "),
    "Talos, one node": _rsyslog("kern: warning: [2024-08-30T11:43:09.308145981Z]: "),
    "ISO in brackets": _rsyslog("[2024-08-30T11:43:09.308145+00:00] "),
    "journalctl json": lambda text: json.dumps(fields(text)),
    "journalctl json, bytes": lambda text: json.dumps(
        fields(text, MESSAGE=list(text.encode())), separators=(",", ":")
    ),
    "journalctl json-seq": lambda text: "\x1e" + json.dumps(fields(text)),
    "journalctl json-sse": lambda text: "data: " + json.dumps(fields(text)) + "\n",
    "journalctl json-pretty": lambda text: json.dumps(fields(text), indent="\t"),
    "journalctl json-pretty, bytes": lambda text: json.dumps(fields(text, MESSAGE=0), indent="\t").replace(
        '"MESSAGE": 0', '"MESSAGE" : [ ' + ", ".join(str(byte) for byte in text.encode()) + " ]"
    ),
    "journalctl export": lambda text: export(fields(text)),
    "dmesg -J": lambda text: (
        '{\n   "dmesg": [\n      {\n         "pri": 4,\n         "time": 1843.308145,\n'
        f'         "msg": {json.dumps(text)}\n      }}\n   ]\n}}'
    ),
    "docker": lambda text: json.dumps(
        {"log": f"[ 1843.308145] {text}\n", "stream": "stdout", "time": "2024-08-30T12:00:00.1Z"}
    ),
    "docker, journalctl": lambda text: json.dumps(
        {"log": json.dumps(fields(text)) + "\n", "stream": "stdout", "time": "2024-08-30T12:00:00.1Z"}
    ),
    "CRI": _rsyslog("2024-08-30T12:00:00.123456789Z stdout F [ 1843.308145] "),
    "CRI, journalctl": _rsyslog(
        "2024-08-30T12:00:00.123456789+00:00 stderr F Aug 30 11:43:09 gpu-1 kernel: "
    ),
    "compose": _rsyslog("watcher-1  | [ 1843.308145] "),
    "grep": _rsyslog("/var/log/kern.log.1:Aug 30 11:43:09 gpu-1 kernel: [ 1843.308145] "),
    "grep -n": _rsyslog("kern.log:1712:[ 1843.308145] "),
    "grep -n, one file": _rsyslog("1712:Aug 30 11:43:09 gpu-1 kernel: "),
    "grep -C": _rsyslog("kern.log-1712-[ 1843.308145] "),
    "pdsh": _rsyslog("gpu-1: [ 1843.308145] "),
    "pdsh, dmesg -T": _rsyslog("192.0.2.1: [Fri Aug 30 11:43:09 2024] "),
    "pdsh, syslog": _rsyslog("gpu-1.example: Aug 30 11:43:09 gpu-1 kernel: "),
}

TRANSPORTS: dict[str, Transport] = {**DMESG, **SHORT, **OTHERS}
ONE_LINE: dict[str, Transport] = {**TRANSPORTS, "journalctl verbose": verbose}
