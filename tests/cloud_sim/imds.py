"""The instance metadata service of one machine: what a guest finds at 169.254.169.254.

It answers as the real one does with ``HttpTokens=required``: no token, no metadata. It listens on a unix
socket; ``relay`` joins a connection of the guest to it. Left out: the signatures beside the identity
document (nobody here has Amazon's key), tags (an instance offers them only with ``InstanceMetadataTags``),
and the credentials of a role.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-metadata.html
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import inspect
import json
import os
import secrets
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Union

from tests.cloud_sim.target import Boot

#: A folder by its entries, or a file's content.
Tree = Mapping[str, Union["Tree", str, bytes]]

#: Releases of the interface that it knows; cloud-init looks for 2021-03-23.
VERSIONS = ("2009-04-04", "2016-09-02", "2018-09-24", "2021-03-23", "2021-07-15", "latest")
TOKEN = "X-aws-ec2-metadata-token"
TOKEN_SECONDS = f"{TOKEN}-ttl-seconds"
MAX_TOKEN_SECONDS = 21600
#: moto's account.
ACCOUNT = "123456789012"


def meta_data(boot: Boot, *, private_address: str, mac: str) -> Tree:
    """The ``meta-data`` folder of an instance in a default VPC with one network interface.

    Ids that only the account knows (network interface, subnet, VPC, reservation) are made up from the
    instance's.
    """
    domain = "ec2.internal" if boot.region == "us-east-1" else f"{boot.region}.compute.internal"
    hostname = f"ip-{private_address.replace('.', '-')}.{domain}"
    partition = "aws-cn" if boot.region.startswith("cn-") else "aws"
    interface: Tree = {
        "device-number": "0",
        "interface-id": made_up("eni", boot.instance_id),
        "local-hostname": hostname,
        "local-ipv4s": private_address,
        "mac": mac,
        "owner-id": ACCOUNT,
        "public-ipv4s": boot.address,
        "security-groups": "default",
        "subnet-id": made_up("subnet", boot.zone),
        "subnet-ipv4-cidr-block": "172.31.0.0/16",
        "vpc-id": made_up("vpc", boot.region),
        "vpc-ipv4-cidr-block": "172.31.0.0/16",
        "vpc-ipv4-cidr-blocks": "172.31.0.0/16",
        "ipv4-associations": {boot.address: private_address},
    }
    tree: dict[str, Tree | str | bytes] = {
        "ami-id": boot.image_id,
        "ami-launch-index": "0",
        "ami-manifest-path": "(unknown)",
        "block-device-mapping": {"ami": "/dev/xvda", "root": "/dev/xvda"},
        "hostname": hostname,
        "instance-action": "none",
        "instance-id": boot.instance_id,
        "instance-life-cycle": "on-demand",
        "instance-type": boot.instance_type,
        "local-hostname": hostname,
        "local-ipv4": private_address,
        "mac": mac,
        "network": {"interfaces": {"macs": {mac: interface}}},
        "placement": {"availability-zone": boot.zone, "region": boot.region},
        "profile": "default-hvm",
        "public-ipv4": boot.address,
        "reservation-id": made_up("r", boot.instance_id),
        "security-groups": "default",
        "services": {
            "domain": "amazonaws.com" + (".cn" if partition == "aws-cn" else ""),
            "partition": partition,
        },
    }
    if boot.public_keys:
        tree["public-keys"] = {
            str(index): {"openssh-key": key.strip()} for index, key in enumerate(boot.public_keys)
        }
    return tree


def identity(boot: Boot, *, private_address: str, started: datetime.datetime) -> str:
    """The instance identity document (JSON) of a machine on an x86 processor."""
    document = {
        "accountId": ACCOUNT,
        "architecture": "x86_64",
        "availabilityZone": boot.zone,
        "billingProducts": None,
        "devpayProductCodes": None,
        "imageId": boot.image_id,
        "instanceId": boot.instance_id,
        "instanceType": boot.instance_type,
        "kernelId": None,
        "marketplaceProductCodes": None,
        "pendingTime": f"{started:%Y-%m-%dT%H:%M:%SZ}",
        "privateIp": private_address,
        "ramdiskId": None,
        "region": boot.region,
        "version": "2017-09-30",
    }
    return json.dumps(document, indent=2)


def metadata(boot: Boot, *, private_address: str, mac: str) -> Tree:
    """Everything below a version: meta-data, identity and, when the instance has any, user-data."""
    started = datetime.datetime.now(datetime.UTC)
    tree: dict[str, Tree | str | bytes] = {
        "dynamic": {
            "instance-identity": {
                "document": identity(boot, private_address=private_address, started=started)
            }
        },
        "meta-data": meta_data(boot, private_address=private_address, mac=mac),
    }
    if boot.user_data:
        tree["user-data"] = boot.user_data
    return tree


def made_up(prefix: str, of: str) -> str:
    """An id in EC2's long form; the same input gives the same id."""
    return f"{prefix}-{hashlib.sha256(of.encode()).hexdigest()[:17]}"


def look_up(tree: Tree, path: str) -> bytes | None:
    """What a path below a version answers: content, or the folder's listing, where a folder's name ends in a
    slash. None when there is no such thing."""
    words = [word for word in path.split("/") if word]
    entry: Tree | str | bytes = tree
    for word in words:
        if not isinstance(entry, Mapping) or word not in entry:
            return None
        entry = entry[word]
    if isinstance(entry, Mapping):
        return "\n".join(_listed(entry, keys=words[-1:] == ["public-keys"])).encode()
    return entry.encode() if isinstance(entry, str) else entry


def _listed(tree: Tree, *, keys: bool) -> Iterator[str]:
    """The lines of a listing. Key pairs are the exception: a line is the index and the key's name."""
    for name, entry in sorted(tree.items()):
        if keys:
            yield f"{name}=key-{name}"
        else:
            yield f"{name}/" if isinstance(entry, Mapping) else name


class Service(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """The service of one instance, in threads of this process, on a unix socket.

    ``seen`` has each request that was answered: method, path and status. ``clock`` is in seconds.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, tree: Tree, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.tree = tree
        self.clock = clock
        self.seen: list[tuple[str, str, int]] = []
        self._tokens: dict[str, float] = {}
        with short_path(path) as short:
            super().__init__(str(short), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, name=f"imds {path}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops answering. The socket's file stays."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def new_token(self, seconds: int) -> str:
        """A token that is good for so many seconds, for this instance only."""
        token = secrets.token_urlsafe(42)
        self._tokens[token] = self.clock() + seconds
        return token

    def is_valid(self, token: str) -> bool:
        """Whether it gave that token and its time is not over."""
        return self.clock() < self._tokens.get(token, float("-inf"))


class _Handler(BaseHTTPRequestHandler):
    """One connection, one request."""

    server: Service
    server_version, sys_version = "EC2ws", ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_PUT(self) -> None:
        """A token. The statuses are those of the manual, "Retrieve instance metadata"."""
        seconds = self.headers.get(TOKEN_SECONDS, "")
        if self.path != "/latest/api/token":
            self._answer(405)
        elif self.headers.get("X-Forwarded-For"):
            self._answer(403)  # it came through a proxy: it may be somebody else's request
        elif not (seconds.isascii() and seconds.isdigit() and 1 <= int(seconds) <= MAX_TOKEN_SECONDS):
            self._answer(400)
        else:
            self._answer(200, self.server.new_token(int(seconds)).encode(), {TOKEN_SECONDS: seconds})

    def do_GET(self) -> None:
        """Metadata, for who has a token."""
        version, _, rest = self.path.partition("?")[0].lstrip("/").partition("/")
        if not self.server.is_valid(self.headers.get(TOKEN, "")):
            self._answer(401)
        elif not version:
            self._answer(200, "\n".join(VERSIONS).encode())
        elif version not in VERSIONS or (body := look_up(self.server.tree, rest)) is None:
            self._answer(404)
        else:
            self._answer(200, body)

    do_HEAD = do_GET

    def _answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.server.seen.append((self.command, self.path, status))
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Type": "text/plain"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")  # the handler obeys its own header
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: ``Service.seen`` is the log."""


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[Path]:
    """The path of a socket in other words: the kernel takes 107 bytes at most (unix(7))."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def relay(path: str) -> None:
    """Joins stdin and stdout to the unix socket ``path`` until that closes.

    QEMU starts it as a program of its own (``RELAY``) for each connection of the guest.
    """
    import os
    import select
    import socket

    with socket.socket(socket.AF_UNIX) as service:
        service.connect(path)
        ends = {0: service.fileno(), service.fileno(): 1}
        while service.fileno() in ends:
            for source in select.select(list(ends), [], [])[0]:
                target, data = ends[source], os.read(source, 1 << 16)
                if not data:
                    del ends[source]
                    if source == 0:
                        service.shutdown(socket.SHUT_WR)
                while data:
                    data = data[os.write(target, data) :]


#: ``relay`` as a program that needs nothing else: it starts in a fraction of the time that our imports take.
RELAY = (
    f"import sys\n\n{inspect.getsource(relay)}\n\ntry:\n    relay(sys.argv[1])\nexcept OSError:\n    pass\n"
)
