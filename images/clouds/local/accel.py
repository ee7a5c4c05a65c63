"""Chooses what runs guests: KVM where it works, else TCG (emulation).

``/dev/kvm`` can exist, run a guest's first real-mode instructions and then hang every ordinary guest (seen
inside other virtual machines). So the probe runs a real guest: a boot sector that goes to 64-bit mode with
paging on, works for a moment and ends QEMU through the ``isa-debug-exit`` device.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from images import run
from images.errors import ExitCode, UserError

ACCELERATORS = ("kvm", "tcg")
DEVICE = Path("/dev/kvm")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CACHE = Path("~/.cache/gpu-image").expanduser()
#: Seconds. With a working KVM the guest ends in less than half a second, with TCG in about as long.
PROBE_TIMEOUT = 4.0

#: The guest, from this source by ``as --64`` and ``ld -Ttext 0x7c00 --oformat binary``:
#:   .code16: cli; zero ax, ds, es, ss; sp=0x7c00; cld; clear 0x9000..0xbfff (cx=0xc00, rep stosl);
#:   page tables: [0x9000]=0xa003, [0xa000]=0xb003, [0xb000]=0x83 (one 2 MiB page); cr3=0x9000;
#:   cr4|=0x620 (PAE, OSFXSR, OSXMMEXCPT); EFER|=0x100 (LME); cr0|=0x80000001 (PG, PE); lgdt; ljmp $8
#:   .code64: ecx=50000000; 1: mov %ecx,0x8000; dec %ecx; jnz 1b; out 0x2a to port 0x501; hlt for ever
#:   GDT: null, 64-bit code
GUEST = bytes.fromhex(
    "fa31c08ed88ec08ed0bc007cfcbf0090b9000c6631c066f3ab66c706009003a0000066c70600a003b0000066c70600b08300"
    "000066b8009000000f22d80f20e00d20060f22e066b9800000c00f320d00010f300f20c0660d010000800f22c00f0116987c"
    "ea697c0800b980f0fa02890c2500800000ffc975f566ba0105b02aeef4ebfd0f1f440000000000000000000000000000009a"
    "20000f00887c0000"
)
#: What QEMU exits with when the guest writes 0x2a: value * 2 + 1.
#: https://www.qemu.org/docs/master/ , hw/misc/debugexit.c
GUEST_DONE = 0x2A * 2 + 1


@dataclass(frozen=True)
class Verdict:
    """What to use, and one line that says why."""

    accelerator: str
    reason: str


def choose(wanted: str | None = None, *, cache: Path = CACHE) -> tuple[str, str]:
    """The accelerator (``kvm`` or ``tcg``) and one line that says why.

    ``wanted`` overrides the probe. A verdict of the probe holds until the next boot and is kept in
    ``cache``. Raises ``UserError`` for an unknown name, or when guests run in neither way.
    """
    if wanted:
        if wanted not in ACCELERATORS:
            raise UserError(f"no accelerator {wanted!r}", hint=f"there are: {', '.join(ACCELERATORS)}")
        return wanted, f"{wanted}: asked for by --accel"
    place = cache / f"accel-{BOOT_ID.read_text().strip()}-{os.geteuid()}.json"
    verdict = _read(place) or probe()
    _write(place, verdict)
    return verdict.accelerator, verdict.reason


def probe(*, device: Path = DEVICE, timeout: float = PROBE_TIMEOUT) -> Verdict:
    """Runs the guest and decides. ``timeout`` (seconds) is what KVM gets to run it."""
    if not device.exists():
        return Verdict("tcg", f"tcg: {device} does not exist (emulation, about ten times slower)")
    if not os.access(device, os.R_OK | os.W_OK):
        return Verdict("tcg", f"tcg: {device} may not be opened; join its group for speed (usermod -aG kvm)")
    kvm = run_guest("kvm", timeout)
    if kvm is not None:
        return Verdict("kvm", f"kvm: a test guest ran in {kvm:.1f} s")
    tcg = run_guest("tcg", 30)
    if tcg is None:
        raise UserError(
            "QEMU runs no guest, neither with KVM nor by emulation",
            hint="try: qemu-system-x86_64 -accel tcg -nographic",
            code=ExitCode.FAILED,
        )
    return Verdict(
        "tcg", f"tcg: {device} exists but a test guest did not end in {timeout:g} s, emulated in {tcg:.1f} s"
    )


def run_guest(accelerator: str, timeout: float) -> float | None:
    """Runs the test guest; the seconds it took, or None when it hung or QEMU failed."""
    model = {"kvm": "host", "tcg": "max"}[accelerator]
    with tempfile.NamedTemporaryFile(prefix="gpu-image-probe-") as disk:
        disk.write(GUEST.ljust(510, b"\0") + b"\x55\xaa")
        disk.flush()
        args = ["qemu-system-x86_64", "-machine", f"pc,accel={accelerator}", "-cpu", model, "-m", "64"]
        args += ["-nodefaults", "-display", "none", "-no-reboot"]
        args += ["-device", "isa-debug-exit,iobase=0x501,iosize=2"]
        args += ["-drive", f"file={disk.name},format=raw,if=ide,snapshot=on"]
        started = time.monotonic()
        process = run.start(args)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            run.kill_group(process, grace=0)
    return time.monotonic() - started if code == GUEST_DONE else None


def _read(place: Path) -> Verdict | None:
    try:
        return Verdict(**json.loads(place.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write(place: Path, verdict: Verdict) -> None:
    """Keeps the verdict; those of earlier boots go."""
    place.parent.mkdir(parents=True, exist_ok=True)
    for old in place.parent.glob(f"accel-*-{os.geteuid()}.json"):
        if old != place:
            old.unlink(missing_ok=True)
    temporary = place.with_name(f".{place.name}.{os.getpid()}")
    temporary.write_text(json.dumps(vars(verdict)))
    temporary.replace(place)
