"""A site's settings: ``invoke.yaml`` (defaults), ``site.yaml`` (a site's own), ``INVOKE_GPU_IMAGE_*``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from images import simulation, yaml_source
from images.yaml_source import Strict

CHECKOUT = Path(__file__).resolve().parent.parent


class Retention(Strict):
    """How much ``inv clean`` keeps. A published image that a channel names is always kept."""

    images: int = Field(default=3, ge=0, description="newest published images of a family")
    failed_builds: int = Field(default=5, ge=0, description="folders of failed builds")
    bases: int = Field(default=2, ge=0, description="base disks in the cache")


class Site(Strict):
    """What a site adds to every image it builds."""

    packages: list[str] = Field(default=[])
    roles: list[str] = Field(default=[], description="paths of extra Ansible roles")
    ca_certificates: list[str] = Field(default=[], description="paths of PEM files to trust in the image")
    apt_mirror: str | None = Field(default=None, description="mirror used by the build")
    apt_proxy: str | None = Field(default=None, description="used during the build, never in the image")
    keep_apt_mirror: bool = Field(default=False, description="leave apt_mirror in the image")


class Settings(Strict):
    """All settings; paths are absolute."""

    model_config = Strict.model_config | {"validate_default": True}

    default_image: dict[str, str] = Field(default={"local": "gpu-debian", "*": "gpu-base"})
    manifest: Path = Path("manifest")
    build_dir: Path = Path("build")
    cache: Path = Path("~/.cache/gpu-image")
    locks: Path = Path("images/locks")
    keep_hours: int = Field(default=8, ge=1, description="expiry of a machine kept by --on-error=keep")
    build_hours: int = Field(
        default=4, ge=1, le=48, description="a cloud's machines end themselves so long after the build began"
    )
    retention: Retention = Retention()
    site: Site = Site()
    clouds: dict[str, dict[str, Any]] = Field(default={}, description="a site's own part of each cloud")

    @field_validator("manifest", mode="before")
    @classmethod
    def _folder(cls, value: Any) -> Any:
        if "://" in str(value):
            raise ValueError("a manifest is a folder; object stores cannot be used yet")
        return value

    @field_validator("manifest", "build_dir", "cache", "locks")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return (CHECKOUT / value.expanduser()).absolute()

    def cloud(self, name: str, model: type[yaml_source.Model]) -> yaml_source.Model:
        """What the site says of one cloud, validated by the cloud's own model."""
        source = yaml_source.Source("settings", {})
        return yaml_source.validate(
            source, model, data=self.clouds.get(name, {}), prefix=("gpu_image", "clouds", name)
        )

    def image_for(self, cloud: str) -> str:
        """The image built for ``cloud`` when ``--image`` is not given; in a simulated one the local cloud's,
        since it needs nothing but the distribution's mirror."""
        if simulation.name():
            cloud = "local"
        return self.default_image.get(cloud, self.default_image["*"])


def load(config: Any, *, site_file: Path = CHECKOUT / "site.yaml") -> Settings:
    """The settings of this site. ``config`` is Invoke's (``context.config``).

    Order, later wins: model defaults, ``invoke.yaml``, ``site.yaml``, ``INVOKE_GPU_IMAGE_*`` variables
    (which Invoke has already merged into ``config``). Raises ``UserError`` with file and line.
    """
    data = _plain(config.get("gpu_image", {}))
    source = yaml_source.Source("invoke.yaml", data)
    if site_file.exists():
        site = yaml_source.read(site_file)
        for path, value in _leaves(site.data, ()):
            # Invoke reads a variable only where it knows the key.
            merged = _has(data, path) and "INVOKE_GPU_IMAGE_" + "_".join(path).upper() in os.environ
            if not merged:
                _assign(data, path, value)
        source.places = site.places
    return yaml_source.validate(source, Settings)


def _plain(config: Any) -> Any:
    """Invoke's DataProxy objects as plain dicts."""
    if hasattr(config, "items"):
        return {key: _plain(value) for key, value in config.items()}
    return config


def _leaves(data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, str(key)))
        else:
            yield (*path, str(key)), value


def _has(data: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    for key in path[:-1]:
        data = data.get(key, {})
    return path[-1] in data


def _assign(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data.setdefault(key, {})
    data[path[-1]] = value
