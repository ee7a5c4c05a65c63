"""What is asked of the machine: named shell commands, run side by side in one SSH call.

An SSH call costs 0.3 to 0.5 s under emulation and a command much less, so all commands of a run go over
together. None is waited for past the deadline, not even one that ignores SIGKILL: its output is then
missing, and what depends on it is unknown.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass

DEADLINE = 90  # seconds the commands may take together; under emulation they take some 10

#: POSIX shell, run as root. Nothing in them depends on what is expected.
PROBES = {
    "kernel_release": "uname -r",
    "kernel_files": "ls -1d /lib/modules/* /boot/vmlinuz-* /boot/initrd.img-* 2>/dev/null || true",
    "packages": r"dpkg-query -W -f '${Package}\t${Version}\t${db:Status-Abbrev}\n'",
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
    # Masked is a link to /dev/null where an administrator's units lie. Asking systemctl for the state of
    # all unit files says the same and takes twenty times as long.
    "masked_units": (
        "find /etc/systemd/system /run/systemd/system -maxdepth 1 -lname /dev/null -printf '%f\\n'"
    ),
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
    """What one command left: stdout and stderr, exit code (None: not ended in time), seconds it took."""

    text: str
    code: int | None
    seconds: float


def script(names: Iterable[str], *, deadline: int = DEADLINE) -> str:
    """A POSIX shell script that runs the probes ``names`` side by side and prints what ``read`` reads.

    Built-ins wherever possible: starting a program costs 50 ms under emulation.
    """
    names = sorted(set(names))
    lines = [
        "d=$(mktemp -d) && cd / || exit 1",
        'trap "rm -rf $d" EXIT',
        "export LC_ALL=C DEBIAN_FRONTEND=noninteractive",
    ]
    for name in names:
        # Nothing of it keeps the SSH channel open, so a hung one cannot hold the connection.
        lines += [
            "( read b _ </proc/uptime",
            f"( {PROBES[name]}\n) >$d/{name}.out 2>&1",
            f"c=$?; read e _ </proc/uptime; echo $c $b $e >$d/{name}.code; : >$d/{name}.end",
            ") </dev/null >/dev/null 2>&1 &",
        ]
    lines += [
        "n=0",
        "while set -- $d/*.end",
        f"[ ! -e $1 -o $# -lt {len(names)} ] && [ $n -lt {(deadline + 10) * 5} ]",
        "do sleep 0.2; n=$((n + 1)); done",
        "tar -C $d -cf - .",
        "exit 0",
    ]
    return "\n".join(lines)


def read(archive: bytes) -> dict[str, Output]:
    """What ``script`` printed, by probe. A connection that broke leaves out what had not come."""
    files: dict[str, str] = {}
    with contextlib.suppress(tarfile.TarError, EOFError), tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content:
                files[member.name.removeprefix("./")] = content.read().decode(errors="replace")
    outputs = {}
    for name in PROBES:
        if f"{name}.out" in files:
            code, began, ended = (files.get(f"{name}.code") or "- 0 0").split()
            seconds = float(ended) - float(began)
            ended_well = f"{name}.end" in files and code != "-"
            outputs[name] = Output(files[f"{name}.out"], int(code) if ended_well else None, seconds)
    return outputs
