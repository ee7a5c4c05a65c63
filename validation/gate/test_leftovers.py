"""On a machine booted from the capture: nothing of the build machine is left."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from validation.gate import readers
from validation.gate.checks import NotRun, Phase, check
from validation.gate.machine import Machine


@pytest.fixture(autouse=True)
def captured(phase: Phase) -> None:
    """Before the capture the build machine is still itself."""
    if phase not in (Phase.FIRST_BOOT, Phase.REBOOT):
        raise NotRun("only on a machine booted from the capture")


@check("leftovers.build_user", "accounts", "sudoers", "login")
def test_build_user(machine: Machine, expected: Mapping[str, Any]) -> None:
    """No account of the build, and no right to become root. The gate's own login does not count."""
    user = expected["build"]["user"]
    if machine.text("login").strip() == user:
        raise NotRun(f"the gate itself logs in as {user}")
    assert user not in readers.account_names(machine.text("accounts")), f"{user} has an account"
    sudo = re.search(rf"^\s*{re.escape(user)}\s", machine.text("sudoers"), re.MULTILINE)
    assert not sudo, f"{user} may use sudo"


@check("leftovers.hostname", "hostname")
def test_hostname(machine: Machine, expected: Mapping[str, Any]) -> None:
    """The build machine's name is nowhere."""
    name = expected["build"]["hostname"]
    assert name not in machine.text("hostname").split(), f"the machine still calls itself {name}"


@check("leftovers.apt_proxy", "apt_config")
def test_apt_proxy(machine: Machine) -> None:
    """apt uses no proxy of the build's network."""
    config = readers.apt_config(machine.text("apt_config"))
    proxies = [
        f"{name} {value}" for name, value in config.items() if name.lower().endswith("::proxy") and value
    ]
    assert not proxies, f"apt uses {', '.join(proxies)}"
