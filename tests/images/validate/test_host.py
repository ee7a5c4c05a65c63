"""Addresses and the SSH configuration. The machine itself is in tests/cloud_sim/test_validate.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.errors import ExitCode, UserError
from images.validate import host


@pytest.mark.parametrize(
    ("text", "found", "words"),
    [
        ("ssh://gpu-17", host.Address("gpu-17"), ["gpu-17"]),
        ("ssh://root@gpu-17", host.Address("gpu-17", "root"), ["-l", "root", "gpu-17"]),
        ("ssh://u@h.io:2222/", host.Address("h.io", "u", 2222), ["-l", "u", "-p", "2222", "h.io"]),
        ("ssh://MyAlias", host.Address("MyAlias"), ["MyAlias"]),
        ("ssh://a%40b@h", host.Address("h", "a@b"), ["-l", "a@b", "h"]),
        ("ssh://u@[::1]:22", host.Address("::1", "u", 22), ["-l", "u", "-p", "22", "::1"]),
    ],
)  # fmt: skip
def test_addresses(text: str, found: host.Address, words: list[str]) -> None:
    assert host.parse(text) == found
    assert found.words == words
    assert host.parse(found.url.replace("a@b@", "a%40b@")) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpu-17", "does not begin with ssh://"),
        ("root@gpu-17", "does not begin with ssh://"),
        ("http://gpu-17", "does not begin with ssh://"),
        ("ssh://", "does not begin with ssh:// and a host"),
        ("", "does not begin with ssh://"),
        ("ssh://h:port", "port"),
        ("ssh://h:99999", "ort"),
        ("ssh://u:secret@h", "password"),
        ("ssh://h/etc", "nothing may follow"),
        ("ssh://h?x=1", "nothing may follow"),
        ("ssh://-oProxyCommand=touch", "no host or user name"),
        ("ssh://-lroot@h", "no host or user name"),
        ("ssh://h;reboot", "no host or user name"),
        ("ssh://$(reboot)", "no host or user name"),
        ("ssh://[::1", "nvalid"),
    ],
)
def test_what_is_no_address(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        host.parse(text)
    assert caught.value.code == ExitCode.USAGE
    assert "ssh://ubuntu@gpu-17.example.com:22" in str(caught.value.hint)


@given(st.text())
def test_any_text_is_an_address_or_a_user_error(text: str) -> None:
    try:
        found = host.parse(f"ssh://{text}")
    except UserError:
        return
    assert not any(word.startswith("-") for word in (found.host, found.user or "x"))


def test_ssh_takes_our_configuration_and_then_the_users(tmp_path: Path) -> None:
    """As ssh itself reads it: ``ssh -G`` prints what it would use."""
    users, ours = tmp_path / "their config", tmp_path / "ours"
    users.write_text(
        "Host node\n  HostName 192.0.2.7\n  Port 2200\n  BatchMode no\nHost *\n  User operator\n"
    )
    host.write_config(ours, user_config=users, identity=None, control=tmp_path / "c")
    done = subprocess.run(["ssh", "-F", ours, "-G", "node"], capture_output=True, text=True, check=True)
    options = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert (options["hostname"], options["port"], options["user"]) == ("192.0.2.7", "2200", "operator")
    assert options["batchmode"] == "yes"


def test_an_identity(tmp_path: Path) -> None:
    host.write_config(tmp_path / "c", user_config=None, identity=tmp_path / "key", control=tmp_path / "s")
    done = subprocess.run(
        ["ssh", "-F", tmp_path / "c", "-G", "x"], capture_output=True, text=True, check=True
    )
    assert f"identityfile {tmp_path}/key" in done.stdout
