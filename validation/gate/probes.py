"""What is asked of the machine: named shell commands, run side by side in one SSH call.

An SSH call costs 0.3 to 0.5 s under emulation and a command much less, so all commands of a run go over
together. Each has its own deadline, and none is waited for past it, not even one that ignores SIGKILL: its
output is then missing, and what depends on it is unknown.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

DEADLINE = 90  # seconds a command may take; the slowest, a simulated upgrade, takes 10 under emulation

#: POSIX shell, run as root. Nothing in them depends on what is expected.
PROBES = {
    "kernel_release": "uname -r",
    "kernel_files": "ls -1d /lib/modules/* /boot/vmlinuz-* /boot/initrd.img-* 2>/dev/null || true",
    "packages": r"dpkg-query -W -f '${Package}\t${Version}\t${db:Status-Abbrev}\n'",
    "package_audit": "dpkg --audit",
    "package_holds": "apt-mark showhold",
    # A newer version of every installed package is offered to apt, so that a hold has something to resist.
    # Real lists would not do: a generalised image has none, and mostly the newest is installed already.
    "package_upgrade": (
        r"d=$(mktemp -d) && trap 'rm -rf $d' EXIT && "
        r"dpkg-query -W -f 'Package: ${Package}\nVersion: 9999:1\n"
        r"Architecture: ${Architecture}\nMulti-Arch: ${Multi-Arch}\nMaintainer: gate\nDescription: newer\n"
        r"Filename: ./none.deb\nSize: 1\n\n' | sed '/^Multi-Arch: $/d' >$d/Packages && "
        "mkdir -p $d/lists/partial $d/cache/archives/partial && "
        "apt-get -q -s -o Dir::State::Lists=$d/lists -o Dir::Cache=$d/cache "
        "-o Dir::Etc::SourceList=/dev/null "
        "-o Dir::Etc::SourceParts=/dev/null --with-source $d/Packages dist-upgrade"
    ),
    "apt_config": "apt-config dump",
    "grub_cfg": "cat /boot/grub/grub.cfg",
    "grub_env": "cat /boot/grub/grubenv 2>/dev/null || true",
    "system_state": "systemctl is-system-running || true",
    "units": "systemctl list-units --all --full --plain --no-legend",
    "unit_files": "systemctl list-unit-files --full --plain --no-legend",
    "cloud_init": "cat /run/cloud-init/status.json",
    "os_release": "cat /etc/os-release",
    "swaps": "cat /proc/swaps",
    "fstab": "cat /etc/fstab",
    "consoles": "cat /proc/consoles",
    "root_space": "stat -f -c '%S %b %a' /",
    "root_device": (
        "d=$(findmnt -nvo SOURCE /) && s=$(readlink -f /sys/class/block/${d##*/}) && p=$s && "
        'if [ -e $s/partition ]; then p=${s%/*}; echo start "$(cat $s/start)"; else echo start 0; fi && '
        'echo size "$(cat $s/size)" && echo disk "$(cat $p/size)"'
    ),
    "bundle": (
        "find /usr/lib/gpu-image -name __pycache__ -prune -o ! -type d -printf 'mode %m %p\\n' "
        "-type f -exec sha256sum {} +"
    ),
    "image_json": "cat /usr/lib/gpu-image/image.json",
    "boot_report": "cat /run/gpu-image/boot-check.json",
    "accounts": "getent passwd",
    "sudoers": 'grep -rhs "^[^#]" /etc/sudoers /etc/sudoers.d || true',
    "login": 'echo "${SUDO_USER:-$(id -un)}"',
    "hostname": "uname -n; cat /etc/hostname /etc/hosts 2>/dev/null",
}


@dataclass(frozen=True)
class Output:
    """What one command left: stdout and stderr, exit code (None: not ended in time), seconds."""

    text: str
    code: int | None
    seconds: float


def script(names: Iterable[str], *, deadline: int = DEADLINE) -> str:
    """One POSIX shell script that runs the probes ``names`` side by side and prints what ``read`` reads."""
    lines = [
        "d=$(mktemp -d) && cd / || exit 1",
        'trap "rm -rf $d" EXIT',
        "export LC_ALL=C DEBIAN_FRONTEND=noninteractive",
    ]
    names = sorted(set(names))
    for name in names:
        # Nothing of it keeps the SSH channel open, so a hung one cannot hold the connection.
        lines.append(
            f"(b=$(date +%s%N); timeout -k 5 {deadline} sh -c {shlex.quote(PROBES[name])} >$d/{name} 2>&1;"
            f' echo "$? $(( $(date +%s%N) - b ))" >$d/{name}.new; mv $d/{name}.new $d/{name}.end)'
            " </dev/null >/dev/null 2>&1 &"
        )
    wanted = len(names)
    lines += [
        f"end=$(( $(date +%s) + {deadline + 10} ))",
        f"while [ $(ls $d | grep -c '[.]end$') -lt {wanted} ] && [ $(date +%s) -lt $end ]",
        "do sleep 0.1; done",
        f"for n in {' '.join(names)}; do",
        r"""printf '\036%s %s\n' $n "$(cat $d/$n.end 2>/dev/null)"; cat $d/$n 2>/dev/null; done""",
        r"printf '\036end\n'",
    ]
    return "\n".join(lines)


def read(text: str) -> dict[str, Output]:
    """What ``script`` printed, by probe. A connection that broke leaves the last one out."""
    parts = text.split("\x1e")[1:]
    outputs = {}
    for part in parts[:-1]:
        head, _, body = part.partition("\n")
        match = re.fullmatch(r"(\w+) (?:(\d+) (-?\d+))?", head)
        if match:
            code = int(match[2]) if match[2] else None
            outputs[match[1]] = Output(body, None if code in (124, 137) else code, int(match[3] or 0) / 1e9)
    return outputs
