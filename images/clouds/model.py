"""The values that pipeline and clouds hand to each other."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from images.settings import Settings
from images.spec import Loaded
from images.sshkey import KeyPair

Note = Callable[[str], None]


@dataclass(frozen=True)
class Base:
    """The image a build starts from. ``artifact`` is what the template gets: an id, or a disk's path."""

    id: str
    artifact: str
    sha256: str | None = None
    name: str = ""


@dataclass(frozen=True)
class Image:
    """A captured image. ``id`` is what a provisioner passes to the cloud; locally it is the disk's path."""

    id: str
    region: str
    name: str
    sha256: str | None = None
    size: int | None = None
    format: str | None = None


@dataclass(frozen=True)
class Context:
    """The build that asks for something. ``expires`` (Unix time, seconds) is when its machines may be ended
    by anybody; what a cloud can tag carries ``build_id`` and ``expires``."""

    build_id: str
    loaded: Loaded
    arch: str
    settings: Settings
    expires: float

    @property
    def tags(self) -> dict[str, str]:
        """What everything that the build makes is tagged with, where the cloud has tags."""
        moment = datetime.datetime.fromtimestamp(self.expires, datetime.UTC)
        return {
            "gpu-image:build-id": self.build_id,
            "gpu-image:expires": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "gpu-image:family": self.loaded.spec.family,
        }


@dataclass(frozen=True)
class BuildRequest:
    """The build machine that Packer is to make. ``key`` may log in as ``user``; ``work`` is the build's
    folder, ``temporary`` goes with the build."""

    context: Context
    work: Path
    temporary: Path
    key: KeyPair
    user: str
    hostname: str
    accelerator: str

    @property
    def known_hosts(self) -> Path:
        """Where the build machine's host key goes, for Ansible, the gate and ``inv ssh``."""
        return self.temporary / "known_hosts"


@dataclass(frozen=True)
class LaunchRequest:
    """A machine to boot from an image: ``public_key`` may log in as ``user``; both belong to the build.

    With ``outlive`` the machine may be left running, so it must not end when we do. Whoever waits for it
    gives up once ``cancelled`` is set."""

    name: str
    context: Context
    user: str
    private_key: Path
    public_key: str
    evidence: Path
    accelerator: str
    outlive: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def build_id(self) -> str:
        """The build it belongs to."""
        return self.context.build_id


@dataclass(frozen=True)
class Placement:
    """One way to get a build machine: ``name`` for people, ``variables`` of the template."""

    name: str
    variables: Mapping[str, Any]


@dataclass(frozen=True)
class Refusal:
    """Why a cloud gave no machine. After ``capacity`` the next placement is tried; the others end it."""

    kind: Literal["capacity", "quota", "credentials", "permission"]
    message: str
    hint: str


@dataclass(frozen=True)
class Removable:
    """Something that may go; ``remove`` deletes it."""

    kind: str
    name: str
    reason: str
    remove: Callable[[], object] = field(repr=False)


@dataclass(frozen=True)
class Scope:
    """Which leftovers are asked for.

    ``live`` and ``dead`` are build ids whose process is known to run, or known to be gone; whoever is in
    neither is judged by the expiry it is tagged with, else by age. ``names`` are untagged names that dead
    builds used, ``keep`` the images that the manifest names. ``anybodys``: also what Packer made and did not
    tag, old enough to be nobody's, ours or not. With ``only`` nothing but that build's.
    """

    settings: Settings
    keep: Collection[str]
    live: Collection[str] = ()
    dead: Collection[str] = ()
    names: Collection[str] = ()
    anybodys: bool = False
    only: str | None = None


@dataclass(frozen=True)
class Inspection:
    """What was found on the captured disk from outside. ``root`` has the extracted files; ``found`` are the
    needles that are on the disk, with byte offsets. Where a cloud cannot look, that one is None, the checks
    that need it are not_run, and ``not_run`` is their reason."""

    root: Path | None
    found: Mapping[str, int] | None
    not_run: str = ""
