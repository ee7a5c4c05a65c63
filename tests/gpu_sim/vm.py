"""What only a real machine can do: a process in D state, which ignores even SIGKILL, and the kernel's log.

All functions return shell lines to run as root on the machine; nothing here runs them.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.gpu_sim import kernel_log
from tests.gpu_sim.kernel import ASIDE
from tests.gpu_sim.scenario import Scenario

FOLDER = "/run/gpu-sim/frozen"
#: What a scenario's ``blocks_on`` must be for each of the two ways.
FROZEN_FILE = f"{FOLDER}/file"
SUSPENDED_DEVICE = "/dev/mapper/gpu-sim"
SUSPENDED_IMAGE = "/run/gpu-sim/suspended.img"


def freeze() -> list[str]:
    """A small file system, frozen: who writes to it waits in the kernel. Needs e2fsprogs and util-linux."""
    image = "/run/gpu-sim/frozen.img"
    return [
        "mkdir -p /run/gpu-sim",
        f"truncate -s 8M {image}",
        f"mkfs.ext4 -q -F {image}",
        f"mkdir -p {FOLDER}",
        f"mount -o loop {image} {FOLDER}",
        f"touch {FROZEN_FILE}",
        f"fsfreeze --freeze {FOLDER}",
    ]


def thaw() -> list[str]:
    """Lets the waiting processes go on, and takes the file system away once they have ended. Never fails."""
    return [
        f"fsfreeze --unfreeze {FOLDER} || true",
        f"for try in $(seq 50); do umount {FOLDER} && break; sleep 0.1; done",
        f"rmdir {FOLDER} || true",
        "rm -f /run/gpu-sim/frozen.img",
    ]


def suspend() -> list[str]:
    """A device-mapper device over a loop device, suspended: the same where there is dmsetup."""
    loop = f"$(losetup --find --show {SUSPENDED_IMAGE})"
    return [
        "mkdir -p /run/gpu-sim",
        f"truncate -s 8M {SUSPENDED_IMAGE}",
        f'dmsetup create gpu-sim --table "0 16384 linear {loop} 0"',
        "dmsetup suspend --nolockfs gpu-sim",
    ]


def resume() -> list[str]:
    """Ends ``suspend``. Never fails."""
    return [
        "dmsetup resume gpu-sim || true",
        "for try in $(seq 50); do dmsetup remove gpu-sim && break; sleep 0.1; done",
        f"losetup --detach $(losetup --associated {SUSPENDED_IMAGE} --noheadings --output NAME) || true",
        f"rm -f {SUSPENDED_IMAGE}",
    ]


def hung() -> str:
    """A shell word: the processes of the simulator that hang, and those that hold their pipes."""
    return "$(sed 's/.* //' /run/gpu-sim/hung /run/gpu-sim/holders 2>/dev/null)"


def end_hung() -> list[str]:
    """Ends them; those in D state end when what they wait for goes on."""
    return [f"for pid in {hung()}; do kill -9 $pid || :; done"]


def write_kernel_log(scenario: Scenario) -> list[str]:
    """Puts the scenario's records into the real kernel log, where the kernel marks them as user space's."""
    return [f"printf %s {_quoted(record)} >/dev/kmsg" for record in kernel_log.kmsg(scenario)]


def show_kernel() -> list[str]:
    """Shows the simulated PCI bus, modules and /proc/driver instead of the real ones, until the next boot.

    Only to programs that read files there: the kernel itself knows nothing of these GPUs.
    """
    return [
        f"mkdir -p {ASIDE}/pci {ASIDE}/module {ASIDE}/driver",  # a scenario may have nothing in one of them
        f"mount --bind {ASIDE}/pci /sys/bus/pci/devices",
        f"mount -t overlay gpu-sim -o lowerdir={ASIDE}/module:/sys/module /sys/module",
        f"mount --bind {ASIDE}/driver /proc/driver",
    ]


def hide_kernel() -> list[str]:
    """Shows the machine's own again."""
    return [f"umount {place}" for place in ("/proc/driver", "/sys/module", "/sys/bus/pci/devices")]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def script(lines: Iterable[str]) -> str:
    """Shell lines as one script that stops at the first that fails."""
    return "set -e\n" + "".join(f"{line}\n" for line in lines)
