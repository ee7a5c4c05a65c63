"""The metadata service: the rules of IMDSv2, and what cloud-init asks it for."""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloud_sim import imds
from tests.cloud_sim.target import Boot

KEYS = ("ssh-ed25519 AAAA one\n", "ssh-rsa BBBB two")
BOOT = Boot(
    instance_id="i-0123456789abcdef0",
    image_id="ami-0123456789abcdef0",
    image=Path("image"),
    address="127.77.3.4",
    region="eu-west-1",
    zone="eu-west-1b",
    instance_type="g4dn.xlarge",
    user_data=b"#cloud-config\n\x00\xff{}",
    public_keys=KEYS,
)
PRIVATE, MAC = "172.31.3.4", "06:00:00:00:00:01"
TTL = {imds.TOKEN_SECONDS: "60"}


class Client:
    """Speaks HTTP to a service's socket, without following or retrying anything."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("169.254.169.254")
        with imds.short_path(self.path) as short, socket.socket(socket.AF_UNIX) as connection.sock:
            connection.sock.connect(str(short))
            connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def token(self) -> str:
        status, token = self("/latest/api/token", "PUT", **TTL)
        assert status == 200
        return token.decode()

    def get(self, path: str) -> bytes:
        status, body = self(path, **{imds.TOKEN: self.token()})
        assert status == 200, path
        return body


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(tmp_path: Path, clock: Clock) -> Iterator[Client]:
    tree = imds.metadata(BOOT, private_address=PRIVATE, mac=MAC)
    folder = tmp_path / ("a folder whose name is too long for a unix socket" * 3)
    folder.mkdir()
    service = imds.Service(tree, folder / "imds", clock=clock)
    yield Client(folder / "imds")
    service.close()


# Statuses: EC2's manual, "Access instance metadata for an EC2 instance": 400 for a PUT without or with wrong
# parameters, 401 for a GET without a valid token, 403 for what is not allowed.
def test_no_metadata_without_a_token(client: Client) -> None:
    for path in (
        "/",
        "/latest/meta-data/",
        "/latest/meta-data/instance-id",
        "/latest/user-data",
        "/nothing",
    ):
        assert client(path) == (401, b""), path
        assert client(path, **{imds.TOKEN: "made-up"}) == (401, b"")
    assert client("/latest/meta-data/instance-id", **{imds.TOKEN: client.token()}) == (
        200,
        b"i-0123456789abcdef0",
    )


@pytest.mark.parametrize("seconds", ["", "0", "21601", "-1", "1.5", "six hours", "²"])
def test_a_token_lives_between_a_second_and_six_hours(client: Client, seconds: str) -> None:
    assert client("/latest/api/token", "PUT", **{imds.TOKEN_SECONDS: seconds}) == (400, b"")
    assert client("/latest/api/token", "PUT", **{imds.TOKEN_SECONDS: "21600"})[0] == 200


def test_a_token_needs_its_header_its_method_and_no_proxy(client: Client) -> None:
    assert client("/latest/api/token", "PUT") == (400, b"")
    assert client("/latest/api/token", "GET", **TTL)[0] == 401
    assert client("/latest/meta-data/", "PUT", **TTL)[0] == 405
    assert client("/latest/api/token", "PUT", **TTL, X_Forwarded_For="10.0.0.1") == (403, b"")


def test_a_token_expires(client: Client, clock: Clock) -> None:
    token = client.token()
    clock.now += 59
    assert client("/latest/meta-data/", **{imds.TOKEN: token})[0] == 200
    clock.now += 1
    assert client("/latest/meta-data/", **{imds.TOKEN: token})[0] == 401


def test_a_token_is_no_good_at_another_instance(client: Client, tmp_path: Path) -> None:
    other = imds.Service({"meta-data": {"instance-id": "i-2"}}, tmp_path / "other")
    try:
        assert Client(tmp_path / "other")("/latest/meta-data/", **{imds.TOKEN: client.token()})[0] == 401
    finally:
        other.close()


def crawl(client: Client, folder: str) -> dict[str, bytes]:
    """All that a client finds by the listings alone; a name without a slash is a file."""
    found = {}
    for line in client.get(folder).decode().splitlines():
        if folder.endswith("public-keys/"):
            line = line.partition("=")[0] + "/"
        if line.endswith("/"):
            found.update(crawl(client, folder + line))
        else:
            found[folder + line] = client.get(folder + line)
    return found


def test_what_the_listings_lead_to(client: Client) -> None:
    found = crawl(client, "/2021-03-23/meta-data/")
    values = {path.removeprefix("/2021-03-23/meta-data/"): value.decode() for path, value in found.items()}
    network = f"network/interfaces/macs/{MAC}"
    # What cloud-init's Ec2 data source reads (DataSourceEc2.py, helpers/ec2.py), and the manual's table of
    # categories for the forms.
    expected = {
        "ami-id": "ami-0123456789abcdef0",
        "instance-id": "i-0123456789abcdef0",
        "instance-type": "g4dn.xlarge",
        "local-hostname": "ip-172-31-3-4.eu-west-1.compute.internal",
        "local-ipv4": PRIVATE,
        "mac": MAC,
        "placement/availability-zone": "eu-west-1b",
        "placement/region": "eu-west-1",
        "public-keys/0/openssh-key": "ssh-ed25519 AAAA one",
        "public-keys/1/openssh-key": "ssh-rsa BBBB two",
        "block-device-mapping/root": "/dev/xvda",
        "services/domain": "amazonaws.com",
        "services/partition": "aws",
        f"{network}/device-number": "0",
        f"{network}/local-ipv4s": PRIVATE,
        f"{network}/mac": MAC,
    }
    assert {name: values.get(name) for name in expected} == expected
    assert values[f"{network}/vpc-id"].startswith("vpc-")  # without it cloud-init thinks of EC2 Classic
    assert not any(value.endswith("\n") for value in values.values())


def test_listings_have_the_forms_of_the_manual(client: Client) -> None:
    assert client.get("/latest/meta-data/network/interfaces/macs/") == f"{MAC}/".encode()
    assert [
        line.split("=")[0] for line in client.get("/latest/meta-data/public-keys/").decode().split()
    ] == [
        "0",
        "1",
    ]
    assert client.get("/latest/meta-data/public-keys/0/") == b"openssh-key"
    assert client.get("/latest/meta-data/placement") == b"availability-zone\nregion"
    assert client.get("/latest/dynamic/instance-identity") == b"document"
    assert client.get("/").decode().split()[-1] == "latest"


def test_user_data_comes_as_it_is_or_not_at_all(client: Client, tmp_path: Path) -> None:
    assert client.get("/latest/user-data") == b"#cloud-config\n\x00\xff{}"
    bare = dataclasses.replace(BOOT, user_data=b"", public_keys=())
    service = imds.Service(imds.metadata(bare, private_address=PRIVATE, mac=MAC), tmp_path / "bare")
    try:
        other = Client(tmp_path / "bare")
        assert other("/latest/user-data", **{imds.TOKEN: other.token()}) == (404, b"")
        assert b"public-keys" not in other.get("/latest/meta-data/")
        assert other("/1999-01-01/meta-data/", **{imds.TOKEN: other.token()})[0] == 404
        assert service.seen[-1] == ("GET", "/1999-01-01/meta-data/", 404)
    finally:
        service.close()


def test_the_identity_document(client: Client) -> None:
    document = json.loads(client.get("/latest/dynamic/instance-identity/document"))
    expected = {
        "instanceId": "i-0123456789abcdef0",
        "imageId": "ami-0123456789abcdef0",
        "region": "eu-west-1",
        "availabilityZone": "eu-west-1b",
        "privateIp": PRIVATE,
    }
    assert {name: document.get(name) for name in expected} == expected


def test_the_relay_carries_a_connection_and_ends_with_it(client: Client) -> None:
    request = f"PUT /latest/api/token HTTP/1.1\r\nHost: x\r\n{imds.TOKEN_SECONDS}: 60\r\n\r\n".encode()
    words = [sys.executable, "-IS", "-c", imds.RELAY, client.path.name]
    with subprocess.Popen(
        words, cwd=client.path.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as relay:
        assert relay.stdin and relay.stdout
        relay.stdin.write(request)
        relay.stdin.flush()
        # It ends by the service's end of the connection, although ours is still open.
        answer = relay.stdout.read()
        assert relay.wait(10) == 0
    assert answer.startswith(b"HTTP/1.1 200 ")
    token = answer.split(b"\r\n\r\n")[1].decode()
    assert client("/latest/meta-data/", **{imds.TOKEN: token})[0] == 200


def test_the_relay_ends_with_a_guest_that_says_nothing(client: Client) -> None:
    words = [sys.executable, "-IS", "-c", imds.RELAY, client.path.name]
    done = subprocess.run(
        words, cwd=client.path.parent, stdin=subprocess.DEVNULL, capture_output=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
