"""Clouds: one folder each, behind one protocol.

A cloud's folder is a package with a module-level ``cloud`` that satisfies ``Cloud``, and the templates
``build.pkr.hcl.j2`` and ``plugins.pkr.hcl.j2`` (the latter is rendered for Packer 1.7 and newer). Nothing
outside the folder asks which cloud it is; the cloud's SDK is imported only inside it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from images.errors import UserError
from images.lock import Lock
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
class LaunchRequest:
    """A machine to boot from an image: ``public_key`` may log in as ``user``; both belong to the build.

    With ``outlive`` the machine may be left running, so it must not end when we do."""

    name: str
    build_id: str
    user: str
    private_key: Path
    public_key: str
    evidence: Path
    accelerator: str
    outlive: bool = False


class Machine(Protocol):
    """A machine booted from a captured image, reachable by SSH with a known host key.

    ``ssh_config`` is an OpenSSH configuration with the host ``vm``; ``disk_bytes`` is its disk's size, more
    than the image's own, so that the gate can see the file system grow. Its console goes to
    ``serial-NAME.log`` in the request's ``evidence``.
    """

    seconds_to_ssh: float
    disk_bytes: int
    ssh_config: Path

    @property
    def description(self) -> str:
        """The machine in words, for the evidence."""

    def reboot(self) -> float:
        """Reboots; returns the seconds until SSH answers with another boot id."""

    def run(self, command: str, *, timeout: float = 60) -> str:
        """Runs a shell command over SSH as the build's user and returns its stdout."""

    def leave_running(self) -> None:
        """Does not end the machine with its context: somebody wants to look at it (``--on-error=keep``)."""


class Cloud(Protocol):
    """What the pipeline asks of a cloud."""

    name: str
    #: The pydantic model of the spec's section for this cloud.
    section: type[Any]
    #: The folder with the two templates.
    folder: Path

    @property
    def programs(self) -> Mapping[str, str]:
        """Programs a build needs on the operator's machine, with the Debian package of each."""

    def missing_credentials(self) -> list[str]:
        """What is missing before a build can start, a line each; empty when nothing is."""

    def choose_accelerator(self, wanted: str | None) -> tuple[str, str]:
        """What runs the build machine, and one line that says why. ``wanted`` is ``--accel``."""

    def resolve(self, loaded: Loaded, arch: str, *, note: Note) -> Lock:
        """Asks the archives for the exact versions behind the spec."""

    def base_id(self, loaded: Loaded, lock: Lock) -> str:
        """Identity of the base image, known without making or fetching it."""

    def prepare_base(self, loaded: Loaded, lock: Lock, *, settings: Settings, note: Note) -> Base:
        """The base image of the lock, made or fetched when it is not there."""

    def render_context(self, loaded: Loaded, lock: Lock) -> Mapping[str, Any]:
        """What the cloud's template needs beyond spec and lock. Pure."""

    def placeholders(self, file: Path) -> dict[str, Any]:
        """Values of the template's variables, good enough for ``packer validate``. ``file`` exists."""

    def packer_variables(
        self,
        base: Base,
        *,
        work: Path,
        temporary: Path,
        key: KeyPair,
        user: str,
        hostname: str,
        accelerator: str,
    ) -> dict[str, Any]:
        """Values of this cloud's template variables that differ from build to build."""

    def capture(self, artifacts: Sequence[str], *, work: Path, name: str, note: Note) -> Image:
        """Turns Packer's artifact into the image that is gated and published."""

    def inspect(self, image: Image, *, work: Path, needles: Mapping[str, bytes], note: Note) -> Inspection:
        """Looks at the captured disk from outside, without booting it."""

    def launch(self, image: Image, request: LaunchRequest) -> AbstractContextManager[Machine]:
        """Boots a machine from the image; it is gone when the context ends."""

    def first_boots(self) -> Sequence[str]:
        """Names of the separate first boots that the gate on the capture makes: two or more, because what
        two machines must not share is compared. None ends in ``-reboot``: the first is also rebooted."""

    def image_state(self, image_id: str, region: str) -> str:
        """``available``, ``missing`` or ``damaged``, as the consumer sees it."""

    def delete(self, image_id: str, region: str) -> None:
        """Deletes an image. One that is gone already is no error."""

    def how_to_boot(self, image: Image) -> str:
        """A command or sentence that tells a person how to boot the image."""


@dataclass(frozen=True)
class Inspection:
    """What was found on the captured disk from outside. ``root`` has the extracted files; ``found`` are the
    needles that are on the disk, with byte offsets. Where a cloud cannot look, that one is None, the checks
    that need it are not_run, and ``not_run`` is their reason."""

    root: Path | None
    found: Mapping[str, int] | None
    not_run: str = ""


def names() -> list[str]:
    """The clouds that are here."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def load(name: str) -> Cloud:
    """The cloud ``name``. Raises ``UserError`` when there is no such folder."""
    if name not in names():
        raise UserError(f"no cloud {name!r}", hint=f"there are: {', '.join(names())}")
    cloud: Cloud = importlib.import_module(f"{__name__}.{name}").cloud
    return cloud
