"""The command ``inv validate``. Imports are inside, so that listing the tasks stays fast."""

from __future__ import annotations

import sys
from pathlib import Path

from invoke.collection import Collection
from invoke.context import Context

from images.cli import task

TIERS = ("any_vm", "gpu", "nvswitch")


@task(
    help={
        "host": "the machine: ssh://[user@]host[:port], as root or with sudo that asks no password",
        "release": "the release it runs (digest sha256:...): record which GPU families it was validated on",
        "diag_level": "DCGM's diagnostic: 1 seconds, 2 minutes, 3 a quarter of an hour, 4 an hour, 0 none",
        "tier": "no check that needs more than: any_vm, gpu, nvswitch (default: all)",
        "gpus": "how many GPUs there should be (default: what the machine's type says)",
        "identity": "private key to log in with (default: as ssh does)",
        "ssh_config": "SSH configuration to use instead of your own",
        "json": "print the result as JSON",
    }
)
def validate(
    c: Context,
    host: str,
    release: str | None = None,
    diag_level: str = "1",
    tier: str = "nvswitch",
    gpus: str | None = None,
    identity: str | None = None,
    ssh_config: str | None = None,
    json: bool = False,
) -> None:
    """Judge a machine that exists by the gate's checks, with or without our image on it.

    For example: ./inv validate --host=ssh://root@gpu-17 --diag-level=2. Nothing is installed there. Exit
    code 0 healthy or degraded, 1 unhealthy, 3 unknown or not reachable. docs/validation.md says what each
    check proves.
    """
    import dataclasses
    import os

    from rich.console import Console

    from images import progress, settings
    from images import release as releases
    from images.errors import UserError
    from images.validate import host as hosts
    from images.validate import judge
    from images.validate.report import render

    if diag_level not in ("0", "1", "2", "3", "4"):
        raise UserError(f"--diag-level={diag_level}: must be 0 to 4")
    if tier not in TIERS:
        raise UserError(f"--tier={tier}: must be one of {', '.join(TIERS)}")
    if gpus is not None and not (gpus.isdecimal() and int(gpus) <= 1024):
        raise UserError(f"--gpus={gpus}: must be a number of GPUs")
    for name, path in (("--identity", identity), ("--ssh-config", ssh_config)):
        if path and not Path(path).expanduser().is_file():
            raise UserError(f"{name}={path}: no such file")
    options = judge.Options(
        address=hosts.parse(host),
        release=release,
        diag_level=int(diag_level),
        tier=tier,
        gpus=int(gpus) if gpus else None,
        identity=Path(identity).expanduser() if identity else None,
        user_config=Path(ssh_config).expanduser().absolute() if ssh_config else None,
    )
    stages = progress.Stages()
    with stages.stage("validate", f"checks on {options.address.url}") as stage:
        outcome = judge.validate(options, settings.load(c.config), actor=releases.actor(), note=stage.note)
        stage.outcome = outcome.verdict
    if json:
        import json as json_

        print(json_.dumps({**dataclasses.asdict(outcome), "evidence": str(outcome.evidence)}, indent=2))
    else:
        width = max(os.get_terminal_size().columns if sys.stdout.isatty() else 0, 120)
        Console(highlight=False, width=width).print(render(outcome))
    if outcome.code:
        sys.exit(outcome.code)


def collection() -> Collection:
    """This task."""
    return Collection(validate)
