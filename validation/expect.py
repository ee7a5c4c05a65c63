"""How many GPUs this machine should have: what its owner says, else what its machine type says.

1. ``/etc/gpu-image/expect.json``, which user-data can write: ``{"gpus": 8, "gpu": "h100"}``. One that is
   wrong is an error to report, never a reason to look elsewhere.
2. The machine type in the metadata that cloud-init keeps in ``/run/cloud-init``, by
   ``machine_types.json``. Where it stands, by datasource (cloudinit/sources/DataSource*.py):
   EC2 ``ds.meta_data.instance-type``, Azure ``ds.meta_data.imds.compute.vmSize``, Oracle ``ds.shape``.
   cloud-init does not fetch GCE's, so there the metadata server is asked, as long as ``METADATA_PATIENCE``.
3. Otherwise unknown.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterator
from typing import Any, NamedTuple

from validation import machine_types

EXPECT = "/etc/gpu-image/expect.json"
# The first that can be read; the second is for those who are not root and has secrets blacked out.
INSTANCE_DATA = (
    "/run/cloud-init/instance-data-sensitive.json",
    "/run/cloud-init/instance-data.json",
)
SIZE_LIMIT = 4 * 1024 * 1024  # bytes; user-data alone may be hundreds of KiB
MOST_GPUS = 1024
METADATA_PATIENCE = 2.0  # seconds; the server answers from the machine's own host
# https://cloud.google.com/compute/docs/metadata/querying-metadata: the address never changes, and names
# may not resolve this early.
METADATA_HOST = "169.254.169.254"
METADATA_PATH = "/computeMetadata/v1/instance/machine-type"

# Paths below the document's root; a key's hyphens and underscores are the same, as in cloud-init's aliases.
MACHINE_TYPE_PATHS = (
    ("ds", "meta_data", "instance_type"),
    ("ds", "dynamic", "instance_identity", "document", "instanceType"),
    ("ds", "ec2_metadata", "instance_type"),
    ("ds", "meta_data", "imds", "compute", "vmSize"),
    ("ds", "metadata", "imds", "compute", "vmSize"),
    ("ds", "imds", "compute", "vmSize"),
    ("ds", "shape"),
    ("ds", "meta_data", "shape"),
    ("ds", "meta_data", "machine_type"),
    ("ds", "meta_data", "machineType"),
    ("ds", "instance", "machineType"),
    ("ds", "meta_data", "instance", "machine_type"),
    ("ds", "meta_data", "instance", "machineType"),
    ("v1", "instance_type"),
    ("v1", "machine_type"),
)


class Expectation(NamedTuple):
    """What should be there. ``source`` says where that is from, or why it is unknown, for people."""

    count: int | None  # type: ignore[assignment]  # hides tuple.count; None: unknown
    gpu: str | None  # the model in lower case, "h100"; None: any
    source: str
    error: str | None = None  # expect.json is there and wrong: then nothing else was looked at
    machine_type: str | None = None

    @property
    def by_owner(self) -> bool:
        """The machine's owner said so in expect.json."""
        return self.source == EXPECT


class BadExpectation(Exception):
    """``expect.json`` is not what it should be; the message says how."""


def expected_gpus(root: str = "/") -> Expectation:
    """How many GPUs this machine should have, by the order above. Never raises.

    ``root`` is the folder that the machine's paths start from.
    """
    try:
        text = _read(root, EXPECT)
    except (OSError, ValueError) as error:
        return Expectation(None, None, EXPECT, f"{EXPECT} cannot be read: {_why(error)}")
    if text is None:
        return by_machine_type(root)
    try:
        count, gpu = parse(text)
    except BadExpectation as error:
        return Expectation(None, None, EXPECT, f"{EXPECT}: {error}")
    return Expectation(count, gpu, EXPECT)


def parse(text: str) -> tuple[int, str | None]:
    """Number and model from the text of ``expect.json``. Raises ``BadExpectation``."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadExpectation(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadExpectation('it is not a JSON object such as {"gpus": 8}')
    if unknown := sorted(document.keys() - {"gpus", "gpu"}):
        raise BadExpectation(f"unknown key {unknown[0]!r}; there are 'gpus' and 'gpu'")
    count, gpu = document.get("gpus"), document.get("gpu")
    if type(count) is not int or not 0 <= count <= MOST_GPUS:
        raise BadExpectation(f"'gpus' is not a whole number from 0 to {MOST_GPUS}: {json.dumps(count)[:40]}")
    if gpu is not None and (not isinstance(gpu, str) or not gpu.strip()):
        raise BadExpectation(f"'gpu' is not the name of a model such as \"h100\": {json.dumps(gpu)[:40]}")
    return count, gpu and " ".join(gpu.lower().split())


def by_machine_type(root: str = "/") -> Expectation:
    """What the machine type says, from cloud-init's metadata. Never raises."""
    try:
        document = instance_data(root)
    except (OSError, ValueError) as error:
        return Expectation(None, None, f"cloud-init's metadata cannot be read: {_why(error)}")
    if document is None:
        return Expectation(None, None, "no metadata of cloud-init")
    name, cloud = machine_type(document), cloud_name(document)
    if name is None and cloud == "gce":
        name = _ask_metadata_server(document, root)
    if name is None:
        where = f"the metadata of {cloud}" if cloud else "cloud-init's metadata"
        return Expectation(None, None, f"no machine type in {where}")
    found = machine_types.lookup(name, cloud)
    if not found.known:
        source = f"machine type {found.name} is not in the table"
    elif found.gpus is None:
        source = f"machine type {found.name} does not say"
    else:
        source = f"machine type {found.name}"
    return Expectation(found.gpus, found.gpu, source, machine_type=found.name)


def instance_data(root: str = "/") -> dict[str, Any] | None:
    """cloud-init's metadata of this boot; None when there is none.

    Raises ``OSError`` or ``ValueError`` when it is there and cannot be read.
    """
    problem: Exception | None = None
    for path in INSTANCE_DATA:
        try:
            text = _read(root, path)
            document = None if text is None else json.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            problem = problem or error
            continue
        if isinstance(document, dict):
            return document
        if document is not None:
            problem = problem or ValueError(f"{path} is not a JSON object")
    if problem:
        raise problem if isinstance(problem, (OSError, ValueError)) else ValueError(str(problem))
    return None


def machine_type(document: dict[str, Any]) -> str | None:
    """The machine type in cloud-init's metadata, as the cloud writes it; None when it has none."""
    for path in MACHINE_TYPE_PATHS:
        value: Any = document
        for key in path:
            value = _get(value, key)
        if isinstance(value, str) and value.strip() and "redacted" not in value:
            return value.strip()
    return None


def cloud_name(document: dict[str, Any]) -> str | None:
    """What cloud-init calls the cloud (aws, gce, azure, oracle, openstack, ...); None when it does not."""
    for value in _names(document):
        if isinstance(value, str) and value:
            return value.lower()
    return None


def _names(document: dict[str, Any]) -> Iterator[Any]:
    yield _get(document.get("v1"), "cloud_name")
    yield _get(document, "cloud_name")


def _get(value: Any, key: str) -> Any:
    """``value[key]``, with hyphens for underscores where the key is written so."""
    if not isinstance(value, dict):
        return None
    return value[key] if key in value else value.get(key.replace("_", "-"))


def _read(root: str, path: str) -> str | None:
    """A file's text; None when there is none. Raises ``OSError`` and ``ValueError``."""
    try:
        with open(os.path.join(root, path.lstrip("/")), "rb") as file:
            content = file.read(SIZE_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if len(content) > SIZE_LIMIT:
        raise ValueError(f"it is larger than {SIZE_LIMIT // 1024**2} MiB")
    return content.decode()


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _ask_metadata_server(document: dict[str, Any], root: str) -> str | None:
    """GCE's machine type, ``projects/N/machineTypes/NAME``; None when there is no such answer in time.

    Plain HTTP/1.0 over a socket: an HTTP library would cost more than all the rest of the check.
    """
    import socket  # here: only GCE needs it
    import time

    host, port = _metadata_server(document)
    if root != "/" and host == METADATA_HOST:
        return None  # a machine in a folder: that server would speak of the machine that we run on
    request = f"GET {METADATA_PATH} HTTP/1.0\r\nHost: {host}\r\nMetadata-Flavor: Google\r\n\r\n"
    end = time.monotonic() + METADATA_PATIENCE
    answer = b""
    try:
        with socket.create_connection((host, port), timeout=METADATA_PATIENCE) as connection:
            connection.sendall(request.encode())
            while len(answer) < 65536 and (left := end - time.monotonic()) > 0:
                connection.settimeout(left)
                chunk = connection.recv(4096)
                if not chunk:
                    break
                answer += chunk
    except (OSError, ValueError):
        return None
    head, _, body = answer.decode("ascii", errors="replace").partition("\r\n\r\n")
    status = head.split(" ", 2)[1:2]
    return (
        body.strip() if status == ["200"] and "/machineTypes/" in body and "\n" not in body.strip() else None
    )


def _metadata_server(document: dict[str, Any]) -> tuple[str, int]:
    """Where cloud-init found the metadata: ``v1.subplatform`` is ``metadata (URL)``."""
    subplatform = _get(document.get("v1"), "subplatform")
    place = subplatform.partition("://")[2] if isinstance(subplatform, str) else ""
    host, _, port = place.partition("/")[0].rstrip(")").partition(":")
    if not host or host.startswith("metadata.google"):
        host = METADATA_HOST
    return host, int(port) if port.isdigit() else 80
