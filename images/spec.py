"""The spec: what people edit, one YAML file an image in ``images/catalog/``.

The same spec gives the same operating system, driver and checks wherever it is built. What differs by
cloud stands below ``clouds`` and is read by that cloud's own model (``Cloud.section``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from images import yaml_source
from images.errors import UserError
from images.yaml_source import Strict

CATALOG = Path(__file__).parent / "catalog"

Arch = Literal["amd64", "arm64"]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{1,40}$")]
PackageName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]+$")]


class Os(Strict):
    """The distribution and its release."""

    id: Literal["debian", "ubuntu"]
    version: str = Field(pattern=r"^[0-9]+(\.[0-9]+)?$", description="as in os-release: 13, 24.04")
    codename: str = Field(pattern=r"^[a-z]+$", description="suite of the archive: trixie, noble")


class Kernel(Strict):
    """The kernel series; the flavour is the cloud's own, the exact ABI stands in the lock."""

    series: str = Field(pattern=r"^[0-9]+\.[0-9]+$", description="for example 6.12")
    release: str | None = Field(default=None, description="pins one ABI, as uname -r prints it")


class Driver(Strict):
    """The NVIDIA driver that the image asks for."""

    version: str = Field(pattern=r"^[0-9]+(\.[0-9]+){1,2}$", description="the upstream version, 580.95.05")
    source: Literal["nvidia", "debian"]
    modules: Literal["open", "proprietary"]


class Component(Strict):
    """A package beside the driver: DCGM, the container toolkit."""

    version: str


class Spec(Strict):
    """One image. ``clouds`` holds each cloud's own section, not yet validated."""

    family: Name
    description: str
    arch: list[Arch] = Field(min_length=1)
    os: Os
    kernel: Kernel
    driver: Driver
    dcgm: Component | None = None
    container_toolkit: Component | None = None
    gpu_families: list[Name] = Field(description="families the image is intended for")
    disk_gib: int = Field(ge=2, le=256, description="virtual size of the image's disk, GiB")
    min_free_mib: int = Field(default=512, ge=0, description="free space the gate demands, MiB")
    packages: list[PackageName] = Field(default=[], description="extra packages of the distribution")
    clouds: dict[Name, dict[str, Any]]


@dataclass(frozen=True)
class Loaded:
    """A validated spec, where it came from, and what ``--set`` changed in it."""

    spec: Spec
    source: yaml_source.Source
    overrides: tuple[str, ...] = ()
    digest: str = field(default="")

    def section(self, cloud: str, model: type[yaml_source.Model]) -> yaml_source.Model:
        """The validated section of ``cloud``. Raises ``UserError`` when the spec has none."""
        if cloud not in self.spec.clouds:
            raise UserError(
                f"{self.source.name}: {self.spec.family} has no section for cloud {cloud!r}",
                hint=f"it is made for: {', '.join(sorted(self.spec.clouds))}",
            )
        return yaml_source.validate(
            self.source, model, data=self.spec.clouds[cloud], prefix=("clouds", cloud)
        )


def names(catalog: Path = CATALOG) -> list[str]:
    """The images in the catalog."""
    return sorted(path.stem for path in catalog.glob("*.yaml"))


def load(image: str, *, overrides: Sequence[str] = (), catalog: Path = CATALOG) -> Loaded:
    """The spec of ``image``, a name in the catalog or the path of a spec file.

    ``overrides`` are ``key=value`` assignments, recorded in the release. Raises ``UserError`` with file,
    line and a hint for anything that is wrong.
    """
    path = Path(image) if image.endswith((".yaml", ".yml")) else catalog / f"{image}.yaml"
    if not path.exists():
        raise UserError(f"no image {image!r} in the catalog", hint=f"there are: {', '.join(names(catalog))}")
    source = yaml_source.read(path)
    for assignment in overrides:
        source.override(assignment)
    spec = yaml_source.validate(source, Spec)
    if path.stem != spec.family:
        raise UserError(
            f"{source.place(('family',))}: family {spec.family!r} stands in the file {path.name}",
            hint="a spec's file is named after its family",
        )
    return Loaded(spec, source, tuple(overrides), digest_of(spec))


def digest_of(model: BaseModel | dict[str, Any]) -> str:
    """``sha256:…`` over the sorted JSON of a model: the same content, the same digest."""
    data = model.model_dump(mode="json") if isinstance(model, BaseModel) else model
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
