"""Where a manifest lives: four verbs on keys and bytes, and the folder, which is the default.

Another kind of store is another class with these four verbs and a line in ``open_store``. Everything else
in this package works on any store.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from images.errors import ExitCode, UserError

#: Largest object a store takes or hands out, bytes.
MAX_BYTES = 64 * 1024**2

#: A temporary file older than this belongs to a writer that was killed, seconds.
STALE_SECONDS = 3600

#: Segments start with a letter or digit: no "..", no absolute path, nothing hidden.
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}(/[A-Za-z0-9][A-Za-z0-9._+-]{0,199}){0,15}")


class NotFound(UserError):
    """There is no object with this key."""

    def __init__(self, key: str, store: str) -> None:
        super().__init__(f"the manifest at {store} has no {key}", code=ExitCode.NOTHING)


class Conflict(UserError):
    """Somebody else wrote first: the key exists (create) or has changed (replace)."""

    def __init__(self, key: str, store: str) -> None:
        super().__init__(
            f"{key} in the manifest at {store} was written by someone else", code=ExitCode.FAILED
        )


class Store(Protocol):
    """Objects by key. Tags are opaque: they say which bytes ``get`` saw, for ``replace``."""

    #: What messages call the store: its path or URL.
    name: str

    def get(self, key: str) -> tuple[bytes, str]:
        """The object's bytes and tag. Raises ``NotFound``."""

    def create(self, key: str, content: bytes) -> str:
        """Writes a new object, whole or not at all; returns its tag. Raises ``Conflict`` if it exists."""

    def replace(self, key: str, content: bytes, tag: str) -> str:
        """Replaces the object if it still is what ``tag`` stands for; returns the new tag.

        Raises ``Conflict`` when it has changed, ``NotFound`` when it is gone.
        """

    def list(self, prefix: str) -> Sequence[str]:
        """The keys that start with ``prefix``, sorted. Slow on a large store: not for a launch."""


def open_store(where: str | Path) -> Store:
    """The store at ``where``, a folder (made by the first write). Raises ``UserError`` for a URL."""
    if scheme := re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", str(where)):
        raise UserError(
            f"{where}: a manifest at {scheme[1]}:// is not supported yet", hint="give the path of a folder"
        )
    return FolderStore(Path(where))


def check_key(key: str) -> str:
    """The key itself. Raises ``UserError`` for anything that could leave the store."""
    if not _KEY.fullmatch(key):
        raise UserError(f"{key!r} cannot be a key of a manifest")
    return key


class FolderStore:
    """A store in a folder of one host's file system, shared by any number of processes.

    A reader never sees half an object. What a method wrote before it returned is on the disk (fsync); a
    writer killed at any point leaves the old object or the new one, and at worst a file in ``.tmp`` that a
    later writer removes. ``flock`` is what keeps two writers apart, so do not share the folder over NFS.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()
        self.name = str(self.folder)
        self._swept = False

    def get(self, key: str) -> tuple[bytes, str]:
        """See ``Store.get``."""
        path = self.folder / check_key(key)
        with self._explained("read", key):
            try:
                with path.open("rb") as file:
                    content = file.read(MAX_BYTES + 1)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise NotFound(key, self.name) from None
        return content, _tag(_limited(key, content))

    def create(self, key: str, content: bytes) -> str:
        """See ``Store.create``."""
        path = self.folder / check_key(key)
        with self._explained("write", key), self._temporary(key, content) as temporary:
            _make_folder(path.parent)
            try:
                os.link(temporary, path)  # unlike rename, link never replaces
            except FileExistsError:
                raise Conflict(key, self.name) from None
            finally:
                # Also after a conflict: who made the file may have been killed before its own fsync.
                _sync(path.parent)
        return _tag(content)

    def replace(self, key: str, content: bytes, tag: str) -> str:
        """See ``Store.replace``."""
        path = self.folder / check_key(key)
        with self._explained("write", key), self._temporary(key, content) as temporary, self._lock():
            if self.get(key)[1] != tag:
                raise Conflict(key, self.name)
            temporary.replace(path)
            _sync(path.parent)
        return _tag(content)

    def list(self, prefix: str) -> Sequence[str]:
        """See ``Store.list``."""
        parent = prefix.rpartition("/")[0]
        top = self.folder / check_key(parent) if parent else self.folder
        found = []
        with self._explained("list", prefix):
            for folder, folders, files in os.walk(top, onerror=_unless_missing):
                folders[:] = [name for name in folders if not name.startswith(".")]
                below = Path(folder).relative_to(self.folder)
                found += [(below / name).as_posix() for name in files if not name.startswith(".")]
        return sorted(key for key in found if key.startswith(prefix))

    @contextlib.contextmanager
    def _explained(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"the manifest at {self.name}: cannot {verb} {key}: {error.strerror or error}",
                code=ExitCode.FAILED,
            ) from None

    @contextlib.contextmanager
    def _temporary(self, key: str, content: bytes) -> Iterator[Path]:
        """A file with ``content``, on the disk, inside the store's file system; gone afterwards."""
        _limited(key, content)
        folder = self.folder / ".tmp"
        _make_folder(folder)
        self._sweep(folder)
        descriptor, name = tempfile.mkstemp(dir=folder)
        path = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o644)  # mkstemp makes it 0600; other users read the manifest
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _sweep(self, folder: Path) -> None:
        """Removes what killed writers left, once for each opened store."""
        if self._swept:
            return
        self._swept = True
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another writer sweeps as well
                if time.time() - path.lstat().st_mtime > STALE_SECONDS:
                    path.unlink()

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """One writer at a time. The kernel frees a flock when its process dies, however it dies."""
        descriptor = os.open(self.folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _unless_missing(error: OSError) -> None:
    """A folder that cannot be read is not an empty one: its objects would be deleted as unknown."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _tag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _limited(key: str, content: bytes) -> bytes:
    if len(content) > MAX_BYTES:
        raise UserError(
            f"{key}: larger than {MAX_BYTES // 1024**2} MiB, the most a manifest holds",
            code=ExitCode.FAILED,
        )
    return content


def _make_folder(folder: Path) -> None:
    """``mkdir -p``, where each new folder is on the disk before anything is put in it."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
