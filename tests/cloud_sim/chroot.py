"""The quick target: machines that boot in a second, each a root file system in namespaces of its own.

What is real: the files, the users, sshd and its keys, sudo, Python, the processes, reboots and power-offs.
What is not: the kernel (the host's), systemd and cloud-init (stand-ins, see ``guest/``), and the network,
which is the one the box runs in. Needs root, and the Debian archive once, to make the root file system.

A disk is an overlayfs: the cached root, the stand-ins, a layer for each image it descends from, and the
machine's own upper layer. An image folder has ``layer``, a copy of that upper layer, and ``lower``, the
paths of the layers below it; so an image may only go when those that descend from it have gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from images import run
from images.errors import UserError
from tests.cloud_sim.target import Boot

GUEST = Path(__file__).parent / "guest"
STAND_INS = {
    "bin": ("systemctl", "cloud-init", "cloud-id", "systemd-run"),
    "sbin": ("shutdown", "reboot", "poweroff", "halt"),
}
SUITE = "trixie"
PACKAGES = ("iproute2", "openssh-server", "procps", "python3", "sudo")
RECIPE = [
    "--variant=minbase",
    "--format=tar",
    f"--include={','.join(PACKAGES)}",
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")),
    # What makes a machine that machine is made at its first boot.
    '--customize-hook=rm -f "$1"/etc/ssh/ssh_host_* "$1/etc/hostname"; : >"$1/etc/machine-id"',
    '--customize-hook=echo 127.0.0.1 localhost >"$1/etc/hosts"',
]
POWER_OFF_SECONDS = 20.0
READY_SECONDS = 30.0


def make_root(cache: Path) -> Path:
    """The root file system all machines start from, made when it is not in ``cache``."""
    digest = hashlib.sha256(json.dumps([SUITE, RECIPE]).encode()).hexdigest()
    root = cache / f"chroot-{digest[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            making = cache / f"{root.name}.new"
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            tar = making.with_suffix(".tar")
            hint = "the first use of the chroot target needs the Debian archive: check the network"
            try:
                run.run(["mmdebstrap", *RECIPE, SUITE, tar], hint=hint)
                run.run(["tar", "-C", making, "--numeric-owner", "-xpf", tar])
                making.rename(root)
            finally:
                tar.unlink(missing_ok=True)
    return root


def read_user_data(data: bytes) -> tuple[dict[str, Any], list[str]]:
    """The cloud-config and the scripts in a user-data. Raises ``ValueError`` for what is not simulated."""
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    text = data.decode()
    if not text.strip():
        return {}, []
    if text.startswith("#!"):
        return {}, [text]
    if text.startswith("#cloud-config"):
        config = yaml.safe_load(text)
        if isinstance(config, dict):
            return config, []
    raise ValueError(f"user-data of this kind is not simulated: {text[:40]!r}")


class ChrootTarget:
    """A ``Target``. ``source`` is an image folder of a fresh machine. Everything is below ``folder``."""

    def __init__(self, folder: Path, *, cache: Path) -> None:
        if os.geteuid() != 0:
            raise UserError("the chroot target needs root", hint="run it as root, or with sudo")
        self.on_power_off: Callable[[str], None] = lambda _instance_id: None
        self._folder = folder
        self._root = make_root(cache)
        self._machines: dict[str, _Machine] = {}
        self._stand_ins = folder / "stand-ins"
        self._lay_stand_ins()
        self.source = folder / "source"
        self._write_image(self.source, [self._stand_ins, self._root])
        (self.source / "layer").mkdir()

    def start(self, boot: Boot) -> None:
        """See ``Target``."""
        lower = [boot.image / "layer", *map(Path, (boot.image / "lower").read_text().splitlines())]
        machine = _Machine(self._folder / boot.instance_id, boot, lower, self._ended)
        self._machines[boot.instance_id] = machine
        machine.switch_on()

    def console(self, instance_id: str) -> str:
        """See ``Target``."""
        return self._machines[instance_id].console.read_text(errors="replace")

    def reboot(self, instance_id: str) -> None:
        """See ``Target``."""
        self._machines[instance_id].press(signal.SIGINT)

    def power_off(self, instance_id: str) -> None:
        """See ``Target``."""
        self._machines[instance_id].power_off()

    def resume(self, instance_id: str) -> None:
        """See ``Target``."""
        self._machines[instance_id].switch_on()

    def destroy(self, instance_id: str) -> None:
        """See ``Target``."""
        self._machines[instance_id].destroy()

    def drop_ssh(self, instance_id: str) -> None:
        """See ``Target``."""
        machine = self._machines[instance_id]
        for pid in machine.processes():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                    os.kill(pid, signal.SIGKILL)

    def capture(self, instance_id: str, image: Path) -> None:
        """See ``Target``."""
        machine = self._machines[instance_id]
        self._write_image(image, machine.lower)
        # Not shutil: deleted files are device nodes, and extended attributes of "trusted" matter.
        run.run(["cp", "--archive", machine.disk / "upper", image / "layer"])

    def close(self) -> None:
        """See ``Target``."""
        for machine in list(self._machines.values()):
            machine.destroy()

    def _ended(self, instance_id: str) -> None:
        self.on_power_off(instance_id)

    @staticmethod
    def _write_image(image: Path, lower: list[Path]) -> None:
        image.mkdir(parents=True)
        (image / "lower").write_text("".join(f"{path}\n" for path in lower))

    def _lay_stand_ins(self) -> None:
        """A layer of its own, so that another stand-in needs no other root."""
        box = self._stand_ins / "usr/local/lib/box"
        box.mkdir(parents=True)
        for name in ("init.py", "stand_in.py"):
            shutil.copy(GUEST / name, box / name)
        (box / "stand_in.py").chmod(0o755)
        for folder, names in STAND_INS.items():
            for place in (f"usr/{folder}", f"usr/local/{folder}"):
                (self._stand_ins / place).mkdir(parents=True, exist_ok=True)
                for name in names:
                    (self._stand_ins / place / name).symlink_to("/usr/local/lib/box/stand_in.py")


class _Machine:
    """One machine. It ends with the thread that runs it, so also with a killed box."""

    def __init__(self, folder: Path, boot: Boot, lower: list[Path], ended: Callable[[str], None]) -> None:
        self.boot = boot
        self.lower = lower
        self.disk = folder / "disk"
        self.console = folder / "console.log"
        self._folder = folder
        self._shared = folder / "shared"
        self._ended = ended
        self._switched_off = False  # from outside: nobody needs to hear of it
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        for path in (self.disk / "upper", self.disk / "work", folder / "root", self._shared):
            path.mkdir(parents=True)
        # The permissions of "/" are those of the uppermost layer.
        (self.disk / "upper").chmod(0o755)
        self.console.touch()
        self._write_seed()

    def _write_seed(self) -> None:
        boot = self.boot
        hostname = "ip-" + boot.address.replace(".", "-")
        try:
            config, scripts = read_user_data(boot.user_data)
        except ValueError as error:
            config, scripts = {}, []
            self.console.write_text(f"cloud-init: {error}\n")
        seed = {
            "instance_id": boot.instance_id,
            "image_id": boot.image_id,
            "address": boot.address,
            "hostname": hostname,
            "default_user": boot.default_user,
            "public_keys": boot.public_keys,
            "config": config,
            "scripts": scripts,
        }
        (self._shared / "seed.json").write_text(json.dumps(seed))
        (self._shared / "hostname").write_text(config.get("hostname", hostname))
        (self._shared / "hosts").write_text(f"127.0.0.1 localhost\n{boot.address} {hostname}\n")

    def switch_on(self) -> None:
        """Boots; returns when its first process runs."""
        if not self.disk.exists():
            raise KeyError(self.boot.instance_id)
        self._switched_off = False
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        """Boots until the machine stays off: the kernel says how each boot ended (reboot(2))."""
        code = -signal.SIGHUP
        while code == -signal.SIGHUP and not self._switched_off:
            (self._shared / "boot_id").write_text(f"{uuid.uuid4()}\n")
            (self._shared / "ready").unlink(missing_ok=True)
            words = ["setpriv", "--pdeathsig", "KILL", "--"]
            words += ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--"]
            words += ["sh", str(GUEST / "boot.sh"), str(self._folder), ":".join(map(str, self.lower))]
            with self.console.open("ab") as console:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                    start_new_session=True,
                    env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
                )
            started.set()
            code = self._process.wait()
        if not self._switched_off:
            self._ended(self.boot.instance_id)

    def init(self) -> int | None:
        """The host's number of its first process, or None when it is off."""
        process = self._process
        if process is None or process.poll() is not None:
            return None
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            return int(children[0]) if children else None
        return None

    def processes(self) -> Iterator[int]:
        """The host's numbers of its processes."""
        if (init := self.init()) is None:
            return
        namespace = Path(f"/proc/{init}/ns/pid").readlink()
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and (folder / "ns/pid").readlink() == namespace:
                    yield int(folder.name)

    def press(self, signum: int) -> None:
        """Signals its first process, as soon as that listens."""
        deadline = time.monotonic() + READY_SECONDS
        while not (self._shared / "ready").exists() and time.monotonic() < deadline and self._running():
            time.sleep(0.02)  # the guest makes a file, nothing more; until the deadline
        if init := self.init():
            with contextlib.suppress(ProcessLookupError):
                os.kill(init, signum)

    def power_off(self) -> None:
        """Presses the power button; returns when it is off."""
        self._switched_off = True
        self.press(signal.SIGPWR)
        if self._thread:
            self._thread.join(POWER_OFF_SECONDS)
        self._kill()

    def destroy(self) -> None:
        """Ends it and deletes its disk."""
        self._switched_off = True
        self._kill()
        shutil.rmtree(self.disk, ignore_errors=True)

    def _kill(self) -> None:
        if self._running() and self._process:
            if init := self.init():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(init, signal.SIGKILL)
            else:
                self._process.kill()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join()

    def _running(self) -> bool:
        return self._process is not None and self._process.poll() is None
