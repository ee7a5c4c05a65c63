"""One QEMU machine whose guest finds itself on EC2 (see vm.py)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from images import run
from images.clouds.local import machine
from images.errors import ExitCode, UserError
from tests.cloud_sim import imds
from tests.cloud_sim.target import Boot

#: QEMU's user network answers for 169.254.169.254 only when that is in the guest's own network. This one
#: holds 172.31.0.0/16 as well, where EC2's default VPCs are: the guest has an ordinary private address, and
#: nothing in it has to cope with a link-local one. ``restrict``: no other way leads out.
NETWORK = "net=168.0.0.0/5,host=172.16.0.1,dns=172.16.0.2,ipv6=off,restrict=on"
IMDS = "169.254.169.254:80"
#: Seconds that a guest has to shut down: a stop, and a reboot (EC2's own limit is 4 minutes).
POWER_OFF_PATIENCE = 120.0
REBOOT_PATIENCE = 240.0
#: Early in a boot nobody listens to the power button: it is pressed again after so many seconds.
PRESS_AGAIN = 5.0


@dataclass(frozen=True)
class Hardware:
    """What every machine of a target has."""

    accelerator: str = "tcg"
    cpus: int = 2
    memory_mib: int = 2048


class Machine:
    """One instance. A thread of its own starts QEMU and waits for its end.

    That thread must live as long as QEMU: the signal that ends QEMU when we die comes when the *thread* dies
    that started it (prctl(2), PR_SET_PDEATHSIG).
    """

    def __init__(
        self,
        boot: Boot,
        *,
        folder: Path,
        console_log: Path,
        hardware: Hardware,
        on_power_off: Callable[[], None],
    ) -> None:
        self.boot = boot
        self.folder = folder
        self.console_log = console_log
        self.hardware = hardware
        self.on_power_off = on_power_off
        self.imds: imds.Service | None = None
        self._lock = threading.Lock()  # of the three below
        self._wanted: Literal["on", "off", "again", "gone"] = "off"
        self._process: subprocess.Popen[bytes] | None = None
        self._ssh_dropped = False
        self._off = threading.Event()
        self._off.set()
        self._disk = threading.Lock()  # no two at the disk: a capture, the start of QEMU

    @property
    def gone(self) -> bool:
        return self._wanted == "gone"

    @property
    def private_address(self) -> str:
        """172.31.x.y of 127.77.x.y."""
        return "172.31." + self.boot.address.split(".", 2)[2]

    @property
    def mac(self) -> str:
        """A locally administered address, the same at each boot."""
        digest = hashlib.sha256(self.boot.instance_id.encode()).digest()
        return ":".join(f"{byte:02x}" for byte in (0x06, *digest[:5]))

    def prepare(self) -> None:
        """The overlay, and the metadata service with the program that leads to it."""
        self.folder.mkdir()
        source = self.boot.image.absolute() / "disk.qcow2"
        # An instance outlives its image: the link keeps the disk when the image is deregistered.
        with contextlib.suppress(OSError):  # another file system
            (self.folder / "image.qcow2").hardlink_to(source)
            source = self.folder / "image.qcow2"
        size = max(self.boot.disk_bytes, machine.virtual_size(source))
        overlay = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(source)]
        run.run([*overlay, self.folder / "disk.qcow2", str(size)])
        (self.folder / "relay.py").write_text(imds.RELAY)
        tree = imds.metadata(self.boot, private_address=self.private_address, mac=self.mac)
        self.imds = imds.Service(tree, self.folder / "imds")

    def command(self) -> list[str]:
        """The QEMU command, for the machine's folder: paths of sockets must be short (unix(7))."""
        hardware = self.hardware
        relay = shlex.join([sys.executable, "-IS", "relay.py", "imds"]).replace(",", ",,")
        network = f"user,id=net0,{NETWORK},dhcpstart={self.private_address},guestfwd=tcp:{IMDS}-cmd:{relay}"
        if not self._ssh_dropped:
            network += f",hostfwd=tcp:{self.boot.address}:22-{self.private_address}:22"
        args = ["setpriv", "--pdeathsig", "KILL", "--"]
        args += ["qemu-system-x86_64", "-nodefaults", "-display", "none"]
        args += ["-name", f"ec2-{self.boot.instance_id}", "-machine", "pc"]
        args += [word for pair in machine.ACCELERATOR_ARGUMENTS[hardware.accelerator] for word in pair]
        args += ["-smp", str(hardware.cpus), "-m", str(hardware.memory_mib)]
        args += smbios(self.boot.instance_id, self.boot.instance_type)
        args += ["-drive", "if=virtio,format=qcow2,cache=unsafe,discard=unmap,file=disk.qcow2"]
        args += ["-netdev", network, "-device", f"virtio-net-pci,netdev=net0,mac={self.mac}"]
        args += ["-device", "virtio-rng-pci"]
        args += ["-chardev", f"file,id=serial0,append=on,path={machine.escape(self.console_log)}"]
        args += ["-serial", "chardev:serial0", "-qmp", "unix:qmp,server=on,wait=off"]
        return args

    def launch(self) -> None:
        """Starts the machine, in the caller's network namespace; returns when QEMU runs. One that is not off
        is no error."""
        with self._lock:
            if self._wanted == "gone" or not self._off.is_set():
                return
            self._wanted = "on"
            self._off.clear()
        started: Future[None] = Future()
        name = f"qemu {self.boot.instance_id}"
        threading.Thread(target=self._run, args=[started], name=name, daemon=True).start()
        started.result()

    def _run(self, started: Future[None]) -> None:
        """The machine's thread: from its start to its end, over the reboots that we are asked for."""
        error: BaseException | None = None
        try:
            while process := self._start():
                self._wait_for_monitor(process)
                if not started.done():
                    started.set_result(None)
                process.wait()
        except BaseException as caught:
            error = caught
        with self._lock:
            by_itself = self._wanted == "on" and started.done()
            if self._wanted != "gone":
                self._wanted = "off"
            self._process = None
            self._off.set()
        if error and not started.done():
            started.set_exception(error)
        elif not started.done():
            started.set_result(None)  # power_off came first
        elif by_itself:
            self.on_power_off()
            if error:  # it did not come back from a reboot
                raise error

    def _start(self) -> subprocess.Popen[bytes] | None:
        """Starts QEMU if it is wanted: the first time, and after a reboot."""
        with self._disk, self._lock:
            wanted = "on" if self._process is None else "again"
            if self._wanted != wanted:
                return None
            self._wanted = "on"
            with (self.folder / "qemu.log").open("wb") as log:
                self._process = run.start(
                    self.command(), cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
                )
            return self._process

    def _wait_for_monitor(self, process: subprocess.Popen[bytes]) -> None:
        """Returns when QEMU runs the machine, or has already run it to its end."""
        while process.poll() is None:
            with contextlib.suppress(OSError):
                self.monitor("query-status")
                return
            time.sleep(0.05)
        text = (self.folder / "qemu.log").read_text(errors="replace").strip()
        if process.returncode > 0:
            hint = "another program listens on port 22 of all addresses" if "forwarding" in text else None
            raise UserError(f"QEMU did not start: {text}", hint=hint, code=ExitCode.FAILED)

    def monitor(self, command: str, **arguments: str) -> Any:
        """Runs a command of QEMU's machine protocol; raises ``OSError`` when QEMU is gone or refuses it.

        https://www.qemu.org/docs/master/interop/qmp-spec.html
        """
        with imds.short_path(self.folder / "qmp") as path, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(path))
            with connection.makefile("rw") as stream:
                stream.readline()  # the greeting
                answer: dict[str, Any] = {}
                for call in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                    stream.write(json.dumps(call) + "\n")
                    stream.flush()
                    answer = _answer(stream)
                return answer["return"]

    def console(self) -> str:
        """What the serial port has printed, over all boots."""
        try:
            return self.console_log.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def power_off(self) -> None:
        """Returns when the machine is off."""
        with self._lock:
            if self._wanted != "gone":
                self._wanted = "off"
            process = self._process
        if process:
            self._press(process, POWER_OFF_PATIENCE)
        self._off.wait()

    def reboot(self) -> None:
        """As EC2: the power button, and when the guest has shut down, or does not, a new start."""
        with self._lock:
            if self._wanted != "on" or not self._process:
                return
            self._wanted = "again"
            process = self._process
        threading.Thread(target=self._press, args=[process, REBOOT_PATIENCE], daemon=True).start()

    def _press(self, process: subprocess.Popen[bytes], patience: float) -> None:
        """Presses the power button until QEMU ends; ends it when that takes longer than ``patience``."""
        deadline = time.monotonic() + patience
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.monitor("system_powerdown")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(PRESS_AGAIN, max(deadline - time.monotonic(), 0)))
        run.kill_group(process, grace=0)

    def drop_ssh(self) -> None:
        """Takes the network away, for good: that closes the connections and the port."""
        with self._lock:
            self._ssh_dropped = True
            process = self._process
        if process:
            try:
                self.monitor("netdev_del", id="net0")
            except OSError:
                if process.poll() is None:
                    raise

    def capture(self, image: Path) -> None:
        """Writes ``image/disk.qcow2``; ``image`` is there when it is complete, or not at all."""
        new = image.with_name(f".{image.name}.new")
        new.mkdir(parents=True)
        try:
            with self._disk, self._frozen():
                # -U: QEMU has it open. It does not write: frozen it has flushed its own caches.
                command = ["qemu-img", "convert", "-U", "-O", "qcow2"]
                run.run([*command, self.folder / "disk.qcow2", new / "disk.qcow2"])
            new.rename(image)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[None]:
        """The machine's processors stand still in the body, if it runs."""
        if process := self._process:
            try:
                self.monitor("stop")
            except OSError:
                process.wait()  # it is ending: then the disk is at rest too
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self.monitor("cont")

    def destroy(self) -> None:
        """Ends the machine and removes its disk; may be called more than once."""
        with self._lock:
            self._wanted = "gone"
            process = self._process
            service, self.imds = self.imds, None
        if process:
            run.kill_group(process, grace=0)
        self._off.wait()
        if service:
            service.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _answer(stream: Any) -> dict[str, Any]:
    """The next answer; events in between are passed over."""
    for line in stream:
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise OSError(message["error"]["desc"])
        if "return" in message:
            return message
    raise OSError("QEMU closed its monitor")


def smbios(instance_id: str, instance_type: str) -> list[str]:
    """QEMU's options for what DMI says on a Nitro machine; the UUID's beginning is what guests look at.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html
    """
    serial = "ec2" + str(uuid.uuid5(uuid.NAMESPACE_URL, instance_id))[3:]
    tables = (
        "type=0,vendor=Amazon EC2,version=1.0",
        f"type=1,manufacturer=Amazon EC2,product={instance_type},serial={serial},uuid={serial}",
        f"type=2,manufacturer=Amazon EC2,asset={instance_id}",
        "type=3,manufacturer=Amazon EC2,asset=Amazon EC2",
    )
    return [word for table in tables for word in ("-smbios", table)]
