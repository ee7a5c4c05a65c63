"""Build folders: one a build, ``build/<build-id>/``, with its state, logs, evidence and image.

A build holds a lock on its folder for as long as its process lives; a folder whose lock can be taken
belongs to a dead build. Its children carry the build's id in their environment, so they are found even
when their parent was killed.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from images import run
from images.errors import UserError

STATE = "state.json"
LONGEST_TMPDIR = 40


@dataclass
class Build:
    """A build of ours. ``temporary`` is short (sockets have a length limit) and goes with the build."""

    folder: Path
    family: str
    version: str
    id: str
    temporary: Path
    _lock: int = -1
    state: dict[str, Any] = field(default_factory=dict)

    def record(self, **values: Any) -> None:
        """Adds to the build's ``state.json``, whole or not at all."""
        self.state.update(values)
        temporary = self.folder / f".{STATE}"
        temporary.write_text(json.dumps(self.state, indent=2, sort_keys=True) + "\n")
        temporary.replace(self.folder / STATE)


@contextlib.contextmanager
def new(root: Path, family: str, cloud: str) -> Iterator[Build]:
    """Makes the folder of a new build and holds it; at the end the temporary folder is gone.

    The version is the UTC time as three integers (Azure allows no other form); two builds of a family
    that start in the same second get different ones.
    """
    root.mkdir(parents=True, exist_ok=True)
    # Its own lock, since a folder and its lock cannot appear in one step: without it a sweep could take
    # a folder that was just made for a dead one.
    with _locked(root / ".lock"):
        version = _free_version(root, family)
        identifier = f"{family}-{version}-{secrets.token_hex(2)}"
        folder = root / identifier
        folder.mkdir()
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX)
        temporary = Path(tempfile.mkdtemp(prefix="gpu-image-", dir=short_folder()))
        build = Build(folder, family, version, identifier, temporary, lock)
        build.record(
            build_id=identifier,
            cloud=cloud,
            family=family,
            version=version,
            pid=os.getpid(),
            started=time.time(),
            temporary=str(temporary),
            status="running",
        )
    token = run.build_id.set(identifier)
    try:
        yield build
    finally:
        run.build_id.reset(token)
        if build.state.get("status") != "kept":
            shutil.rmtree(temporary, ignore_errors=True)
        os.close(lock)


def short_folder() -> Path:
    """Where temporary folders go: the system's place for them, or /tmp where that one's path is long.

    The path of a UNIX socket has at most 107 bytes (unix(7)). Mitogen, SSH and QEMU make theirs in a build's
    temporary folder, and Mitogen waits for ever when it cannot.
    """
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual).encode()) <= LONGEST_TMPDIR else Path("/tmp")


def _free_version(root: Path, family: str) -> str:
    moment = datetime.datetime.now(datetime.UTC)
    while True:
        version = version_of(moment)
        if not list(root.glob(f"{family}-{version}-*")):
            return version
        moment += datetime.timedelta(seconds=1)


def version_of(moment: datetime.datetime) -> str:
    """``YYYY.MMDD.HHMMSS`` as integers, without leading zeros: 2026-01-02 03:04:05 -> 2026.102.30405."""
    return f"{moment.year}.{int(moment.strftime('%m%d'))}.{int(moment.strftime('%H%M%S'))}"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Past:
    """A build folder found on disk. ``alive``: its process runs; ``expired``: a kept machine whose time
    is over."""

    folder: Path
    state: dict[str, Any]
    alive: bool

    @property
    def id(self) -> str:
        """The build id."""
        return self.folder.name

    @property
    def status(self) -> str:
        """``running``, ``died``, ``failed``, ``kept``, ``done``."""
        status = str(self.state.get("status", "running"))
        return "died" if status == "running" and not self.alive else status

    @property
    def expired(self) -> bool:
        """Whether a kept machine is past its expiry."""
        return self.status == "kept" and time.time() > float(self.state.get("expires", 0))


def past(root: Path) -> list[Past]:
    """All build folders, oldest first."""
    if not root.is_dir():
        return []
    with _locked(root / ".lock"):
        folders = [path for path in root.iterdir() if (path / "lock").exists()]
        found = [Past(path, _read_state(path), _alive(path / "lock")) for path in folders]
    return sorted(found, key=lambda item: (float(item.state.get("started", 0)), item.id))


def find(root: Path, identifier: str) -> Past:
    """The build folder of ``identifier``. Raises ``UserError`` when there is none."""
    everything = past(root)
    for item in everything:
        if item.id == identifier:
            return item
    known = ", ".join(item.id for item in everything[-5:]) or "none"
    raise UserError(f"no build {identifier!r} here", hint=f"the last ones: {known}")


def _read_state(folder: Path) -> dict[str, Any]:
    try:
        state = json.loads((folder / STATE).read_bytes())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _alive(lock: Path) -> bool:
    descriptor = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def processes(identifier: str) -> dict[int, str]:
    """The processes that carry the mark of a build: pid -> command line. Not this process."""
    mark = f"{run.BUILD_ENV}={identifier}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def end_processes(identifier: str) -> list[str]:
    """Ends what a dead build left running, SIGKILL since nobody waits for it; returns their commands."""
    ended: list[str] = []
    for _ in range(50):  # a process may fork while we look
        found = processes(identifier)
        if not found:
            break
        for pid, command in found.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                if command not in ended:
                    ended.append(command)
        time.sleep(0.05)  # until the kernel has taken them away
    return ended


def clean_up(item: Past, *, keep: Collection[str] = ()) -> list[str]:
    """Takes away what a dead or expired build left: processes, temporary folder, disks not in ``keep``.

    Logs and evidence stay. Returns what was removed, a line each. Does nothing to a live build.
    """
    if item.alive:
        return []
    removed = [f"process {command[:60]}" for command in end_processes(item.id)]
    temporary = item.state.get("temporary", "")
    if temporary and Path(temporary).name.startswith("gpu-image-") and Path(temporary).is_dir():
        shutil.rmtree(temporary, ignore_errors=True)
        removed.append(temporary)
    published = any(str(path) in keep for path in item.folder.glob("*.qcow2"))
    removed += discard_disks(item.folder, keep=keep)
    status = "done" if published else "died" if item.status == "died" else "failed"
    state = {**item.state, "status": status, "swept": time.time()}
    (item.folder / STATE).write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")
    return removed


def disks(folder: Path, *, keep: Collection[str] = ()) -> list[Path]:
    """The disks in a build's folder, Packer's output and extracted files; those in ``keep`` are left out."""
    candidates = [
        folder / "packer",
        folder / "disk",
        folder / "disk-root",
        *folder.glob("*.qcow2"),
        *folder.glob(".*.qcow2"),
        *folder.glob("*.raw"),
        *folder.glob(".*.raw"),
    ]
    return [path for path in candidates if path.exists() and str(path) not in keep]


def discard_disks(folder: Path, *, keep: Collection[str] = ()) -> list[str]:
    """Removes ``disks``; returns their paths."""
    found = disks(folder, keep=keep)
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return [str(path) for path in found]
