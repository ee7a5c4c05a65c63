"""``clouds.aws`` of a spec, and of a site's settings."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from images.errors import UserError
from images.settings import Settings
from images.spec import Arch, Loaded
from images.yaml_source import Strict

NAME = "aws"

RegionName = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$")]
InstanceType = Annotated[str, Field(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$")]


def _network(value: str) -> str:
    network = ipaddress.ip_network(value)
    if network.prefixlen == 0:
        raise ValueError("the whole internet; give the addresses that the build comes from")
    return value


class BaseImage(Strict):
    """The image a build starts from: the newest of this owner with this name when the lock is resolved.
    ``{arch}`` in the name stands for amd64 or arm64."""

    owner: str = Field(pattern=r"^([0-9]{12}|amazon|self)$", description="account id of the publisher")
    name: str = Field(min_length=3)


class Machines(Strict):
    """Machine types in the order in which they are tried, each in all ``zones``; no zone: any."""

    types: list[InstanceType] = Field(min_length=1)
    zones: list[str] = Field(default=[])


class Volume(Strict):
    """The root volume (gp3) of the build machine, which becomes the image's."""

    iops: int = Field(default=3000, ge=3000, le=16000)
    throughput: int = Field(default=250, ge=125, le=1000, description="MiB/s")
    encrypted: bool = False


class Section(Strict):
    """``clouds.aws`` of a spec. ``gate_machine`` has the GPU; without it no GPU is ever seen by a build."""

    region: RegionName = Field(description="where the image is built")
    replicas: list[RegionName] = Field(default=[], description="where it is copied to")
    base: BaseImage
    root_device: str = Field(pattern=r"^/dev/[a-z0-9]+$", description="as the base image names it")
    kernel_package: str = Field(description="meta package of the flavour; {arch} as in the base's name")
    build_machine: dict[Arch, Machines] = Field(min_length=1)
    gate_machine: dict[Arch, Machines] = Field(default={})
    volume: Volume = Volume()
    boot_mode: Literal["uefi", "uefi-preferred"] = "uefi-preferred"

    @model_validator(mode="after")
    def _zones_are_of_the_region(self) -> Section:
        for machines in (*self.build_machine.values(), *self.gate_machine.values()):
            for zone in machines.zones:
                if not zone.startswith(self.region):
                    raise ValueError(f"the zone {zone} is not in {self.region}")
        if self.region in self.replicas or len(set(self.replicas)) != len(self.replicas):
            raise ValueError("replicas are other regions than the one where it is built, each once")
        return self


class Site(Strict):
    """``clouds.aws`` of the settings: what belongs to an account and not to an image."""

    source_cidr: Annotated[str, AfterValidator(_network)] | None = Field(
        default=None, description="the only addresses that reach the machines by SSH"
    )
    subnet_id: str | None = Field(default=None, pattern=r"^subnet-[0-9a-f]+$")
    ssh_interface: Literal["public_ip", "private_ip"] = "public_ip"
    poll_seconds: float = Field(default=15, gt=0, description="between two looks at the API")


def section_of(loaded: Loaded) -> Section:
    """The spec's section."""
    return loaded.section(NAME, Section)


def site_of(settings: Settings) -> Site:
    """The site's part."""
    return settings.cloud(NAME, Site)


def machines_for(loaded: Loaded, machines: Mapping[Arch, Machines], arch: str, what: str) -> Machines:
    """The machines of one architecture. Raises ``UserError`` when the spec names none."""
    for known, found in machines.items():
        if known == arch:
            return found
    raise UserError(
        f"{loaded.source.place(('clouds', NAME, what))}: no {what} for {arch}",
        hint=f"clouds.{NAME}.{what}.{arch}: {{types: [...]}}",
    )
