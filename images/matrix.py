"""What there is to build: every image of the catalog, on every cloud its spec names, for every architecture.

CI reads it (``.github/workflows/nightly.yml``): a new spec or cloud section is built without a change to a
workflow.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from invoke.collection import Collection
from invoke.context import Context

from images import clouds, spec
from images.cli import task
from images.errors import ExitCode, UserError

#: Builds on the machine itself, so no job of CI is a cell of it unless somebody asks for it.
LOCAL = "local"


@dataclass(frozen=True, order=True)
class Cell:
    """One build."""

    image: str
    cloud: str
    arch: str


def cells(*, cloud: str | None = None, image: str | None = None, catalog: Path = spec.CATALOG) -> list[Cell]:
    """The builds there are, sorted; those of ``local`` only when ``cloud`` says so.

    Raises ``UserError`` for an image or cloud that does not exist, a spec that is wrong or names a cloud
    without a folder, and, with exit code 3, when there is nothing to build.
    """
    known = clouds.names()
    if cloud is not None and cloud not in known:
        raise UserError(f"no cloud {cloud!r}", hint=f"there are: {', '.join(known)}")
    found = []
    for name in [image] if image else spec.names(catalog):
        loaded = spec.load(name, catalog=catalog)
        for section in loaded.spec.clouds:
            if section not in known:
                raise UserError(
                    f"{loaded.source.place(('clouds', section))}: no cloud {section!r}",
                    hint=f"there are: {', '.join(known)}",
                )
            if section == (cloud or section) and (section != LOCAL or cloud == LOCAL):
                archs = clouds.load(section).architectures(loaded)
                found += [Cell(loaded.spec.family, section, arch) for arch in archs]
    if not found:
        raise UserError(
            f"nothing to build: no spec of {image or 'the catalog'} has a section for "
            f"{cloud or f'a cloud other than {LOCAL}'}",
            hint="docs/adding.md says where a spec names its clouds; --cloud=local asks for local builds",
            code=ExitCode.NOTHING,
        )
    return sorted(set(found))


def as_json(found: list[Cell], *, per_cloud: bool = False) -> str:
    """One line, as GitHub's ``strategy.matrix`` takes it from ``fromJSON``."""
    include = [asdict(cell) for cell in found]
    if per_cloud:
        include = [{"cloud": cloud} for cloud in sorted({cell.cloud for cell in found})]
    return json.dumps({"include": include})


@task(
    help={
        "cloud": "only this cloud; the only way to get cells of local",
        "image": "only this image: a name of images/catalog/, or a spec file",
        "per_cloud": "a cell for each cloud instead of each build",
    }
)
def matrix(c: Context, cloud: str | None = None, image: str | None = None, per_cloud: bool = False) -> None:
    """Print what there is to build, as one line of JSON for the matrix of a GitHub workflow.

    Each image of the catalog for each cloud section of its spec, but local, and each architecture. An empty
    matrix would make GitHub refuse the workflow without naming a cause, so nothing is printed then: stderr
    says why, and the exit code is 3.
    """
    print(as_json(cells(cloud=cloud, image=image), per_cloud=per_cloud))


def collection() -> Collection:
    """These tasks."""
    return Collection(matrix)
