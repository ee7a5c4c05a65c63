"""Clouds: one folder each, behind one protocol.

A cloud's folder is a package with a module-level ``cloud`` that satisfies ``Cloud``, and the templates
``build.pkr.hcl.j2`` and ``plugins.pkr.hcl.j2`` (the latter is rendered for Packer 1.7 and newer). Nothing
outside the folder asks which cloud it is; the cloud's SDK is imported only inside it. The values that go to
and fro are in ``model.py``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from images.clouds.model import (
    Base,
    BuildRequest,
    Context,
    Image,
    Inspection,
    LaunchRequest,
    Note,
    Placement,
    Refusal,
    Removable,
    Scope,
)
from images.errors import UserError
from images.lock import Lock
from images.settings import Settings
from images.spec import Loaded


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
    """What the pipeline asks of a cloud. ``defaults.Defaults`` has answers for what not every cloud has."""

    name: str
    #: The pydantic model of the spec's section for this cloud.
    section: type[Any]
    #: The pydantic model of the site's settings for this cloud.
    site: type[Any]
    #: The folder with the two templates.
    folder: Path
    #: Whether the template writes the build machine's host key to ``known_hosts`` before anything connects.
    knows_host_keys: bool

    @property
    def programs(self) -> Mapping[str, str]:
        """Programs a build needs on the operator's machine, with the Debian package of each."""

    def architectures(self, loaded: Loaded) -> Sequence[str]:
        """The spec's architectures that can be built here."""

    def missing_credentials(self, settings: Settings) -> list[str]:
        """What is missing before a build can start and where it goes, a line each; empty: nothing is."""

    def choose_accelerator(self, wanted: str | None) -> tuple[str, str]:
        """What runs the build machine, and one line that says why. ``wanted`` is ``--accel``."""

    def resolve(self, loaded: Loaded, arch: str, *, settings: Settings, note: Note) -> Lock:
        """Asks the archives for the exact versions behind the spec, and the cloud for its base image."""

    def base_id(self, loaded: Loaded, lock: Lock) -> str:
        """Identity of the base image, known without making or fetching it."""

    def prepare_base(self, loaded: Loaded, lock: Lock, *, settings: Settings, note: Note) -> Base:
        """The base image of the lock, made or fetched when it is not there."""

    def render_context(self, loaded: Loaded, lock: Lock) -> Mapping[str, Any]:
        """What the cloud's template needs beyond spec and lock. Pure."""

    def placeholders(self, file: Path) -> dict[str, Any]:
        """Values of the template's variables, good enough for ``packer validate``. ``file`` exists."""

    def packer_variables(self, base: Base, request: BuildRequest) -> dict[str, Any]:
        """Values of this cloud's template variables that differ from build to build."""

    def build_resources(self, context: Context, *, keep: bool) -> AbstractContextManager[Mapping[str, Any]]:
        """What a build machine needs in the cloud before Packer starts, tagged as the build's: variables of
        the template. Gone when the context ends, unless it ends by an error and ``keep`` is set."""

    def placements(self, context: Context) -> Sequence[Placement]:
        """Ways to get a build machine, tried in this order as long as the refusal is ``capacity``."""

    def refusal(self, errors: Sequence[str]) -> Refusal | None:
        """What Packer's errors mean, when the cloud refused; None when it is something else."""

    def unreachable(self, context: Context) -> str | None:
        """Why the cloud's API cannot be reached now; None when it can. Called while a build runs."""

    def capture(
        self, artifacts: Sequence[str], context: Context, *, work: Path, name: str, note: Note
    ) -> Image:
        """Turns Packer's artifact into the image that is gated and published: there, and as asked for."""

    def inspect(self, image: Image, *, work: Path, needles: Mapping[str, bytes], note: Note) -> Inspection:
        """Looks at the captured disk from outside, without booting it."""

    def launch(self, image: Image, request: LaunchRequest) -> AbstractContextManager[Machine]:
        """Boots a machine from the image; it is gone when the context ends."""

    def running(self, scope: Scope) -> bool:
        """Whether a machine of the build ``scope.only`` still runs."""

    def first_boots(self) -> Sequence[str]:
        """Names of the separate first boots that the gate on the capture makes: two or more, because what
        two machines must not share is compared. None ends in ``-reboot``: the first is also rebooted."""

    def image_state(self, image_id: str, region: str, settings: Settings) -> str:
        """``available``, ``pending``, ``failed`` or ``missing``, as the consumer sees it."""

    def published(self, image_id: str, region: str, release: str, settings: Settings) -> None:
        """The image is in the manifest now: whatever protects it from a sweep is set."""

    def regions(self, loaded: Loaded) -> Sequence[str]:
        """The regions the spec wants the image in, the one where it is built first."""

    def copy(
        self, image: Image, region: str, context: Context, *, note: Note, begun: Callable[[str], None]
    ) -> Image:
        """Copies the image to another region and returns when it can be launched there. ``begun`` is called
        with the copy's id as soon as it has one. Doing it again after it was interrupted finishes the copy
        that was begun. Raises ``UserError``."""

    def share(self, image_id: str, region: str, accounts: Sequence[str], settings: Settings) -> None:
        """Lets other accounts launch the image, and verifies that it is so. Raises ``UserError``."""

    def delete(self, image_id: str, region: str, settings: Settings) -> None:
        """Deletes an image with all that belongs to it. One that is gone already is no error."""

    def leftovers(self, scope: Scope) -> list[Removable]:
        """What dead builds left in the cloud. Raises ``UserError`` when the cloud cannot be asked."""

    def how_to_boot(self, image: Image) -> str:
        """A command or sentence that tells a person how to boot the image."""


def names() -> list[str]:
    """The clouds that are here."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def load(name: str) -> Cloud:
    """The cloud ``name``. Raises ``UserError`` when there is no such folder."""
    if name not in names():
        raise UserError(f"no cloud {name!r}", hint=f"there are: {', '.join(names())}")
    cloud: Cloud = importlib.import_module(f"{__name__}.{name}").cloud
    return cloud
