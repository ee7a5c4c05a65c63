"""The server, and the command for people."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from images.errors import UserError
from images.settings import CHECKOUT
from tests import apt_fixture
from tests.apt_fixture import Served
from tests.apt_fixture.conftest import TOOLKIT

SMALL = ("--sets", "toolkit", "--archs", "amd64", "--only", "nvidia-container-toolkit*")


def command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.apt_fixture", *arguments],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_it_serves_files_and_says_who_asked(served: Served) -> None:
    with urllib.request.urlopen(f"{served.uri(TOOLKIT)}/Release") as answer:
        assert answer.read() == (served.fixture.root / TOOLKIT / "Release").read_bytes()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{served.url}/nothing")
    assert served.requests[-2:] == [(f"/{TOOLKIT}/Release", 200), ("/nothing", 404)]
    with pytest.raises(UserError, match="no repository nothing"):
        served.uri("nothing")


def test_what_people_fetch_beside_packages(served: Served) -> None:
    root = served.fixture.root
    source = (root / "libnvidia-container/stable/deb/nvidia-container-toolkit.list").read_text()
    assert source.endswith("/libnvidia-container/stable/deb/$(ARCH) /\n")
    assert "PGP PUBLIC KEY" in (root / "libnvidia-container/gpgkey").read_text()


def test_only_on_this_machine(served: Served) -> None:
    for address in ("0.0.0.0", "10.0.0.1", "::1", "localhost"):
        with (
            pytest.raises(UserError, match="is not within"),
            apt_fixture.serve(served.fixture.root, address=address),
        ):
            pass
    with apt_fixture.serve(served.fixture.root, address="127.42.0.1") as other:
        assert other.url.startswith("http://127.42.0.1:")


def test_a_port_that_is_taken(served: Served) -> None:
    port = int(served.url.rpartition(":")[2])
    with pytest.raises(UserError, match="cannot listen"), apt_fixture.serve(served.fixture.root, port=port):
        pass
    with pytest.raises(UserError, match="cannot listen"), apt_fixture.serve(served.fixture.root, port=99999):
        pass


def test_a_folder_without_repositories(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no repositories"), apt_fixture.serve(tmp_path):
        pass


def test_the_port_is_free_after_the_context(served: Served) -> None:
    with apt_fixture.serve(served.fixture.root) as second:
        port = int(second.url.rpartition(":")[2])
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", port))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_and_leaves_nothing(tmp_path: Path, signum: int) -> None:
    process = command("--serve", str(tmp_path / "repositories"), *SMALL)
    try:
        assert process.stdout
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/{TOOLKIT}/InRelease") as answer:
            assert b"Origin: gpu-image fixture" in answer.read()
        os.kill(process.pid, signum)
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert f"{url}/{TOOLKIT}/  8 packages" in said
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    process = command("--build", str(tmp_path / "sub" / "repositories"))
    try:
        while not any(tmp_path.glob("sub/.repositories.*/compute")):
            assert process.poll() is None
        os.kill(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert list(tmp_path.rglob("*")) == [tmp_path / "sub"]


def test_the_command_builds_and_serves_what_is_there(tmp_path: Path) -> None:
    out = tmp_path / "repositories"
    built = command("--build", str(out), *SMALL)
    assert built.communicate()[0].strip() == str(out)
    assert built.returncode == 0
    process = command("--serve", str(out))
    try:
        assert process.stdout
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert (out / "fixture.json").exists(), "what was there before stays"


def test_wrong_input(tmp_path: Path) -> None:
    done = command("--build", str(tmp_path), *SMALL)
    _, said = done.communicate()
    assert done.returncode == 2
    assert said.startswith("error: ")
    assert "Traceback" not in said
