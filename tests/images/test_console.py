from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from images import console

ED25519 = "AAAAC3NzaC1lZDI1NTE5AAAAIKxKwIY2nUxPLKbHYZiG9tDCJO+9BLPl4rUFzLpGrOIh"


def log(*lines: str) -> str:
    return "\r\n".join(["[   20.1] cloud-init[1]: x", console.BEGIN, *lines, console.END, "login: "])


@pytest.mark.parametrize(("port", "name"), [(2222, "[127.0.0.1]:2222"), (22, "127.0.0.1")])
def test_the_key_that_openssh_made(tmp_path: Path, port: int, name: str) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-C", "root@vm", "-f", tmp_path / "k"], check=True
    )
    public = (tmp_path / "k.pub").read_text().strip()
    (key,) = console.host_keys(log(public))
    assert f"{key.kind} {key.key} root@vm" == public
    known = tmp_path / "known_hosts"
    known.write_text(console.known_hosts([key], host="127.0.0.1", port=port))
    found = subprocess.run(
        ["ssh-keygen", "-F", name, "-f", known], capture_output=True, text=True, check=True
    )
    assert key.key in found.stdout


def test_no_block_or_half_a_block_gives_no_keys() -> None:
    whole = log(f"ssh-ed25519 {ED25519} root@vm")
    assert console.host_keys("") == ()
    assert console.host_keys(whole[: whole.index(console.END)]) == ()
    assert console.host_keys(console.END + console.BEGIN) == ()
    assert len(console.host_keys(whole)) == 1


def test_a_line_broken_up_by_another_message_is_left_out() -> None:
    broken = f"ssh-ed25519 {ED25519[:30]}[  21.5] random: crng init done"
    cut = f"ssh-ed25519 {ED25519[:-8]}"
    other = f"ssh-rsa {ED25519} root@vm"
    assert console.host_keys(log(broken, cut, other, "ssh-ed25519")) == ()


def test_the_last_block_counts() -> None:
    first = log(f"ssh-ed25519 {ED25519[:-4]}AAAA")
    (key,) = console.host_keys(first + log(f"ssh-ed25519 {ED25519}"))
    assert key.key == ED25519


def test_terminal_sequences_are_no_text() -> None:
    assert console.last_lines("a\r\n\x1b[0;32mb\x1b[0m  \r\n\r\n\x1bcc\n", 2) == ["b", "c"]
