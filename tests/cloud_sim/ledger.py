"""A Target without machines, for tests of the account and of what talks to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from tests.cloud_sim.target import Boot


class Ledger:
    """A target whose machines are entries in a list: what the account asked of them, in order."""

    on_power_off: Callable[[str], None]

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.boots: list[Boot] = []
        self.error: Exception | None = None
        self.hold = threading.Event()  # until set, machines neither start nor end
        self.hold.set()

    def start(self, boot: Boot) -> None:
        self.hold.wait()
        if self.error:
            raise self.error
        self.boots.append(boot)
        self.asked.append("start")

    def console(self, instance_id: str) -> str:
        return f"console of {instance_id}\n"

    def reboot(self, instance_id: str) -> None:
        self.asked.append("reboot")

    def power_off(self, instance_id: str) -> None:
        self.hold.wait()
        self.asked.append("power_off")

    def resume(self, instance_id: str) -> None:
        self.asked.append("resume")

    def destroy(self, instance_id: str) -> None:
        self.hold.wait()
        self.asked.append("destroy")

    def drop_ssh(self, instance_id: str) -> None:
        self.asked.append("drop_ssh")

    def capture(self, instance_id: str, image: Path) -> None:
        self.asked.append("capture")
        image.mkdir(parents=True)

    def close(self) -> None:
        self.hold.set()
