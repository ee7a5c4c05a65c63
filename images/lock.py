"""The lock: the exact versions behind a spec, for one image, cloud and architecture.

A lock is resolved by asking the archives (``inv lock``) and never built by concatenation: of two packages
of one driver one ends in ``-0ubuntu1``, the other in ``-1``. A cloud's lock is committed; the local one is
git-ignored, because a distribution archive drops old kernels.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from images.errors import UserError
from images.spec import Loaded, digest_of
from images.yaml_source import Strict

LOCKS = Path(__file__).parent / "locks"
SCHEMA: Literal["gpu-image/lock/v1"] = "gpu-image/lock/v1"


class LockedPackage(Strict):
    """One package as the archive has it. ``version`` is the full Debian version string."""

    name: str
    version: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(gt=0, description="bytes")
    file: str = Field(description="path below the archive's root")


class Index(Strict):
    """An archive index that the resolver saw."""

    suite: str
    date: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class LockedKernel(Strict):
    """The kernel: ``release`` is what ``uname -r`` must print."""

    release: str
    packages: list[LockedPackage] = Field(min_length=1)


class BaseImage(Strict):
    """The image a build starts from: an id in a cloud, or null where we bootstrap it ourselves."""

    id: str | None = None
    name: str


class Lock(Strict):
    """Everything a build downloads, by version and digest."""

    schema_: Literal["gpu-image/lock/v1"] = Field(default=SCHEMA, alias="schema")
    origin: Literal["resolved", "fixture"]
    image: str
    cloud: str
    arch: str
    resolved: str = Field(description="UTC time, ISO 8601")
    inputs: str = Field(description="digest of the parts of the spec that were resolved")
    indexes: list[Index]
    base: BaseImage
    kernel: LockedKernel

    model_config = Strict.model_config | {"populate_by_name": True}

    @property
    def digest(self) -> str:
        """Identity of the lock's content; when it was resolved does not count."""
        data = self.model_dump(mode="json", by_alias=True)
        del data["resolved"]
        return digest_of(data)


def inputs_digest(loaded: Loaded, cloud: str, arch: str) -> str:
    """Digest of what a lock depends on in a spec: when it differs, the lock is out of date."""
    spec = loaded.spec
    section = spec.clouds.get(cloud, {})
    return digest_of(
        {
            "os": spec.os.model_dump(mode="json"),
            "kernel": spec.kernel.model_dump(mode="json"),
            "arch": arch,
            "section": {key: section[key] for key in ("base", "kernel_package", "region") if key in section},
        }
    )


def path_for(image: str, cloud: str, arch: str, folder: Path = LOCKS) -> Path:
    """Where the lock of an image stands."""
    return folder / f"{image}.{cloud}.{arch}.json"


def read(path: Path) -> Lock:
    """Reads a lock. Raises ``UserError`` when it is missing or not a lock."""
    try:
        return Lock.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist", hint="resolve it with ./inv lock --cloud=CLOUD") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path} is not a lock this version reads: {where}: {first['msg']}",
            hint="resolve it again with ./inv lock --cloud=CLOUD",
        ) from None


def write(lock: Lock, path: Path) -> None:
    """Writes a lock as sorted JSON, whole or not at all."""
    text = json.dumps(lock.model_dump(mode="json", by_alias=True), indent=2, sort_keys=True) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def now() -> str:
    """The time as locks and releases write it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
