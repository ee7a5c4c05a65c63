"""A toy cloud: a stand-in that a test puts into a copy of the checkout, to see that a folder is enough.

It renders and is asked for everything; it has no machines, and says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from images import lock as locks
from images.clouds import Machine
from images.clouds.defaults import Defaults
from images.clouds.model import Base, BuildRequest, Context, Image, LaunchRequest, Note, Removable, Scope
from images.errors import ExitCode, UserError
from images.lock import Lock
from images.settings import Settings
from images.spec import Loaded
from images.yaml_source import Strict


class Section(Strict):
    """``clouds.toy`` of a spec."""

    base: str


class ToyCloud(Defaults):
    """See the module."""

    name = "toy"
    section = Section
    folder = Path(__file__).parent

    def resolve(self, loaded: Loaded, arch: str, *, settings: Settings, note: Note) -> Lock:
        note("asking nobody")
        package = locks.LockedPackage(
            name="linux-image-toy", version="1", sha256=hashlib.sha256(b"").hexdigest(), size=1, file="toy"
        )
        return Lock(
            origin="resolved",
            image=loaded.spec.family,
            cloud=self.name,
            arch=arch,
            resolved=locks.now(),
            inputs=locks.inputs_digest(loaded, self.name, arch),
            indexes=[],
            base=locks.BaseImage(id="toy-1", name=loaded.section(self.name, Section).base),
            kernel=locks.LockedKernel(release="1-toy", packages=[package]),
        )

    def base_id(self, loaded: Loaded, lock: Lock) -> str:
        return str(lock.base.id)

    def prepare_base(self, loaded: Loaded, lock: Lock, *, settings: Settings, note: Note) -> Base:
        return Base(id="toy-1", artifact="toy-1", name="a toy")

    def render_context(self, loaded: Loaded, lock: Lock) -> Mapping[str, Any]:
        return {}

    def placeholders(self, file: Path) -> dict[str, Any]:
        return {}

    def packer_variables(self, base: Base, request: BuildRequest) -> dict[str, Any]:
        raise UserError("the toy has no machines", code=ExitCode.FAILED)

    def capture(
        self, artifacts: Sequence[str], context: Context, *, work: Path, name: str, note: Note
    ) -> Image:
        raise NotImplementedError

    @contextmanager
    def launch(self, image: Image, request: LaunchRequest) -> Iterator[Machine]:
        raise NotImplementedError
        yield

    def first_boots(self) -> Sequence[str]:
        return ("one", "two")

    def image_state(self, image_id: str, region: str, settings: Settings) -> str:
        return "missing"

    def delete(self, image_id: str, region: str, settings: Settings) -> None:
        """There is nothing."""

    def leftovers(self, scope: Scope) -> list[Removable]:
        if scope.only:
            return []
        return [Removable("block", "red", "it lies about", lambda: print("the red block is gone"))]

    def how_to_boot(self, image: Image) -> str:
        return "with fantasy"


cloud = ToyCloud()
