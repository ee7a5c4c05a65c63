"""AWS in a box: the simulated account, its API behind a TLS proxy, and its machines, as one context manager.

    with Box(target=target, source=target.source, folder=folder, isolated=True) as box:
        subprocess.run(box.command(["packer", "build", "."]), env=box.environment())
        assert box.leftovers() == {}

With ``isolated`` (needs root) the proxy, the machines and the clients that ``command`` starts live in a
network namespace that has only a loopback interface: nothing can reach anything outside, and no port can
collide.
"""

from __future__ import annotations

import ctypes
import functools
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import boto3
from botocore.config import Config

from tests.cloud_sim.account import Account, Credentials
from tests.cloud_sim.chroot import ChrootTarget
from tests.cloud_sim.faults import Call, Faults
from tests.cloud_sim.proxy import Proxy
from tests.cloud_sim.target import Target

T = TypeVar("T")
CLONE_NEWNET = 0x40000000  # linux/sched.h
SIMULATION = "GPU_IMAGE_SIMULATION"
REGION = "us-east-1"
#: What would lead a client elsewhere, or to other credentials.
UNWANTED = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


class Box:
    """``source`` is the image folder that the account's public images boot from.

    The target is closed with the box. ``errors`` are tracebacks of what should not have happened inside.
    """

    account: Account
    proxy: Proxy

    def __init__(self, *, target: Target, source: Path, folder: Path, isolated: bool = False) -> None:
        self._target = target
        self._source = source
        self._folder = folder
        self._place = _Place(isolated=isolated)

    def __enter__(self) -> Box:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._place.open()
        try:
            self._place.run(self._open)
        except BaseException:
            self._place.close()
            raise
        return self

    def _open(self) -> None:
        self.account = Account(target=self._target, source=self._source, folder=self._folder / "images")
        self.proxy = Proxy(self._folder / "tls", dict.fromkeys(self.account.hosts(), self.account))
        self.account.faults.on_endpoint_dies = self.proxy.close

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.proxy.close()
            self._place.run(self.account.close)
        finally:
            self._place.close()

    @property
    def faults(self) -> Faults:
        """What goes wrong, and hooks."""
        return self.account.faults

    @property
    def calls(self) -> list[Call]:
        """Every API call so far."""
        return self.account.faults.calls

    @property
    def errors(self) -> list[str]:
        """Tracebacks of the box's own failures."""
        return self.account.machines.errors

    def leftovers(self) -> dict[str, dict[str, list[str]]]:
        """See ``Account.leftovers``."""
        return self.account.leftovers()

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a client: ``base`` (this process's) without what leads elsewhere.

        AWS SDKs trust our CA by AWS_CA_BUNDLE alone; SSL_CERT_FILE and the like stay as they are, so that
        other TLS of the client works as before, as far as the proxy lets it: it forwards nothing.
        """
        environment = dict(os.environ if base is None else base)
        for name in list(environment):
            if name.startswith("AWS_") or name in UNWANTED:
                del environment[name]
        local = "localhost,127.0.0.0/8,127.0.0.1"
        nowhere = self._folder / "nowhere"
        return {
            **environment,
            "HTTPS_PROXY": self.proxy.url,
            "https_proxy": self.proxy.url,
            "NO_PROXY": local,
            "no_proxy": local,
            "AWS_CA_BUNDLE": str(self.proxy.authority.bundle),
            "AWS_ACCESS_KEY_ID": self.account.credentials.access_key,
            "AWS_SECRET_ACCESS_KEY": self.account.credentials.secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(nowhere),
            "AWS_SHARED_CREDENTIALS_FILE": str(nowhere),
            "CHECKPOINT_DISABLE": "1",  # Packer asks its maker for news otherwise
            SIMULATION: "AWS in a box",
        }

    def command(self, words: Sequence[str]) -> list[str]:
        """The words that run a client where the box is; it must also get ``environment``."""
        return [*self._place.prefix, *words]

    def inside(self, function: Callable[[], T]) -> T:
        """Runs a function in a thread where the box is, and returns or raises what it does."""
        return self._place.run(function)

    def client(
        self,
        service: str,
        region: str = REGION,
        *,
        credentials: Credentials | None = None,
        attempts: int = 1,
    ) -> Any:
        """A boto3 client of this process. In an isolated box it works in ``inside`` only."""
        key = credentials or self.account.credentials
        retries = {"mode": "standard", "total_max_attempts": attempts}
        config = Config(
            proxies={"https": self.proxy.url}, retries=retries, connect_timeout=5, read_timeout=60
        )
        with _session_lock:
            return _session().client(
                service,
                region,
                aws_access_key_id=key.access_key,
                aws_secret_access_key=key.secret_key,
                aws_session_token=key.token or None,
                config=config,
                verify=str(self.proxy.authority.bundle),
            )


_session_lock = threading.Lock()


@functools.cache
def _session() -> boto3.session.Session:
    """One for all clients: it keeps EC2's service model, which takes a while to read."""
    return boto3.session.Session()


def quick_box(folder: Path, *, cache: Path, isolated: bool = False) -> Box:
    """A box with the chroot target. ``cache`` keeps its root file system."""
    target = ChrootTarget(folder / "machines", cache=cache)
    return Box(target=target, source=target.source, folder=folder, isolated=isolated)


class _Place:
    """A thread that lives as long as the box, in a network namespace of its own if it is to be isolated.

    Threads and processes are born into the namespace of the thread that makes them, so whatever this one
    starts, and what that starts, is there. The namespace ends with its last thread or process.
    """

    def __init__(self, *, isolated: bool) -> None:
        self._isolated = isolated
        self._wanted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, name="box", daemon=True)
        self._ready = threading.Event()
        self._error: BaseException | None = None

    @property
    def prefix(self) -> list[str]:
        if not self._isolated:
            return []
        return ["nsenter", f"--net=/proc/{os.getpid()}/task/{self._thread.native_id}/ns/net", "--"]

    def open(self) -> None:
        self._thread.start()
        self._ready.wait()
        if self._error:
            raise self._error

    def close(self) -> None:
        self._wanted.put(None)
        self._thread.join()

    def run(self, function: Callable[[], T]) -> T:
        results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def work() -> None:
            try:
                results.put((function(), None))
            except BaseException as error:
                results.put((None, error))

        self._wanted.put(work)
        result, error = results.get()
        if error:
            raise error
        return result  # type: ignore[return-value]

    def _live(self) -> None:
        try:
            if self._isolated:
                self._isolate()
        except BaseException as error:
            self._error = error
            return
        finally:
            self._ready.set()
        while work := self._wanted.get():
            threading.Thread(target=work, daemon=True).start()

    @staticmethod
    def _isolate() -> None:
        libc = ctypes.CDLL(None, use_errno=True)  # os.unshare is there from Python 3.12 on
        if libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network namespace of its own (that needs root)")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
