"""What runs an instance of the box: the interface between the simulated account and its machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Boot:
    """An instance to start. ``address`` is a loopback address of its own (127.77.x.y): its SSH server
    listens on port 22 there. ``image`` is the folder of the image it boots from (see ``Target.capture``)."""

    instance_id: str
    image_id: str
    image: Path
    address: str
    region: str
    zone: str
    instance_type: str
    user_data: bytes = b""
    public_keys: tuple[str, ...] = ()  # of the EC2 key pair, OpenSSH format
    default_user: str = "admin"
    disk_bytes: int = 0  # of the root volume; 0: as the image's
    tags: dict[str, str] = field(default_factory=dict)


class Target(Protocol):
    """Machines. All methods are called from threads of the box; an unknown instance id is a ``KeyError``.

    A target never outlives its box: ``close`` ends whatever runs, and a killed box takes its machines along.
    """

    #: Called with the instance id when a machine has powered itself off (from inside, not by ``power_off``).
    on_power_off: Callable[[str], None]

    def start(self, boot: Boot) -> None:
        """Starts a machine on a disk of its own, made from the image. Returns before it answers."""

    def console(self, instance_id: str) -> str:
        """What its serial console has printed so far, over reboots; stays readable after it has ended."""

    def reboot(self, instance_id: str) -> None:
        """Asks for a reboot and returns at once."""

    def power_off(self, instance_id: str) -> None:
        """Presses the power button; returns when the machine is off (killed if it does not shut down)."""

    def resume(self, instance_id: str) -> None:
        """Starts a machine that is off, on the disk it had."""

    def destroy(self, instance_id: str) -> None:
        """Ends the machine at once and deletes its disk; its console stays. Again is no error."""

    def drop_ssh(self, instance_id: str) -> None:
        """A fault: its SSH connections break now and its SSH server does not answer any more."""

    def capture(self, instance_id: str, image: Path) -> None:
        """Makes the image folder ``image`` from the disk of a machine, which may run or be off."""

    def close(self) -> None:
        """Ends all machines and removes what they used."""
