"""How many GPUs there should be: expect.json, cloud-init's metadata of every cloud, and neither."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from validation import expect
from validation.expect import Expectation


def lay_out(root: Path, path: str, content: object) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))


def expected(root: Path) -> Expectation:
    return expect.expected_gpus(str(root))


# As cloud-init writes it, shortened: EC2 from its documentation, the others from
# what cloudinit/sources/DataSourceAzure.py, DataSourceOracle.py and DataSourceGCE.py keep.
EC2 = {
    "ds": {
        "dynamic": {"instance-identity": {"document": {"instanceType": "p5.48xlarge"}}},
        "meta_data": {"ami-id": "ami-02e8aa396f8be3b6d", "instance-type": "p5.48xlarge"},
    },
    "v1": {"cloud_name": "aws", "machine": "x86_64", "platform": "ec2"},
}
EC2_OLD = {
    "ds": {"meta_data": {"ami_id": "ami-02e8aa396f8be3b6d", "instance_type": "t2.micro"}},
    "v1": {"cloud_name": "aws", "cloud-name": "aws", "platform": "ec2"},
}
EC2_WITHOUT_META_DATA = {
    "ds": {"dynamic": {"instance-identity": {"document": {"instanceType": "g6.12xlarge"}}}},
    "v1": {"cloud-name": "aws"},
}
AZURE = {
    "ds": {
        "meta_data": {
            "imds": {"compute": {"location": "eastus", "vmSize": "Standard_NC24ads_A100_v4"}, "network": {}},
            "instance-id": "b0b3d5e1",
        }
    },
    "v1": {"cloud_name": "azure", "platform": "azure"},
}
ORACLE = {
    "ds": {"id": "ocid1.instance.oc1..x", "ociAdName": "uk-london-1-ad-1", "shape": "BM.GPU4.8"},
    "v1": {"cloud_name": "oracle", "platform": "oracle"},
}
GCE_WITH_TYPE = {
    "ds": {"meta_data": {"machine-type": "projects/123456789/machineTypes/a3-highgpu-8g"}},
    "v1": {"cloud_name": "gce", "platform": "gce"},
}


@pytest.mark.parametrize(
    ("document", "count", "gpu", "name"),
    [
        (EC2, 8, "h100", "p5.48xlarge"),
        (EC2_OLD, 0, None, "t2.micro"),
        (EC2_WITHOUT_META_DATA, 4, "l4", "g6.12xlarge"),
        (AZURE, 1, "a100", "Standard_NC24ads_A100_v4"),
        (ORACLE, 8, "a100", "BM.GPU4.8"),
        (GCE_WITH_TYPE, 8, "h100", "a3-highgpu-8g"),
    ],
    ids=["ec2", "ec2-old", "ec2-dynamic", "azure", "oracle", "gce"],
)
def test_the_machine_type_says(
    tmp_path: Path, document: dict[str, Any], count: int, gpu: str | None, name: str
) -> None:
    lay_out(tmp_path, "/run/cloud-init/instance-data.json", document)
    assert expected(tmp_path) == Expectation(count, gpu, f"machine type {name}", machine_type=name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("n1-standard-8", "does not say"),
        ("z9-huge", "is not in the table"),
        ("m7i.large", "is not in the table"),
    ],
)
def test_a_type_that_does_not_tell(tmp_path: Path, name: str, why: str) -> None:
    """m7i.large is AWS's; on another cloud it may be anything."""
    document = {"ds": {"meta_data": {"machine-type": name}}, "v1": {"cloud_name": "gce"}}
    lay_out(tmp_path, "/run/cloud-init/instance-data.json", document)
    found = expected(tmp_path)
    assert (found.count, found.source) == (None, f"machine type {name} {why}")


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (None, "no metadata of cloud-init"),
        (
            {"ds": {"meta_data": {"instance-id": "iid"}}, "v1": {"cloud_name": "nocloud"}},
            "the metadata of nocloud",
        ),
        ({"ds": {}, "v1": {}}, "no machine type in cloud-init's metadata"),
        ({}, "no machine type"),
        ({"ds": {"meta_data": {"instance-type": None}}}, "no machine type"),
        ({"ds": {"meta_data": {"instance-type": ["p5.48xlarge"]}}}, "no machine type"),
        ({"ds": "redacted for non-root user", "v1": {"cloud_name": "aws"}}, "the metadata of aws"),
        (
            {"ds": {"shape": "redacted for non-root user"}, "v1": {"cloud_name": "oracle"}},
            "the metadata of oracle",
        ),
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_metadata_that_does_not_tell(tmp_path: Path, document: object, why: str) -> None:
    if document is not None:
        lay_out(tmp_path, "/run/cloud-init/instance-data.json", document)
    found = expected(tmp_path)
    assert (found.count, found.error) == (None, None)
    assert why in found.source


def test_what_only_root_may_read_comes_first(tmp_path: Path) -> None:
    redacted = {"ds": "redacted for non-root user", "v1": {"cloud_name": "aws"}}
    lay_out(tmp_path, "/run/cloud-init/instance-data.json", redacted)
    lay_out(tmp_path, "/run/cloud-init/instance-data-sensitive.json", EC2)
    assert expected(tmp_path).count == 8
    lay_out(tmp_path, "/run/cloud-init/instance-data-sensitive.json", "half a file {")
    lay_out(tmp_path, "/run/cloud-init/instance-data.json", ORACLE)
    assert expected(tmp_path).machine_type == "BM.GPU4.8"


@pytest.mark.parametrize(
    ("text", "count", "gpu"),
    [
        ('{"gpus": 8, "gpu": "h100"}', 8, "h100"),
        ('{"gpus": 0}', 0, None),
        ('{"gpus": 4, "gpu": "RTX  PRO 6000"}\n', 4, "rtx pro 6000"),
        ('{"gpus": 1, "gpu": null}', 1, None),
    ],
)
def test_the_owner_decides(tmp_path: Path, text: str, count: int, gpu: str | None) -> None:
    lay_out(tmp_path, "/run/cloud-init/instance-data.json", EC2)
    lay_out(tmp_path, "/etc/gpu-image/expect.json", text)
    found = expected(tmp_path)
    assert found == Expectation(count, gpu, "/etc/gpu-image/expect.json")
    assert found.by_owner


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("gpus: 8", "not JSON"),
        ('{"gpus": 8', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("8", "not a JSON object"),
        ("null", "not a JSON object"),
        ("{}", "'gpus' is not a whole number"),
        ('{"gpu": "h100"}', "'gpus' is not a whole number"),
        ('{"gpus": "8"}', "'gpus' is not a whole number"),
        ('{"gpus": 8.0}', "'gpus' is not a whole number"),
        ('{"gpus": true}', "'gpus' is not a whole number"),
        ('{"gpus": null}', "'gpus' is not a whole number"),
        ('{"gpus": -1}', "'gpus' is not a whole number"),
        ('{"gpus": 1e9}', "'gpus' is not a whole number"),
        ('{"gpus": 5000}', "'gpus' is not a whole number"),
        ('{"gpus": 8, "gpu": ""}', "'gpu' is not the name of a model"),
        ('{"gpus": 8, "gpu": ["h100"]}', "'gpu' is not the name of a model"),
        ('{"gpu_count": 8}', "unknown key 'gpu_count'"),
        ('{"gpus": 8, "model": "h100"}', "unknown key 'model'"),
    ],
)
def test_a_broken_expectation_is_said_and_nothing_else_is_taken(tmp_path: Path, text: str, why: str) -> None:
    lay_out(tmp_path, "/run/cloud-init/instance-data.json", EC2)
    lay_out(tmp_path, "/etc/gpu-image/expect.json", text)
    found = expected(tmp_path)
    assert (found.count, found.gpu) == (None, None)
    assert found.error
    assert found.error.startswith("/etc/gpu-image/expect.json: ")
    assert why in found.error


def test_an_expectation_that_cannot_be_read_is_no_missing_one(tmp_path: Path) -> None:
    (tmp_path / "etc/gpu-image/expect.json").mkdir(parents=True)
    assert expected(tmp_path).error == "/etc/gpu-image/expect.json cannot be read: Is a directory"
    (tmp_path / "etc/gpu-image/expect.json").rmdir()
    (tmp_path / "etc/gpu-image/expect.json").write_bytes(b"\xff\xfe{\x00")
    assert "cannot be read" in (expected(tmp_path).error or "")


@contextmanager
def metadata_server(answer: bytes, seen: list[bytes]) -> Iterator[int]:
    """A server on this machine that gives every caller ``answer``; the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    seen.append(connection.recv(4096))
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def on_gce(root: Path, port: int) -> None:
    document = {
        "ds": {
            "meta_data": {"instance-id": "1", "availability-zone": "us-central1-a", "local-hostname": "h"}
        },
        "v1": {
            "cloud_name": "gce",
            "subplatform": f"metadata (http://127.0.0.1:{port}/computeMetadata/v1/)",
        },
    }
    lay_out(root, "/run/cloud-init/instance-data.json", document)


def test_on_gce_the_metadata_server_is_asked(tmp_path: Path) -> None:
    """The protocol: https://cloud.google.com/compute/docs/metadata/querying-metadata"""
    answer = (
        b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Type: application/text\r\n"
        b"Server: Metadata Server for VM\r\n\r\nprojects/123456789/machineTypes/a2-ultragpu-8g"
    )
    seen: list[bytes] = []
    with metadata_server(answer, seen) as port:
        on_gce(tmp_path, port)
        assert expected(tmp_path) == Expectation(
            8, "a100", "machine type a2-ultragpu-8g", machine_type="a2-ultragpu-8g"
        )
    head, *lines = seen[0].decode().split("\r\n")
    assert head.startswith("GET /computeMetadata/v1/instance/machine-type HTTP/1.")
    assert "Metadata-Flavor: Google" in lines


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 404 Not Found\r\n\r\nprojects/1/machineTypes/a2-ultragpu-8g",
        b"HTTP/1.1 200 OK\r\n\r\n<html>log in here</html>",
        b"HTTP/1.1 200 OK\r\n\r\n<html>\n/machineTypes/ a2-ultragpu-8g</html>",
        b"\xff\xfe nonsense",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000,
    ],
    ids=["nothing", "404", "portal", "page", "bytes", "flood"],
)
def test_any_other_answer_is_none(tmp_path: Path, answer: bytes) -> None:
    with metadata_server(answer, []) as port:
        on_gce(tmp_path, port)
        found = expected(tmp_path)
    assert (found.count, found.source) == (None, "no machine type in the metadata of gce")


def test_a_metadata_server_that_is_silent_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expect, "METADATA_PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        on_gce(tmp_path, port)
        assert expected(tmp_path).count is None
    on_gce(tmp_path, port)
    assert expected(tmp_path).count is None


def test_a_machine_in_a_folder_does_not_ask_the_cloud_that_we_are_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(socket, "create_connection", lambda *arguments, **options: asked.append(arguments))
    lay_out(tmp_path, "/run/cloud-init/instance-data.json", {"v1": {"cloud_name": "gce"}})
    assert (expected(tmp_path).count, asked) == (None, [])


@pytest.mark.parametrize(
    ("subplatform", "place"),
    [
        ("metadata (http://metadata.google.internal/computeMetadata/v1/)", ("169.254.169.254", 80)),
        ("metadata (http://169.254.169.254/computeMetadata/v1/)", ("169.254.169.254", 80)),
        ("metadata (http://127.0.0.1:8080/computeMetadata/v1/)", ("127.0.0.1", 8080)),
        ("seed-dir (/var/lib/cloud/seed)", ("169.254.169.254", 80)),
        (None, ("169.254.169.254", 80)),
    ],
)
def test_where_the_metadata_server_is(subplatform: str | None, place: tuple[str, int]) -> None:
    assert expect._metadata_server({"v1": {"subplatform": subplatform}}) == place


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["ds", "v1", "meta_data", "imds", "compute", "shape", "cloud_name", "gpus", "gpu"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(JSON)
@settings(max_examples=300, deadline=None)
def test_no_document_breaks_a_reader(document: Any) -> None:
    if isinstance(document, dict):
        assert isinstance(expect.machine_type(document), str | None)
        assert isinstance(expect.cloud_name(document), str | None)
    try:
        count, gpu = expect.parse(json.dumps(document))
    except expect.BadExpectation:
        return
    assert 0 <= count <= 1024
    assert gpu is None or gpu == gpu.lower()
