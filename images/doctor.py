"""What a build needs on this machine: says what is missing, how to get it, and installs it when asked."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from images import progress, run
from images.clouds import Cloud
from images.errors import ExitCode, UserError
from images.settings import Settings

#: Programs that every cloud needs, with the Debian package of each.
PROGRAMS: Mapping[str, str] = {
    "packer": "packer",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "git": "git",
}

#: What `./inv test` needs on top.
TEST_PROGRAMS: Mapping[str, str] = {
    "shellcheck": "shellcheck",
    "gpg": "gpg",
    "gpg-agent": "gpg-agent",
    "ip": "iproute2",
    "cc": "gcc",
    "/usr/include/stdio.h": "libc6-dev",
}

NEEDED_BYTES = 4 * 1024**3


@dataclass(frozen=True)
class Missing:
    """A program (or a file, when its name is a path) that is not there, and the package that has it."""

    program: str
    package: str


def missing(programs: Mapping[str, str]) -> list[Missing]:
    """Those of ``programs`` that are not here; ``$PACKER`` counts as packer."""
    found = []
    for program, package in programs.items():
        wanted = os.environ.get("PACKER", program) if program == "packer" else program
        there = Path(wanted).exists() if wanted.startswith("/") else shutil.which(wanted)
        if not there:
            found.append(Missing(wanted, package))
    return found


def install_command(packages: Iterable[str]) -> list[str]:
    """The command that would install ``packages`` here."""
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *sorted(set(packages))]
    return command if os.geteuid() == 0 else ["sudo", *command]


def ensure(programs: Mapping[str, str], *, yes: bool, install: bool) -> None:
    """Installs what is missing of ``programs``.

    Prints the command first. Asks on a terminal; with ``yes``, or as root with CI=true, it does not ask.
    Without ``install``, or where it cannot ask, raises ``UserError`` that holds the command.
    """
    gone = missing(programs)
    if not gone or run.dry.get():
        return
    command = install_command(item.package for item in gone)
    progress.say(f"missing on this machine: {', '.join(item.program for item in gone)}")
    progress.say(f"  {shlex.join(command)}")
    if not install or not shutil.which("apt-get"):
        raise UserError("system packages are missing", hint=f"run: {shlex.join(command)}")
    unattended = yes or (os.geteuid() == 0 and os.environ.get("CI") == "true")
    if not unattended and not _confirmed():
        raise UserError("system packages are missing", hint=f"run: {shlex.join(command)} (or pass --yes)")
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    with progress.Stages().stage("install", "installing system packages"):
        prefix = command[: command.index("apt-get")]
        hint = "is the package mirror reachable? `apt-get update` says more"
        run.run([*prefix, "apt-get", "update"], env=environment, hint=hint)
        run.run(command, env=environment, hint=hint)
    if still := missing(programs):
        raise UserError(
            f"still missing after the installation: {', '.join(item.program for item in still)}",
            code=ExitCode.FAILED,
        )


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        return False
    progress.console.print("Run it now? [y/N] ", end="", markup=False)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def require_space(*folders: Path, needed: int = NEEDED_BYTES) -> None:
    """Raises ``UserError`` when the file system of one of ``folders`` has less than ``needed`` bytes free.

    A machine whose disk cannot grow is paused by QEMU, which looks like a hang: better said before.
    """
    for folder in folders:
        there = folder
        while not there.exists():
            there = there.parent
        free = shutil.disk_usage(there).free
        if free < needed:
            raise UserError(
                f"{free / 1024**3:.1f} GiB free for {folder}; a build needs {needed / 1024**3:.1f} GiB",
                hint="./inv clean removes old images and caches; ./inv sweep what dead builds left",
                code=ExitCode.FAILED,
            )


def report(cloud: Cloud, settings: Settings, *, accel: str | None = None) -> list[tuple[bool, str, str]]:
    """What `inv doctor` shows: (all right, what, detail or how to get it), a row each."""
    from images import packer

    rows = [(True, "python", sys.version.split()[0])]
    programs = {**PROGRAMS, **cloud.programs}
    gone = {item.package for item in missing(programs)}
    for package in sorted(set(programs.values())):
        names = sorted(name for name, owner in programs.items() if owner == package)
        detail = shlex.join(install_command([package])) if package in gone else ", ".join(names)
        rows.append((package not in gone, package, detail))
    if not missing({"packer": "packer"}):
        try:
            rows.append((True, "Packer", ".".join(map(str, packer.version()))))
        except UserError as error:
            rows.append((False, "Packer", error.message))
    if not gone:
        rows.append((True, "accelerator", cloud.choose_accelerator(accel)[1]))
    rows += [(False, "credentials", line) for line in cloud.missing_credentials(settings)]
    try:
        require_space(Path.cwd())
        rows.append((True, "disk", f"{shutil.disk_usage(Path.cwd()).free / 1024**3:.0f} GiB free"))
    except UserError as error:
        rows.append((False, "disk", error.message))
    return rows
