"""The data file ``catalog.json``, and the look-up of an entry by its code or name."""

from __future__ import annotations

import functools
import json
import os.path
from collections.abc import Iterator
from typing import Any

from validation.faults.model import Fault, Severity

FILE = os.path.join(os.path.dirname(__file__), "catalog.json")
KINDS = ("xid", "sxid", "nvlink5", "dcgm", "kernel")
NOBODY = "nobody documents this code: alert and keep the line, do not drain on one event"

# GPU recovery actions, the target of Xid 154. The words beside the number differ between drivers (0x1 "GPU
# Reset Required" or "PF FLR"), so the number counts. 0x3 is a warning, as in
# DCGM's health watch since 4.5.
_RECOVERY = {
    0: (Severity.INFO, "recovered: no action"),
    1: (Severity.FATAL, "drain, then reset the GPU"),
    2: (Severity.FATAL, "drain, then reboot the node"),
    3: (Severity.WARN, "stop peer-to-peer traffic of this GPU; drain at the end of the job"),
    4: (Severity.FATAL, "drain, then reset the GPU"),
}
# The words of a SXid line, and the number in its detail record (nvswitch_error_severity_type of the driver).
_SXID_WORDS = {
    "fatal": Severity.FATAL,
    "1": Severity.FATAL,
    "non-fatal": Severity.WARN,
    "nonfatal": Severity.WARN,
    "0": Severity.WARN,
    "correctable": Severity.INFO,
    "corrected": Severity.INFO,
}
# Entries hold these beside the fields of ``Fault``.
_DETAILS = {
    "since": "driver since",
    "seen": "seen",
    "prints": "the driver prints",
    "chips": "NVSwitch chips",
    "category": "category",
    "status": "error status",
    "subcode": "sub-code",
    "nvidia_severity": "severity in NVIDIA's table",
    "hw_sw": "hardware or software",
}


@functools.cache
def data() -> dict[str, Any]:
    """The whole data file."""
    with open(FILE, encoding="utf-8") as file:
        document: dict[str, Any] = json.load(file)
    return document


@functools.cache
def _index(kind: str) -> dict[int | str, Any]:
    """Raw entries of a kind by code and by name."""
    found: dict[int | str, Any] = {}
    for entry in data()[kind]:
        for name in (entry["name"], *entry.get("aka", ())):
            found.setdefault(name.lower(), entry)
        if "code" in entry:
            found[entry["code"]] = entry
    return found


def xid(code: int | str) -> Fault:
    """The entry of an Xid, by number or by NVIDIA's mnemonic."""
    return _find("xid", code)


def sxid(code: int | str) -> Fault:
    """The entry of a SXid (NVSwitch), by number or by the driver's name."""
    return _find("sxid", code)


def dcgm_error(error_id: int | str) -> Fault:
    """The entry of a DCGM error id, by number or by name (``DCGM_FR_...``)."""
    return _find("dcgm", error_id)


def kernel(name: str) -> Fault:
    """The entry of a kernel message without a code, such as ``fallen_off_bus`` or ``init_failed``."""
    return _find("kernel", name)


def every(kind: str) -> Iterator[Fault]:
    """All entries of a kind (``KINDS``), in the order of the data file."""
    return (fault_of(kind, entry) for entry in data()[kind])


@functools.lru_cache(maxsize=1024)
def _find(kind: str, key: int | str) -> Fault:
    entry = _index(kind).get(key.lower() if isinstance(key, str) else key)
    if entry is None:
        number = key if isinstance(key, int) else None
        name = "" if isinstance(key, int) else key
        return Fault(kind, number, name, "not in the catalog", "", Severity.UNKNOWN, NOBODY, None)
    return fault_of(kind, entry)


def fault_of(kind: str, entry: dict[str, Any]) -> Fault:
    """An entry of the data file as a ``Fault``."""
    document = data()
    sources = entry.get("sources", document["default_sources"][kind])
    if "v1" in entry:  # bits 25 to 20 of the first register
        entry = {**entry, "subcode": f"{int(entry['v1'][6:12], 2):#04x}"}
    details = ((text, entry[key]) for key, text in _DETAILS.items() if key in entry)
    return Fault(
        kind=kind,
        code=entry.get("code"),
        name=entry.get("name") or entry["unit"],
        meaning=entry.get("meaning") or _index("xid")[entry["code"]]["meaning"],
        bucket=entry.get("bucket", ""),
        severity=Severity(entry["severity"]),
        action=entry.get("action") or what_nvidia_says(entry["bucket"]),
        repeat=entry.get("repeat"),
        investigate=entry.get("investigate", ""),
        decided_by=entry.get("decided_by", "code"),
        aka=tuple(entry.get("aka", ())),
        details=tuple((text, ", ".join(v) if isinstance(v, list) else v) for text, v in details),
        disagreements=tuple(entry.get("disagreements", {}).items()),
        sources=tuple(document["sources"][name] for name in sources),
    )


def what_nvidia_says(bucket: str) -> str:
    """One of NVIDIA's buckets in words; the bucket itself when the catalog has no words for it."""
    text: str = data()["buckets"].get(bucket, bucket)
    return text.removeprefix("NVIDIA: ")


def xid154(target: int) -> tuple[Severity, str]:
    """What the target of an Xid 154 means: severity and action. An unknown target is unknown."""
    ask = f"unknown recovery action {target:#x}: ask nvidia-smi for gpu_recovery_action"
    return _RECOVERY.get(target, (Severity.UNKNOWN, ask))


def sxid_severity(fault: Fault, word: str | None) -> Severity:
    """How bad a SXid is, from its entry and from the word in its line, if there is one.

    The word is the driver's own judgement of this very error, so it wins; but it does not make less of an
    error that the catalog decides by its code (always fatal by the Fabric Manager guide).
    """
    said = _SXID_WORDS.get((word or "").lower())
    if said is None or (fault.decided_by == "code" and fault.name and said is not Severity.FATAL):
        return fault.severity
    return said
