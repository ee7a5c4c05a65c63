"""Tells what the kernel says from what somebody quotes of it.

The kernel can glue a message behind another one's unfinished line, so a message of the driver may begin
anywhere in the kernel's own line. In a program's line it must begin the message: then the program imitates
the kernel (``injected``); anywhere else it quotes.
"""

from __future__ import annotations

from validation.kernel_log.heads import OWN_TEXT
from validation.kernel_log.lazy import pattern
from validation.kernel_log.model import Record, Writer

# Programs that copy lines of the kernel's log into their own: what they print happened before.
_REPORTERS = frozenset({"audit", "auditd", "bash", "dcgm-exporter", "gpu-boot-check", "gpud", "kubelet"})
_REPORTERS |= {"node-problem-detector", "nv-hostengine", "sshd", "sshd-session", "sudo"}
_REPORTERS |= {"CRON", "containerd", "crio", "dockerd", "k3s", "nvidia-device-plugin"}
_PROGRAM = pattern(r"[\w.@/-]+\[\d+\]:? ")  # name[pid]: no subsystem of the kernel writes so
_KLOG = pattern(r"[IWEF]\d{4} ")  # how programs of Kubernetes begin a line
_SUBSYSTEM = pattern(
    r"(?:NVRM|nvidia[\w-]*|nouveau|pci(?:eport|ehp|_bus)?|ACPI|DMAR|EDAC|usb|nvme\w*|cpuidle|CPU\w*|mlx[45]\w*|"
    r"perf|mce|snd\w*|i915|vfio\S*|EXT4-fs|XFS)(?: [\w:.-]+)?: "
)
_OPENS_QUOTE = "'\"`“‘«=("


def is_own(record: Record, number: int, before: str) -> bool:
    """Whether a message of the driver in line ``number`` of a record, behind ``before``, is no quotation."""
    before = before.rstrip()
    writer = record.writer
    # A further line of somebody else's record: only what the kernel itself wrote can be glued there.
    foreign = number > 0 and not record.text.startswith(OWN_TEXT)
    if foreign and (writer in (Writer.USER, Writer.NOBODY) or _PROGRAM().match(record.text)):
        return False
    if writer is Writer.USER:
        # "-bash": a login shell; "kubelet.service": journalctl -o with-unit
        return not before and record.program.lstrip("-").removesuffix(".service") not in _REPORTERS
    if not before:
        return True
    if before[-1] in _OPENS_QUOTE or before.startswith(("audit:", "audit(", "type=")):
        return False
    if writer is Writer.KERNEL:
        return True
    if _PROGRAM().match(before + " ") or _KLOG().match(before) or before.partition(":")[0] in _REPORTERS:
        return False
    if writer is Writer.RING:
        return True
    return bool(_SUBSYSTEM().match(before + " ")) and '"' not in before
