"""Answers of a cloud that has no accounts, regions or quotas. An adaptor inherits what fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from images import builds
from images.clouds.model import Context, Image, Inspection, Note, Placement, Refusal, Removable, Scope
from images.errors import UserError
from images.settings import Settings
from images.spec import Loaded
from images.yaml_source import Strict


class Nothing(Strict):
    """A site has nothing to say of this cloud."""


class Defaults:
    """Base class of adaptors; ``Cloud`` in ``images/clouds`` says what each method is."""

    name: str
    site: type[Any] = Nothing
    knows_host_keys = False

    @property
    def programs(self) -> Mapping[str, str]:
        """None beyond those of every cloud."""
        return {}

    def architectures(self, loaded: Loaded) -> Sequence[str]:
        """All of the spec's."""
        return loaded.spec.arch

    def missing_credentials(self, settings: Settings) -> list[str]:
        """None are needed."""
        return []

    def choose_accelerator(self, wanted: str | None) -> tuple[str, str]:
        """The cloud's machines are what they are."""
        if wanted:
            raise UserError(
                f"--accel={wanted}: the cloud {self.name} chooses by itself what runs its machines"
            )
        return "none", f"none: machines run in the cloud {self.name}"

    def build_resources(self, context: Context, *, keep: bool) -> AbstractContextManager[Mapping[str, Any]]:
        """None."""
        return nullcontext({})

    def placements(self, context: Context) -> Sequence[Placement]:
        """One, without variables."""
        return [Placement(self.name, {})]

    def refusal(self, errors: Sequence[str]) -> Refusal | None:
        """It never refuses."""
        return None

    def unreachable(self, context: Context) -> str | None:
        """It has no API."""
        return None

    def inspect(self, image: Image, *, work: Path, needles: Mapping[str, bytes], note: Note) -> Inspection:
        """It cannot look."""
        return Inspection(None, None, not_run=f"the cloud {self.name} gives no access to an image's disk")

    def running(self, scope: Scope) -> bool:
        """Whatever runs, runs here."""
        return bool(scope.only and builds.processes(scope.only))

    def published(self, image_id: str, region: str, release: str, settings: Settings) -> None:
        """Nothing to do."""

    def regions(self, loaded: Loaded) -> Sequence[str]:
        """One, named after the cloud."""
        return [self.name]

    def copy(
        self, image: Image, region: str, context: Context, *, note: Note, begun: Callable[[str], None]
    ) -> Image:
        """There is nowhere to copy to."""
        raise UserError(f"the cloud {self.name} has no region {region}")

    def share(self, image_id: str, region: str, accounts: Sequence[str], settings: Settings) -> None:
        """There is nobody to share with."""
        raise UserError(f"the cloud {self.name} has no accounts to share an image with")

    def leftovers(self, scope: Scope) -> list[Removable]:
        """Nothing outside this machine."""
        return []
