"""Xid (GPU) and SXid (NVSwitch) in the text of a record.

Form of an Xid since the oldest drivers (kernel_rc.c of NVIDIA/open-gpu-kernel-modules)::

    NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:02): 45, pid=7, name=a:b, Ch 9 caused by previous Xid 94

where "PCI:", domain, MIG instances, process, text and cause may be missing. SXid (common_nvswitch.h)::

    nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
    nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00
    nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Data {0x50610002, 0x10100030, ...}
"""

from __future__ import annotations

import re
from typing import Any

from validation import faults
from validation.faults import Severity, graver
from validation.kernel_log import finding, pci
from validation.kernel_log.finding import Finding, Role
from validation.kernel_log.lazy import pattern

XID = pattern(
    r"NVRM: Xid \((?:PCI:)?((?:[0-9a-fA-F]{1,8}:){1,2}[0-9a-fA-F]{1,4})(?:\.[0-9a-fA-F])?"
    r"((?: GPU-C?I:\d{1,4})*)\): (\d{1,9})(?=[,\s\"]|$),?\s*"
)
SXID = pattern(
    r"nvidia-nvswitch\d*:? SXid \(PCI:((?:[0-9a-fA-F]{1,8}:){2}[0-9a-fA-F]{1,4})(?:\.[0-9a-fA-F])?\): "
    r"(\d{1,9})(?=[,\s\"]|$),?\s*"
)
FABRIC_MANAGER = pattern(
    r"detected NVSwitch (fatal|non-fatal) error (\d{1,9}) on .{0,80}?"
    r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?(?:.{0,60}? port (\d{1,4}))?"
)
_PROCESS = pattern(r"pid='?<?(\w{1,20})>?'?(?:, name=(.{0,64}?))?(?:, |$)")
_CAUSE = pattern(r" caused by previous Xid (\d{1,9})$")
_TARGET = pattern(r"changed from 0x([0-9a-fA-F]{1,8})\b.{0,80}? to 0x([0-9a-fA-F]{1,8})\b")
_RESET = pattern(r"RST: (Yes|No), D-RST: (Yes|No)")
_NVLINK5 = pattern(
    r"(?:^|, )([A-Z][\w/]{0,40}(?: [A-Z]\w{0,20}){0,3}?)\s+((?:Link )?Fatal|Non-?fatal)\b", re.IGNORECASE
)
_REGISTERS = pattern(r"[(\[](0x[0-9a-fA-F]{1,8}(?:[ ,]+0x[0-9a-fA-F]{1,8})*)")
_LINK = pattern(r"\blink (-?\d{1,4})", re.IGNORECASE)
_SXID_WORD = pattern(r"(Fatal|Non-?fatal|Correctable|Corrected)\b", re.IGNORECASE)
_SXID_SEVERITY = pattern(r"Severity (\d+)(?: Engine instance (\d{1,4}))?")
_UNKNOWN_PROCESSES = ("unknown", "<unknown>")
NVLINK5 = range(144, 151)


def xid(match: re.Match[str], text: str, line: str) -> Finding | None:
    """The finding of an ``XID`` match; ``text`` is what follows it. None for an Xid 154 without its target:
    what it would say is cut off, and nvidia-smi's gpu_recovery_action tells the same.
    """
    code = int(match[3])
    fault = faults.xid(code)
    details: dict[str, Any] = {}
    process = _PROCESS().match(text)
    if process:
        text = text[process.end() :]
        if process[1] not in _UNKNOWN_PROCESSES:
            details["pid"] = int(process[1]) if process[1].isdecimal() else process[1]
        name = (process[2] or "").strip("'")
        if name and name not in _UNKNOWN_PROCESSES:
            details["process"] = name
    if cause := _CAUSE().search(text):
        details["caused_by"] = int(cause[1])
    mig = "/".join(re.findall(r":0*(\d+)", match[2]))
    found = finding.of(fault, "xid", pci.normal(match[1]), line, part=mig, details=details)
    if found.part:
        details["mig"] = found.part
    if code == 154:
        return _recovery(found, text)
    if code in NVLINK5:
        return _nvlink5(found, text)
    if code in (94, 95) and (reset := _RESET().search(text)):
        details["reset"], details["drain_and_reset"] = reset[1] == "Yes", reset[2] == "Yes"
        if details["reset"]:
            found = found._replace(severity=Severity.FATAL)
    if code == 74 and (link := _LINK().search(text)):
        details["link"] = int(link[1])
    return found


def _recovery(found: Finding, text: str) -> Finding | None:
    target = _TARGET().search(text)
    if not target:
        return None
    found.details["target"] = int(target[2], 16)
    severity, action = faults.xid154(found.details["target"])
    return found._replace(severity=severity, action=action)


def _nvlink5(found: Finding, text: str) -> Finding:
    """Severity of Xid 144-150: the word in the line and the sub-code table, the graver of the two."""
    said = _NVLINK5().search(text)  # not at its start where a process has a comma in its name
    severities = []
    if said:
        found.details["unit"] = said[1]
        found.details["word"] = said[2]
        severities.append(Severity.FATAL if "non" not in said[2].lower() else Severity.WARN)
    if link := _LINK().search(text):
        found.details["link"] = int(link[1])
    action = found.action
    registers = _REGISTERS().search(text)
    values = [int(value, 16) for value in re.findall("0x([0-9a-fA-F]+)", registers[1])] if registers else []
    if len(values) >= 2 and found.code is not None:
        decoded = faults.decode(found.code, said[1] if said else "", values[0], values[1])
        if decoded:
            severities.append(decoded.fault.severity)
            action = decoded.fault.action
            found.details["table"] = {
                "unit": decoded.fault.name,
                "severity": dict(decoded.fault.details)["severity in NVIDIA's table"],
                "bucket": decoded.fault.bucket,
                "investigate": decoded.fault.investigate,
                "layout": decoded.layout,
            }
    severity = graver(*severities) if severities else found.severity
    return found._replace(severity=severity, action=action)


def sxid(match: re.Match[str], text: str, line: str) -> Finding:
    """The finding of an ``SXID`` match; ``text`` is what follows it."""
    fault = faults.sxid(int(match[2]))
    word = _SXID_WORD().match(text)
    number = _SXID_SEVERITY().match(text)
    link = _LINK().search(text) if word else None
    details: dict[str, Any] = {}
    part = ""
    if link:
        details["link"] = int(link[1])
        part = str(details["link"])
    elif number and number[2]:
        part = str(int(number[2]))
    if word:
        details["word"] = word[1]
    said = word[1] if word else number[1] if number else None
    return finding.of(
        fault,
        "sxid",
        pci.normal(match[1]),
        line,
        severity=faults.sxid_severity(fault, said),
        part=part,
        role=Role.DATA if text.startswith("Data") else Role.FURTHER if number else Role.FIRST,
        details=details,
    )


def fabric_manager(match: re.Match[str], line: str) -> Finding:
    """The finding of a ``FABRIC_MANAGER`` match: the fabric manager's word for the switch's SXid."""
    fault = faults.sxid(int(match[2]))
    details: dict[str, Any] = {"word": match[1]}
    if match[4]:
        details["link"] = int(match[4])
    return finding.of(
        fault,
        "sxid",
        pci.normal(match[3]),
        line,
        severity=faults.sxid_severity(fault, match[1]),
        part=str(details.get("link", "")),
        details=details,
    )
