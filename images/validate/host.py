"""A machine that exists, reached by the user's own SSH: his configuration, keys, agent and known hosts."""

from __future__ import annotations

import base64
import contextlib
import io
import re
import tarfile
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from images import run
from images.bundle import BundleFile
from images.errors import ExitCode, UserError
from images.remote import quote
from validation.boot_checks import image

CONNECT = 30  # seconds
SSH_FAILED = 255  # ssh(1): an error of its own
NEEDED_PYTHON = (3, 10)
PREFIX = "/tmp/gpu-image-validate."

#: What must be known before anything is sent. One command: an SSH connection may be slow.
LOOK = (
    "uname -m; id -u; sudo -n true >/dev/null 2>&1 && echo sudo || echo no-sudo; "
    "python3 -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null || echo none"
)


@dataclass(frozen=True)
class Address:
    """``ssh://[user@]host[:port]``; host may be an alias of the user's SSH configuration."""

    host: str
    user: str | None = None
    port: int | None = None

    @property
    def url(self) -> str:
        """As it was given."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ssh://{f'{self.user}@' if self.user else ''}{host}{f':{self.port}' if self.port else ''}"

    @property
    def words(self) -> list[str]:
        """The arguments of ssh that name it."""
        return [
            *(["-l", self.user] if self.user else []),
            *(["-p", str(self.port)] if self.port else []),
            self.host,
        ]


def parse(text: str) -> Address:
    """The address in ``text``. Raises ``UserError`` that says what an address looks like."""
    try:
        found = urllib.parse.urlsplit(text)
        port = found.port
    except ValueError as error:
        raise _no_address(text, str(error)) from None
    if found.scheme != "ssh" or not found.hostname:
        raise _no_address(text, "it does not begin with ssh:// and a host")
    if found.password is not None:
        raise _no_address(text, "a password has no place in a command; use a key")
    if found.path.strip("/") or found.query or found.fragment:
        raise _no_address(text, "nothing may follow the host and port")
    # Capital letters: an alias is not a host name, and urlsplit lowers it.
    place = found.netloc.rpartition("@")[2]
    host = found.hostname if place.startswith("[") else place.partition(":")[0]
    user = urllib.parse.unquote(found.username) if found.username else None
    for word in filter(None, (host, user)):
        if word.startswith("-") or not re.fullmatch(r"[\w.:%+~@-]+", word):
            raise _no_address(text, f"{word!r} is no host or user name")
    return Address(host, user, port)


def _no_address(text: str, problem: str) -> UserError:
    return UserError(
        f"--host={text}: {problem}", hint="for example --host=ssh://ubuntu@gpu-17.example.com:22"
    )


@dataclass(frozen=True)
class Facts:
    """What a look at the machine says. ``sudo``: commands need it, and get it without a password."""

    machine: str  # as uname -m
    sudo: bool


@dataclass(frozen=True)
class Host:
    """The machine. ``config`` is our SSH configuration, which reads the user's own."""

    address: Address
    config: Path

    def look(self) -> Facts:
        """Asks what it is. Raises ``UserError``: 3 when it is not reached, 2 when it lacks what we need."""
        said = self._ssh(LOOK, timeout=CONNECT * 2)
        # A shell's start-up file may have said something, too.
        lines = [line.strip() for line in said.splitlines() if line.strip()][-4:]
        if len(lines) < 4 or not lines[1].isdigit():
            raise UserError(
                f"{self.address.url} answers no commands: it printed {' '.join(said.split())[:200]!r}",
                hint="a shell account on a Linux machine is needed",
            )
        machine, uid, sudo, python = lines
        if uid != "0" and sudo != "sudo":
            raise UserError(
                f"{self.address.url}: user id {uid} is not root and cannot use sudo without a password",
                hint="log in as root, or give the account NOPASSWD in sudoers",
            )
        version = tuple(int(part) for part in python.split()) if python != "none" else ()
        if version < NEEDED_PYTHON:
            has = f"has Python {'.'.join(map(str, version))}" if version else "has no python3"
            raise UserError(
                f"{self.address.url} {has}; the checks need {'.'.join(map(str, NEEDED_PYTHON))} there",
                hint="install python3 on it; nothing else is needed",
            )
        return Facts(machine, sudo=uid != "0")

    def read(self, path: str, *, sudo: bool) -> str | None:
        """The content of a file there; None when there is none."""
        command = f"{'sudo -n ' if sudo else ''}cat -- {path} 2>/dev/null || true"
        return self._ssh(command, timeout=CONNECT * 2) or None

    @contextlib.contextmanager
    def tools(self, files: tuple[BundleFile, ...], *, sudo: bool) -> Iterator[str]:
        """Sends the readers and checks of this checkout; yields the folder with them, gone afterwards.

        Those on the machine may be older, or not there at all.
        """
        packed = base64.b64encode(_tar(files)).decode()
        folder = self._ssh(
            f"umask 077 && d=$(mktemp -d {PREFIX}XXXXXX) && base64 -d | tar -xzf - -C $d && echo $d",
            input=packed,
            timeout=CONNECT * 4,
        ).strip()
        if not folder.startswith(PREFIX):
            raise UserError(
                f"{self.address.url}: no place for the checks: {folder[:200]!r}", code=ExitCode.FAILED
            )
        try:
            yield folder
        finally:
            prefix = "sudo -n " if sudo else ""
            # What still runs there was started from this folder, in a session of its own.
            script = (
                f"for p in $(cat {folder}/*.pid 2>/dev/null); do kill -TERM -- -$p; done; rm -rf {folder}"
            )
            with contextlib.suppress(UserError):  # the connection may be what broke
                self._ssh(f"{prefix}sh -c '{script}' 2>/dev/null || true", timeout=CONNECT)

    def close(self) -> None:
        """Ends the shared connection, which would outlive us for a while."""
        words: list[str | Path] = ["ssh", "-F", self.config, "-O", "exit", *self.address.words]
        run.run(words, check=False, timeout=10)

    def _ssh(self, command: str, *, timeout: float, input: str | None = None) -> str:
        words: list[str | Path] = ["ssh", "-F", self.config, "-T", *self.address.words, "--", command]
        done = run.run(words, timeout=timeout, check=False, input=input)
        if done.returncode == SSH_FAILED:
            raise UserError(
                f"{self.address.url} cannot be reached: {_last(done.stderr) or 'ssh says nothing'}",
                hint=_hint(done.stderr, self.address),
                code=ExitCode.NOTHING,
            )
        if done.returncode:
            raise UserError(
                f"{self.address.url}: code {done.returncode}: {_last(done.stderr)}", code=ExitCode.FAILED
            )
        return done.stdout


def write_config(path: Path, *, user_config: Path | None, identity: Path | None, control: Path) -> None:
    """Our SSH configuration: no questions, one connection for all commands; all else is the user's.

    ``user_config`` in place of the user's and the system's own files. The first value that ssh finds counts.
    """
    lines = [
        "BatchMode yes",
        f"ConnectTimeout {CONNECT}",
        "ServerAliveInterval 10",
        "ServerAliveCountMax 6",
        "ControlMaster auto",
        f"ControlPath {quote(control)}",
        "ControlPersist 20",
        *([f"IdentityFile {quote(identity)}"] if identity else []),
    ]
    sources = (
        [user_config] if user_config else [Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")]
    )
    # Not an Include of what is not there: that would be an error for the one file the user named.
    lines += [f"Include {quote(source)}" for source in sources if source.is_file()]
    path.write_text("Host *\n" + "".join(f"    {line}\n" for line in lines))


def _tar(files: tuple[BundleFile, ...]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as archive:
        for file in files:
            member = tarfile.TarInfo(file.path.removeprefix(image.BUNDLE + "/"))
            member.size, member.mode = len(file.content), int(file.mode, 8)
            archive.addfile(member, io.BytesIO(file.content))
    return out.getvalue()


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else ""


def _hint(stderr: str, address: Address) -> str:
    command = " ".join(["ssh", *address.words])
    if "Host key verification failed" in stderr:
        return f"its host key is not known: run `{command}` once, compare the key, and try again"
    if "Permission denied" in stderr:
        return f"`{command}` must work without a password: --identity=KEY, or an agent"
    return f"try `{command}`"
