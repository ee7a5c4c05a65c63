"""User-data: what cloud-init is told, and that the dead man's script does what its name says."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from images import cloud_init


def parsed(text: str) -> dict[str, Any]:
    head, body = text.split("\n", 1)
    assert head == "#cloud-config"
    found: dict[str, Any] = json.loads(body)
    return found


def test_one_user_with_the_key_and_no_password() -> None:
    (user,) = parsed(cloud_init.user_data("packer", "ssh-ed25519 AAAA\n"))["users"]
    assert user["ssh_authorized_keys"] == ["ssh-ed25519 AAAA"]
    assert user["lock_passwd"] is True


@pytest.mark.parametrize(("left", "expected"), [(7200, 7200), (61, 61), (30, 60), (-5000, 60)])
def test_the_dead_man_powers_off_in_time(tmp_path: Path, left: int, expected: int) -> None:
    """The script itself, with a systemd-run that notes what it is told."""
    (script,) = cloud_init.dead_man(time.time() + left)["write_files"]
    assert script["path"].startswith("/var/lib/cloud/scripts/per-boot/") and script["permissions"] == "0755"
    fake = tmp_path / "systemd-run"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["sh", "-c", script["content"]], env=environment, capture_output=True, text=True, check=True
    )
    *options, verb, what = ran.stdout.split()
    assert (verb, what) == ("systemctl", "poweroff")
    (active,) = [option for option in options if option.startswith("--on-active=")]
    assert abs(int(active.removeprefix("--on-active=")) - expected) <= 2


def test_it_goes_with_cloud_inits_state() -> None:
    import yaml

    from images.settings import CHECKOUT

    defaults = yaml.safe_load((CHECKOUT / "roles/generalise/defaults/main.yml").read_text())
    assert any(cloud_init.PER_BOOT.startswith(path + "/") for path in defaults["generalise_remove"])
