"""The machines behind the instances: what an EC2 call makes them do, and what state that leads to.

Each instance has one thread, so what is asked of its machine happens in the order it was asked.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cloud_sim.ec2 import Backend, Image, Instance
from tests.cloud_sim.faults import Faults
from tests.cloud_sim.target import Boot, Target

INITIATED = "Client.UserInitiatedShutdown"
FROM_INSIDE = "Client.InstanceInitiatedShutdown"


class Machines:
    """``image_seconds``: how long an image stays ``pending`` at least; may be changed at any time."""

    def __init__(self, target: Target, folder: Path, faults: Faults, lock: threading.RLock) -> None:
        self.image_seconds = 0.2
        self.errors: list[str] = []  # tracebacks of what should not have happened
        self.target = target
        self._folder = folder
        self._faults = faults
        self._lock = lock
        self._closing = threading.Event()
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._images = ThreadPoolExecutor(64, thread_name_prefix="images")
        self._where: dict[str, tuple[Backend, Instance]] = {}
        self._addresses = _addresses()
        target.on_power_off = self._powered_off

    def launch(self, backend: Backend, instance: Instance) -> None:
        """Starts the machine of a new instance."""
        instance.address = next(self._addresses)
        for nic in instance.nics.values():
            if nic.public_ip:
                nic.public_ip = instance.address
                nic.public_ip_auto_assign = False  # else moto gives it another one at each start
        self._where[instance.id] = (backend, instance)
        instance.enter("pending", 0)
        key = backend.key_pairs.get(instance.key_name or "")
        root = dict(instance.get_block_device_mapping).get(instance.root_device_name)
        boot = Boot(
            instance_id=instance.id,
            image_id=instance.image.id,
            image=instance.image.folder,
            address=instance.address,
            region=backend.region_name,
            zone=instance.availability_zone or "",
            instance_type=instance.instance_type,
            user_data=_bytes(instance.user_data),
            public_keys=(key.public_key.strip(),) if key else (),
            default_user=instance.image.default_user,
            tags={tag["key"]: tag["value"] for tag in instance.get_tags()},
            disk_bytes=backend.get_volume(root.volume_id).size * 1024**3 if root else 0,
        )
        self._threads[instance.id] = ThreadPoolExecutor(1, thread_name_prefix=instance.id)
        self._do(instance, lambda: self._run(instance, lambda: self.target.start(boot)))

    def start(self, _backend: Backend, instance: Instance) -> None:
        """StartInstances."""
        if instance.state == "stopped":
            instance.enter("pending", 0)
            self._do(instance, lambda: self._run(instance, lambda: self.target.resume(instance.id)))

    def stop(self, _backend: Backend, instance: Instance) -> None:
        """StopInstances."""
        if instance.state == "running":
            instance.enter("stopping", 64, reason=INITIATED, text="User initiated shutdown")
            self._do(instance, lambda: self._stop(instance))

    def reboot(self, instance: Instance) -> None:
        """RebootInstances."""
        self._do(instance, lambda: self.target.reboot(instance.id))

    def terminate(self, backend: Backend, instance: Instance, *, reason: str = INITIATED) -> None:
        """TerminateInstances."""
        if instance.state not in ("shutting-down", "terminated"):
            text = "User initiated shutdown" if reason == INITIATED else "Instance initiated shutdown"
            instance.enter("shutting-down", 32, reason=reason, text=text)
            self._do(instance, lambda: self._terminate(instance, reason, text))

    def console(self, instance_id: str) -> str:
        """What GetConsoleOutput answers."""
        try:
            return self.target.console(instance_id)
        except KeyError:  # not started yet
            return ""

    def capture(self, instance: Instance, image: Image, *, no_reboot: bool) -> None:
        """CreateImage: an instance that runs is shut down for it and started again, as EC2 does."""
        image.folder = self._folder / image.id
        taken = self._do(instance, lambda: self._capture(instance, image.folder, no_reboot))
        self.settle_later(image, copied=False, taken=taken)

    def settle_later(self, image: Image, *, copied: bool, taken: Future[None] | None = None) -> None:
        """Ends the state ``pending`` of an image after a while."""

        def settle() -> None:
            failure = self._faults.image_failure(region=image.ec2_backend.region_name, copied=copied)
            if taken and (error := taken.exception()):
                failure = f"the machine could not be captured: {error}"
            self._closing.wait(self.image_seconds)
            with self._lock:
                if image.state == "pending":
                    image.settle(failure)

        self._images.submit(self._guard, settle)

    def close(self) -> None:
        """Ends all machines; what is still waited for is given up."""
        self._closing.set()
        self.target.close()
        for executor in [*self._threads.values(), self._images]:
            executor.shutdown(wait=True, cancel_futures=True)

    # In the instance's own thread.

    def _run(self, instance: Instance, begin: Callable[[], None]) -> None:
        try:
            begin()
        except Exception:
            self.errors.append(traceback.format_exc())
            with self._lock:
                self._gone(instance, "Server.InternalError", "Internal error on launch")
            return
        self._enter(instance, ("pending",), "running", 16)

    def _stop(self, instance: Instance) -> None:
        self.target.power_off(instance.id)
        self._enter(instance, ("stopping",), "stopped", 80, reason=INITIATED, text="User initiated shutdown")

    def _terminate(self, instance: Instance, reason: str, text: str) -> None:
        with contextlib.suppress(KeyError):  # it may never have started
            self.target.destroy(instance.id)
        with self._lock:
            self._gone(instance, reason, text)

    def _capture(self, instance: Instance, folder: Path, no_reboot: bool) -> None:
        if no_reboot or instance.state != "running":
            self.target.capture(instance.id, folder)
            return
        self.target.power_off(instance.id)
        self.target.capture(instance.id, folder)
        self.target.resume(instance.id)

    def _gone(self, instance: Instance, reason: str, text: str) -> None:
        """moto takes volumes and interfaces away; its words for it are replaced by ours."""
        if instance.state != "terminated":
            instance.terminate()
            instance.enter("terminated", 48, reason=reason, text=text)

    def _enter(
        self, instance: Instance, only_from: tuple[str, ...], name: str, code: int, **why: str
    ) -> None:
        with self._lock:
            if instance.state in only_from:
                instance.enter(name, code, **why)

    # From the target, in any thread.

    def _powered_off(self, instance_id: str) -> None:
        with self._lock:
            backend, instance = self._where[instance_id]
            if instance.state not in ("pending", "running"):
                return
            if instance.instance_initiated_shutdown_behavior == "terminate":
                self.terminate(backend, instance, reason=FROM_INSIDE)
            else:
                instance.enter("stopped", 80, reason=FROM_INSIDE, text="Instance initiated shutdown")

    def _do(self, instance: Instance, work: Callable[[], None]) -> Future[None]:
        return self._threads[instance.id].submit(self._guard, work)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            if not self._closing.is_set():
                self.errors.append(traceback.format_exc())
            raise


def _bytes(user_data: Any) -> bytes:
    """The user-data, which moto keeps in base64 as it came."""
    return base64.b64decode(str(user_data)) if user_data else b""


def _addresses() -> Iterator[str]:
    """Loopback addresses whose SSH port is free now, in the network namespace of the calling thread."""
    for number in range(1, 1 << 16):
        address = f"127.77.{number >> 8}.{number & 255}"
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, 22))
            except PermissionError:  # then no target of ours listens there either
                pass
            except OSError:
                continue
        yield address
    raise RuntimeError("no loopback address has its SSH port free")
