"""A machine at the other end of SSH: waiting for it, running commands on it, rebooting it.

Its host key is known before anything is sent: it stands on the machine's console.
"""

from __future__ import annotations

import contextlib
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from images import console, run
from images.errors import ExitCode, UserError

POLL = 0.5  # seconds between two looks


class SshMachine(ABC):
    """What every machine of the gate does by SSH; how it is started and ended is the cloud's.

    ``started`` is the monotonic time of power-on; ``seconds_to_ssh`` is there once ``wait_for_ssh`` has
    returned. ``ssh_config`` names the host ``vm``.
    """

    name: str
    user: str
    host: str
    port: int
    ssh_config: Path
    known_hosts: Path
    serial_log: Path
    started: float
    control: Path | None = None
    seconds_to_ssh = 0.0

    @abstractmethod
    def serial(self) -> str:
        """What the serial console has printed so far."""

    @abstractmethod
    def ended(self) -> str | None:
        """Why the machine will not come up any more; None as long as it may."""

    def restart(self) -> None:
        """Asks for a reboot; it may or may not have begun when this returns."""
        with contextlib.suppress(UserError):  # the connection breaks, more or less politely
            self.run("sudo systemctl reboot", timeout=30)

    def wait_for_ssh(self, timeout: float = 300) -> None:
        """Waits until the machine lets us in. Raises ``UserError`` after ``timeout`` seconds, or at once
        when it has ended; the message has the console's last lines."""
        deadline = self.started + timeout
        self.until(deadline, "its SSH server does not answer", self.greets)
        self.seconds_to_ssh = time.monotonic() - self.started
        self.until(deadline, "no SSH host key on its serial console", self._learn_host_keys)
        self.until(deadline, f"it does not let {self.user} in", lambda: self.boot_id() is not None)

    def until(self, deadline: float, problem: str, ready: Callable[[], bool]) -> None:
        """Waits until ``ready``; raises ``UserError`` when the machine has ended or at ``deadline``."""
        while not ready():
            ended = self.ended()
            if ended or time.monotonic() > deadline:
                lines = console.last_lines(self.serial(), 5)
                raise UserError(
                    "\n  ".join(
                        [f"machine {self.name}: {ended or problem}; its console's last lines:", *lines]
                    ),
                    hint=f"the whole console is in {self.serial_log}",
                    code=ExitCode.FAILED,
                )
            time.sleep(POLL)  # a machine that boots signals nobody; until the deadline

    def greets(self) -> bool:
        """Whether an SSH server answers: something else may accept the connection, only it greets."""
        try:
            with socket.create_connection((self.host, self.port), timeout=3) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def _learn_host_keys(self) -> bool:
        keys = console.host_keys(self.serial())
        self.known_hosts.write_text(console.known_hosts(keys, host=self.host, port=self.port))
        return bool(keys)

    def run(self, command: str, *, timeout: float = 60) -> str:
        """Runs a shell command as the build's user and returns its stdout; raises ``CommandFailed``."""
        return run.run(["ssh", "-F", self.ssh_config, "vm", "--", command], timeout=timeout).stdout

    def boot_id(self) -> str | None:
        """The kernel's random id of this boot; None when SSH does not get through."""
        if not self.greets():
            return None
        try:
            return self.run("cat /proc/sys/kernel/random/boot_id", timeout=30).strip()
        except UserError:
            return None

    def reboot(self, timeout: float = 600) -> float:
        """Reboots; returns the seconds until SSH answers with another boot id."""
        before = self.run("cat /proc/sys/kernel/random/boot_id").strip()
        started = time.monotonic()
        self.restart()
        self.close_ssh()
        self.until(started + timeout, "it did not come back from its reboot", lambda: self._rebooted(before))
        return time.monotonic() - started

    def _rebooted(self, before: str) -> bool:
        now = self.boot_id()
        if now == before:
            self.close_ssh()
        return now not in (None, before)

    def close_ssh(self) -> None:
        """Ends the shared SSH connection; it would outlive us for a while."""
        if self.control and self.control.exists():
            run.run(["ssh", "-F", self.ssh_config, "-O", "exit", "vm"], check=False, timeout=10)


def write_ssh_config(
    path: Path,
    *,
    host: str,
    port: int,
    user: str,
    key: Path,
    known_hosts: Path,
    control: Path,
    strict: bool = True,
) -> None:
    """An OpenSSH configuration for the host ``vm``, of one machine only.

    One connection is shared by all commands (a handshake costs half a second under emulation) through the
    socket ``control``, whose path must be short, and ends by itself soon after. Without ``strict`` an
    unknown host key is accepted the first time: only for machines on this host's loopback device.
    """
    options = {
        "HostName": host,
        "Port": port,
        "User": user,
        "IdentityFile": quote(key),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": quote(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes" if strict else "accept-new",
        "BatchMode": "yes",
        "LogLevel": "ERROR",
        "ConnectTimeout": 30,
        "ServerAliveInterval": 10,
        "ServerAliveCountMax": 6,
        "ControlMaster": "auto",
        "ControlPath": quote(control),
        "ControlPersist": 20,
    }
    path.write_text("Host vm\n" + "".join(f"    {name} {value}\n" for name, value in options.items()))


def quote(path: Path) -> str:
    """A path in an OpenSSH configuration: quoted, and without its % tokens."""
    return '"' + str(path.absolute()).replace("%", "%%") + '"'
