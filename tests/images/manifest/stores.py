"""Stores that behave as the world sometimes does, at a moment that the test chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from images.manifest import Conflict, FolderStore


class Recording(FolderStore):
    """Remembers the order of writes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.written: list[str] = []

    def create(self, key: str, content: bytes) -> str:
        self.written.append(key)
        return super().create(key, content)

    def replace(self, key: str, content: bytes, tag: str) -> str:
        self.written.append(key)
        return super().replace(key, content, tag)


class Rivalled(FolderStore):
    """Somebody else gets in between reading and writing ``key``: the rivals act one at a time."""

    def __init__(self, folder: Path, key: str, rivals: Sequence[Callable[[], object]]) -> None:
        super().__init__(folder)
        self.key = key
        self.rivals = list(rivals)

    def _first_the_rival(self, key: str) -> None:
        if key == self.key and self.rivals:
            self.rivals.pop(0)()

    def create(self, key: str, content: bytes) -> str:
        self._first_the_rival(key)
        return super().create(key, content)

    def replace(self, key: str, content: bytes, tag: str) -> str:
        self._first_the_rival(key)
        return super().replace(key, content, tag)


class LosesReplies(FolderStore):
    """Writes, and then says that somebody else did: what an HTTP client's own retry looks like."""

    def create(self, key: str, content: bytes) -> str:
        super().create(key, content)
        raise Conflict(key, self.name)

    def replace(self, key: str, content: bytes, tag: str) -> str:
        super().replace(key, content, tag)
        raise Conflict(key, self.name)


class Killed(BaseException):
    """The process is gone: nothing that handles errors may see this."""


class Killing(FolderStore):
    """Ends the process just before its ``step``-th write."""

    def __init__(self, folder: Path, step: int) -> None:
        super().__init__(folder)
        self.left = step

    def _count(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise Killed

    def create(self, key: str, content: bytes) -> str:
        self._count()
        return super().create(key, content)

    def replace(self, key: str, content: bytes, tag: str) -> str:
        self._count()
        return super().replace(key, content, tag)
