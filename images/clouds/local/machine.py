"""Boots a disk image in plain QEMU, on a throw-away overlay, and talks to it by SSH.

The image is only read. SSH is strict about the host key: it is the one that cloud-init prints on the serial
console. When the context ends, by whatever way, nothing of the machine is left but its serial log, unless
``leave_running`` was called.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from images import run
from images.builds import short_folder
from images.cloud_init import user_data
from images.errors import ExitCode, UserError
from images.remote import SshMachine, write_ssh_config

#: How QEMU runs the guest's processor: option and value.
ACCELERATOR_ARGUMENTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "kvm": (("-accel", "kvm"), ("-cpu", "host")),
    "tcg": (
        # Room for translated code, MiB. Small enough (the default is 1 GiB): on a warm reset GRUB copies
        # kernel and initrd byte by byte, and each write to memory that held the last kernel's code throws
        # away the translations of that place, one by one.
        ("-accel", "tcg,tb-size=256"),
        ("-cpu", "max"),
        # Emulation translates code anew for each address it runs at, and address randomisation gives every
        # process others: without it, what starts many processes takes two thirds of the time. The setting
        # comes from outside and in memory (systemd.system-credentials(7)), so no image carries it.
        ("-smbios", "type=11,value=io.systemd.credential:sysctl.extra=kernel.randomize_va_space=0"),
    ),
}
#: Firmware and the template of its variables, as distributions install them; the first pair that is there.
OVMF = (
    (Path("/usr/share/OVMF/OVMF_CODE_4M.fd"), Path("/usr/share/OVMF/OVMF_VARS_4M.fd")),
    (Path("/usr/share/OVMF/OVMF_CODE.fd"), Path("/usr/share/OVMF/OVMF_VARS.fd")),
    (Path("/usr/share/edk2/ovmf/OVMF_CODE.fd"), Path("/usr/share/edk2/ovmf/OVMF_VARS.fd")),
    (Path("/usr/share/edk2/x64/OVMF_CODE.4m.fd"), Path("/usr/share/edk2/x64/OVMF_VARS.4m.fd")),
)
PORT_TRIES = 5


@dataclass(frozen=True)
class Config:
    """A machine to boot. ``disk_bytes`` is the overlay's size: at least the image's virtual size.

    ``work`` is an existing folder on a disk with room; ``serial_log`` stays after the machine is gone.
    ``restrict`` cuts the machine off from every network but the forwarded SSH port. Without ``outlive`` it
    ends with us, even when we are killed.
    """

    image: Path
    name: str
    user: str
    private_key: Path
    public_key: str
    work: Path
    serial_log: Path
    disk_bytes: int
    firmware: Literal["bios", "uefi"] = "bios"
    accelerator: str = "tcg"
    cpus: int = 2
    memory_mib: int = 2048
    restrict: bool = True
    outlive: bool = False
    cloud_config: Mapping[str, Any] = field(default_factory=dict)


class Machine(SshMachine):
    """A running machine; use as a context manager."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.name = config.name
        self.user = config.user
        self.disk_bytes = config.disk_bytes
        self.host = "127.0.0.1"
        self.port = 0
        self.folder = config.work / f"{config.name}.machine"
        self.ssh_config = self.folder / "ssh_config"
        self.known_hosts = self.folder / "known_hosts"
        self.serial_log = config.serial_log
        self.started = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._short: Path | None = None  # a path of a socket has at most 107 bytes
        self._left = False

    @property
    def description(self) -> str:
        """The machine in words, for results."""
        config = self.config
        how = config.accelerator + (" without address randomisation" if config.accelerator == "tcg" else "")
        return f"QEMU {how}, {config.firmware}, {config.cpus} CPUs, {config.memory_mib} MiB, no GPU"

    def __enter__(self) -> Machine:
        """Starts QEMU; returns when it runs, which is before the machine has booted."""
        config = self.config
        try:
            self._prepare()
            for _ in range(PORT_TRIES):
                self.port = free_port()
                if self._start():
                    break
            else:
                raise UserError("no free port for the machine's SSH", code=ExitCode.FAILED)
            assert self._short
            self.control = self._short / "ssh"
            write_ssh_config(
                self.ssh_config,
                host=self.host,
                port=self.port,
                user=config.user,
                key=config.private_key,
                known_hosts=self.known_hosts,
                control=self.control,
            )
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._left:
            self.kill()

    def leave_running(self) -> None:
        """The end of the context does not end the machine (``Config.outlive`` lets it run on after us)."""
        self._left = True

    def _prepare(self) -> None:
        """Overlay, seed and firmware variables in a folder of the machine's own."""
        self.folder.mkdir()
        self._short = Path(tempfile.mkdtemp(prefix="gpu-image-", dir=short_folder()))
        seed = self.folder / "seed"
        seed.mkdir()
        config = self.config
        (seed / "user-data").write_text(user_data(config.user, config.public_key, config.cloud_config))
        (seed / "meta-data").write_text(meta_data(config.name))
        make_seed(seed, self.folder / "seed.iso")
        overlay = [
            "qemu-img",
            "create",
            "-q",
            "-f",
            "qcow2",
            "-F",
            "qcow2",
            "-b",
            str(config.image.absolute()),
        ]
        run.run([*overlay, self.folder / "disk.qcow2", str(config.disk_bytes)])
        if config.firmware == "uefi":
            shutil.copyfile(ovmf()[1], self.folder / "vars.fd")

    def _start(self) -> bool:
        """Starts QEMU; False when it did not get the port, which another program may have taken."""
        assert self._short
        errors = self.folder / "qemu.log"
        with errors.open("wb") as sink:
            self.started = time.monotonic()
            self._process = run.start(self.command(), stdout=sink, stderr=subprocess.STDOUT)
        socket_path = self._short / "qmp"
        while not socket_path.exists() or not answers(socket_path):
            if self._process.poll() is not None:
                text = errors.read_text(errors="replace")
                if "host forwarding" in text:
                    return False
                raise UserError(f"QEMU did not start: {text.strip()}", code=ExitCode.FAILED)
            time.sleep(0.05)  # until QEMU has made its socket, or has ended
        return True

    def command(self) -> list[str]:
        """The QEMU command."""
        config = self.config
        forward = f"user,id=net0,hostfwd=tcp:127.0.0.1:{self.port}-:22"
        if config.restrict:
            forward += ",restrict=on"
        args = [] if config.outlive else ["setpriv", "--pdeathsig", "KILL", "--"]
        args += ["qemu-system-x86_64", "-nodefaults", "-display", "none"]
        args += ["-name", f"gpu-image-{config.name}"]
        # Not q35: cloud kernels have no AHCI driver and would not see the seed.
        args += ["-machine", "pc"]
        args += [word for pair in ACCELERATOR_ARGUMENTS[config.accelerator] for word in pair]
        args += ["-smp", str(config.cpus), "-m", str(config.memory_mib)]
        if config.firmware == "uefi":
            args += ["-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={escape(ovmf()[0])}"]
            args += ["-drive", f"if=pflash,unit=1,format=raw,file={escape(self.folder / 'vars.fd')}"]
        disk = escape(self.folder / "disk.qcow2")
        args += ["-drive", f"if=virtio,format=qcow2,cache=unsafe,discard=unmap,file={disk}"]
        seed = escape(self.folder / "seed.iso")
        args += ["-drive", f"if=ide,media=cdrom,format=raw,readonly=on,file={seed}"]
        args += ["-netdev", forward, "-device", "virtio-net-pci,netdev=net0", "-device", "virtio-rng-pci"]
        args += ["-chardev", f"file,id=serial0,append=on,path={escape(config.serial_log)}"]
        args += ["-serial", "chardev:serial0"]
        args += ["-qmp", f"unix:{self._short}/qmp,server=on,wait=off"]
        return args

    def serial(self) -> str:
        """What the serial console has printed so far."""
        try:
            return self.config.serial_log.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def ended(self) -> str | None:
        """Whether QEMU still runs."""
        return "QEMU has ended" if self._process is None or self._process.poll() is not None else None

    def power_off(self, timeout: float = 120) -> float:
        """Presses the power button; returns the seconds until QEMU has ended. Raises ``UserError`` when
        the machine does not shut down in time (it is killed then)."""
        assert self._process and self._short
        self.close_ssh()
        started = time.monotonic()
        qmp(self._short / "qmp", "system_powerdown")
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise UserError(
                f"machine {self.name} did not shut down within {timeout:g} s",
                hint=f"its console is in {self.config.serial_log}",
                code=ExitCode.FAILED,
            ) from None
        return time.monotonic() - started

    def kill(self) -> None:
        """Ends the machine at once and removes its files; may be called more than once."""
        try:
            if self._process:
                run.kill_group(self._process, grace=0)
            with contextlib.suppress(UserError):
                self.close_ssh()
        finally:
            for folder in (self.folder, self._short):
                if folder:
                    shutil.rmtree(folder, ignore_errors=True)


def meta_data(name: str) -> str:
    """cloud-init's meta-data: another instance id means a first boot."""
    return json.dumps({"instance-id": f"i-{name}", "local-hostname": name}) + "\n"


def make_seed(folder: Path, iso: Path) -> None:
    """The NoCloud seed: the folder's files on an ISO 9660 image labelled ``cidata``.

    https://cloudinit.readthedocs.io/en/latest/reference/datasources/nocloud.html
    """
    run.run(["xorriso", "-as", "mkisofs", "-quiet", "-V", "cidata", "-J", "-R", "-o", iso, folder])


def virtual_size(image: Path) -> int:
    """The virtual size of a disk image in bytes."""
    info = json.loads(run.run(["qemu-img", "info", "--output=json", image]).stdout)
    return int(info["virtual-size"])


def ovmf() -> tuple[Path, Path]:
    """UEFI firmware and the template of its variables. Raises ``UserError`` when it is not installed."""
    for code, variables in OVMF:
        if code.exists() and variables.exists():
            return code, variables
    raise UserError("no UEFI firmware for QEMU", hint="apt install ovmf")


def free_port() -> int:
    """A port that is free on 127.0.0.1 now. Another program may take it before QEMU does: try again then."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def escape(path: Path) -> str:
    """A path as a value in a QEMU option, where a comma would end it."""
    return str(path.absolute()).replace(",", ",,")


def answers(socket_path: Path) -> bool:
    """Whether QEMU's monitor answers: then it has its port and runs the machine."""
    try:
        qmp(socket_path, "query-status")
    except OSError:
        return False
    return True


def qmp(socket_path: Path, command: str) -> Any:
    """Runs a command of QEMU's machine protocol and returns what it answers.

    https://www.qemu.org/docs/master/interop/qmp-spec.html . Raises ``OSError`` when QEMU is gone.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(socket_path))
        with connection.makefile("rw") as stream:
            stream.readline()  # the greeting
            answer: dict[str, Any] = {}
            for execute in ("qmp_capabilities", command):
                stream.write(json.dumps({"execute": execute}) + "\n")
                stream.flush()
                answer = _qmp_answer(stream)
            return answer.get("return")


def _qmp_answer(stream: Any) -> dict[str, Any]:
    """The next answer; events in between are passed over."""
    for line in stream:
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise OSError(message["error"]["desc"])
        if "return" in message:
            return message
    raise OSError("QEMU closed its monitor")
