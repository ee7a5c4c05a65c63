"""What a new machine is told at its first boot: cloud-init's user-data. Pure: values in, text out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Where cloud-init looks for what it runs at the end of every boot. With the rest of cloud-init's state it
#: goes before an image is captured.
PER_BOOT = "/var/lib/cloud/scripts/per-boot/gpu-image-dead-man"

#: At every boot, since a transient timer does not outlive a reboot. A time that is over means at once: the
#: machine was stopped, and whoever started it again waits for nothing. Not in `bootcmd`: it is too early for
#: systemd-run, which hangs the boot there.
DEAD_MAN = """#!/bin/sh
left=$(( {expires} - $(date +%s) ))
[ $left -gt 60 ] || left=60
exec systemd-run --quiet --unit=gpu-image-dead-man --on-active=$left systemctl poweroff
"""


def user_data(user: str, public_key: str, extra: Mapping[str, Any] | None = None) -> str:
    """User-data (JSON is YAML): one user with sudo and a key, plus ``extra`` modules.

    https://cloudinit.readthedocs.io/en/latest/reference/modules.html#users-and-groups
    """
    account = {
        "name": user,
        "shell": "/bin/bash",
        "lock_passwd": True,
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "ssh_authorized_keys": [public_key.strip()],
    }
    return "#cloud-config\n" + json.dumps({"users": [account], **(extra or {})}, indent=1) + "\n"


def dead_man(expires: float) -> dict[str, Any]:
    """The ``extra`` module with which a machine powers itself off at ``expires`` (Unix time, seconds),
    whether whoever made it is dead or not. Nothing of it stays on a disk that was generalised."""
    script = {"path": PER_BOOT, "permissions": "0755", "content": DEAD_MAN.format(expires=int(expires))}
    return {"write_files": [script]}
