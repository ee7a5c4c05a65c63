"""What is asked of the machine: named shell commands, run side by side in one SSH call.

An SSH call costs 0.3 to 0.5 s under emulation and a command much less, so all commands of a run go over
together. None is waited for past the deadline, not even one that ignores SIGKILL: its output is then
missing, and what depends on it is unknown.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import tarfile
from collections.abc import Iterable, Mapping
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
    # $tools is a folder with this checkout's validation/: the image's bundle, or a copy sent for this run.
    "gpu_facts": "cd $tools && exec python3 -BS -m validation.gpu_facts",
    "gpu_memory": "cd $tools && exec python3 -BS -m validation.cuda --all-gpus --json",
    # Asked for the gate's own record that profiling works; 1001 is DCGM_FI_PROF_GR_ENGINE_ACTIVE. Several
    # samples: the first after the host engine has started is N/A.
    "dcgm_field_1001": "command -v dcgmi >/dev/null || exit 127; dcgmi dmon -e 1001 -c 3",
    "dcgm_diag": (
        "command -v dcgmi >/dev/null || exit 127; [ $diag_level -gt 0 ] || exit 126; "
        # A session of its own with its id in $tools: whoever gives up can end it.
        "exec setsid sh -c 'echo $$ >$0/diag.pid 2>/dev/null; exec dcgmi diag -r $1 -j' $tools $diag_level"
    ),
    "dcgm_health": "command -v dcgmi >/dev/null || exit 127; dcgmi health -c -j",
    # As JSON: its records say which of them the kernel wrote; dmesg where there is no journal. An empty log
    # is one that could not be read: the kernel always says something when it boots.
    "gpu_kernel_log": (
        "cd $tools && f=$(mktemp) && trap 'rm -f $f' EXIT && { journalctl --sync 2>/dev/null || :; } && "
        "{ journalctl --dmesg --boot --output=json --no-pager --quiet >$f 2>/dev/null || :; } && "
        "{ [ -s $f ] || dmesg >$f; } && "
        "{ [ -s $f ] || { echo 'the log of the kernel is empty'; exit 1; }; } && "
        "python3 -BS -m validation.kernel_log $f"
    ),
}

#: What runs in probes that do not begin with a program's name.
PROGRAMS = {
    "gpu_facts": "the look at the GPUs (nvidia-smi?)",
    "gpu_memory": "the memory check (CUDA)",
    "gpu_kernel_log": "the reading of the kernel's log",
    "dcgm_field_1001": "dcgmi dmon",
    "dcgm_diag": "dcgmi diag",
    "dcgm_health": "dcgmi health",
}

#: What is not asked side by side with the rest: the diagnostic loads the GPUs and needs them for itself, and
#: what the watches and the kernel have seen is read last, so that faults under its load are in it.
LATER = (("dcgm_field_1001",), ("dcgm_diag",), ("dcgm_health", "gpu_kernel_log"))

#: Seconds by DCGM's level. Its documentation says seconds, 2 min, 15 min, an hour; big machines take more.
DIAG_DEADLINES = {0: DEADLINE, 1: 300, 2: 900, 3: 3600, 4: 3 * 3600}


@dataclass(frozen=True)
class Output:
    """What one command left: stdout and stderr, exit code (None: not ended in time), seconds it took."""

    text: str
    code: int | None
    seconds: float


def stages(names: Iterable[str]) -> list[list[str]]:
    """``names`` in groups that are asked one after another; within a group side by side."""
    names = set(names)
    later = [name for group in LATER for name in group]
    groups = [sorted(names - set(later)), *([name for name in group if name in names] for group in LATER)]
    return [group for group in groups if group]


def deadline(names: Iterable[str], diag_level: int) -> int:
    """Seconds that the probes ``names`` may take together."""
    return DIAG_DEADLINES.get(diag_level, DEADLINE) if "dcgm_diag" in names else DEADLINE


def script(
    names: Iterable[str], *, deadline: int = DEADLINE, variables: Mapping[str, str] | None = None
) -> str:
    """A POSIX shell script that runs the probes ``names`` side by side and prints what ``read`` reads.

    ``variables`` are set for the probes; ``deadline`` in seconds.

    Built-ins wherever possible: starting a program costs 50 ms under emulation.
    """
    names = sorted(set(names))
    lines = [
        "d=$(mktemp -d) && cd / || exit 1",
        'trap "rm -rf $d" EXIT',
        "export LC_ALL=C DEBIAN_FRONTEND=noninteractive",
        *(f"{name}={shlex.quote(value)}" for name, value in sorted((variables or {}).items())),
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
