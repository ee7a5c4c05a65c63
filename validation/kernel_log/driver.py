"""Messages of the driver that carry no Xid, and PCIe errors (AER), in the text of a record.

Texts of the driver: kernel-open/nvidia/nv.c, nv-pci.c, nv-frontend.c and osinit.c of
NVIDIA/open-gpu-kernel-modules, and logs of older drivers. A message of several lines is one record of the
kernel, but some transports make a record of each line, so what a line lacks is remembered from the one
before it (``Reader`` in ``reader.py``).
"""

from __future__ import annotations

import re

from validation import faults
from validation.kernel_log import finding, pci
from validation.kernel_log.finding import Finding, Role
from validation.kernel_log.lazy import pattern

#: Names of messages in the catalog, and what tells them; the group, where there is one, is the GPU.
_WHICH = rf"(?:GPU ({pci.ADDRESS})\S* )?"
_BAR = rf"BAR\d is \d+M @ 0x[0-9a-fA-F]+ \(PCI:({pci.ADDRESS}|[0-9a-fA-F]{{4}}:[0-9a-fA-F]{{2}})"
_MESSAGES = tuple(
    (name, pattern(text))
    for name, text in (
        ("fallen_off_bus", "fallen off the bus and is not responding"),
        ("not_supported", "in this (?:vGPU host )?system (?:is not supported|requires use of)"),
        ("init_failed", _WHICH + r"(?:RmInitAdapter(?: failed|: Cannot)|rm_init_adapter(?:\(\d\))? failed)"),
        ("probe_failed", "The NVIDIA probe routine failed for"),
        ("probe_failed", r"None of the NVIDIA \w+(?: \w+)? were initialized"),
        ("probe_not_called", "The NVIDIA probe routine was not called"),
        ("probe_not_called", r"No NVIDIA (?:devices|\w+ adapter) probed"),
        ("probe_not_called", rf"GPU ({pci.ADDRESS})\S* is already bound to"),
        ("no_gpu_found", r"No NVIDIA (?:GPU|\w+ adapter) found"),
        ("api_mismatch", "API mismatch: the client"),
        ("bar_invalid", "This PCI I/O region assigned to your NVIDIA device is invalid"),
        ("bar_invalid", _BAR),
        ("region_busy", "request_mem_region failed for"),
        ("irq_missing", "Can't find an IRQ for your NVIDIA card"),
        ("power_cable", _WHICH + "GPU does not have the necessary power cables connected"),
        ("gpu_locked", r"GPU is probably locked!"),
        ("uvm_fatal", "uvm encountered global fatal error"),
    )
)
#: Short form, the second line of an Xid 79; old drivers say "GPU at 0000:02:00.0 has fallen off the bus".
OFF_BUS = pattern(
    rf"NVRM: GPU (?:at )?(?:PCI:)?({pci.ADDRESS}|[0-9a-fA-F]{{2}}:[0-9a-fA-F]{{2}}(?=\.))(?:\.[0-9a-f])?"
    ":? (?:GPU )?has fallen off the bus"
)
#: First line of a message about a GPU that could not be probed.
ABOUT = pattern(rf"NVRM: The NVIDIA GPU ({pci.ADDRESS})")
UUID = pattern(rf"NVRM: GPU at (?:PCI:)?({pci.ADDRESS})(?:\.[0-9a-f])?: (GPU-[0-9a-fA-F-]{{36}})")
LOADING = pattern(r"NVRM: loading NVIDIA UNIX .*? (\d{3})\.\d+")
#: After some RPC timeouts (Xid 119) the driver prints one in N, so that counts are too small.
RATE_LIMIT = pattern(
    rf"NVRM: Rate limiting GSP RPC error prints for GPU at PCI:({pci.ADDRESS}) "
    r"\(printing 1 of every (\d{1,6})"
)

_SEVERITY = r"(Corrected|Correctable|Uncorrect(?:ed|able) \((?:Non-)?Fatal\))"
_SOURCE = rf"(?: from|:) ?(?:({pci.ADDRESS})\.[0-7]|id=([0-9a-f]{{4}}))"
AER = pattern(
    rf"(?:([\w.+-]{{1,32}}) )?({pci.ADDRESS})\.([0-7]): (?:AER: )?(?:"
    rf"(?:Multiple )?{_SEVERITY} error (?:message )?received(?:{_SOURCE})?"
    rf"|PCIe Bus Error: severity={_SEVERITY}, type=([^,]{{1,40}}))"
)
# Drivers whose device can be a GPU, an NVSwitch, or the port above one; "pci": a device without a driver.
_NEAR_GPU = pattern(r"nvidia[\w-]*|nouveau|vfio-pci|pcieport|pci")


def messages(line: str) -> Finding | None:
    """The driver's message in a line that begins with ``NVRM: ``."""
    if match := OFF_BUS().match(line):
        where = match[1] if match[1].count(":") == 2 else f"0000:{match[1]}"
        return finding.of(
            faults.kernel("fallen_off_bus"), "fallen_off_bus", pci.normal(where), line, role=Role.FURTHER
        )
    for name, compiled in _MESSAGES:
        if match := compiled().search(line):
            where = match[1] if match.lastindex else None
            kind = name if name == "fallen_off_bus" else "driver"
            role = Role.FURTHER if line.startswith("NVRM: BAR") else Role.FIRST
            return finding.of(faults.kernel(name), kind, where and pci.normal(where), line, role=role)
    return None


def aer(match: re.Match[str], line: str) -> Finding | None:
    """The finding of an ``AER`` match, about the device that erred, else the port that reports it.

    A device of another driver (a disk, a network card) is not our subject: its finding has the name "".
    None for function 1 of a graphics card, its sound: what the port reported may be of the GPU beside it.
    """
    driver, where, function, received, source, requester, severity, layer = match.groups()
    if driver == "snd_hda_intel" and function == "1":
        return None
    word = (received or severity).lower()
    fault = faults.kernel(
        "aer_nonfatal" if "non-fatal" in word else "aer_fatal" if "fatal" in word else "aer_corrected"
    )
    port = pci.normal(where)
    if source and not source.endswith(":00:00"):  # bus 0, device 0: nobody told who it was
        where = source
    elif requester and int(requester, 16):
        number = int(requester, 16)  # bus, device and function in 8, 5 and 3 bits; the domain is the port's
        where = f"{where.partition(':')[0]}:{number >> 8:02x}:{number >> 3 & 31:02x}"
    details = {}
    if layer:
        details["layer"] = layer
    if driver:
        details["driver"] = driver
    if pci.normal(where) != port:
        details["port"] = port
    found = finding.of(
        fault,
        "aer",
        pci.normal(where),
        line,
        part=fault.name,
        role=Role.FURTHER if severity else Role.FIRST,
        details=details,
    )
    foreign = driver and not _NEAR_GPU().fullmatch(driver)
    return found._replace(name="") if foreign else found
