"""The repositories, built once a session, and an apt that knows them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import apt_fixture
from tests.apt_fixture import Options, apt, catalog
from tests.gpu_sim.fixtures import gpu_libraries

UBUNTU = "compute/cuda/repos/ubuntu2404/x86_64"
DEBIAN = "compute/cuda/repos/debian13/x86_64"
TOOLKIT = "libnvidia-container/stable/deb/amd64"

__all__ = ["gpu_libraries"]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apt_fixture.Served]:
    """The repositories in order, for amd64; without the oldest driver, a quarter of the packages."""
    if missing := [tool for tool in ("dpkg-deb", "gpg", "apt-get") if not shutil.which(tool)]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    root = tmp_path_factory.mktemp("apt") / "repositories"
    apt_fixture.build(root, Options(archs=("amd64",), without=("*=580.82.07*",)))
    with apt_fixture.serve(root) as served:
        yield served


@pytest.fixture(scope="session")
def updated(
    served: apt_fixture.Served, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], apt.Apt]:
    """An apt that has read one repository's index, made once for each."""
    made: dict[str, apt.Apt] = {}

    def get(path: str) -> apt.Apt:
        if path not in made:
            root = tmp_path_factory.mktemp("updated") / "apt"
            made[path] = apt.make(root, [served.uri(path)], served.fixture.keyring)
            done = made[path].run("apt-get", "update")
            assert done.returncode == 0, done.stderr
        return made[path]

    return get


@pytest.fixture
def ubuntu(updated: Callable[[str], apt.Apt]) -> Iterator[apt.Apt]:
    """The repository for Ubuntu, without preferences and with nothing of it installed."""
    yield from _clean(updated(UBUNTU))


@pytest.fixture
def debian(updated: Callable[[str], apt.Apt]) -> Iterator[apt.Apt]:
    """The repository for Debian, likewise."""
    yield from _clean(updated(DEBIAN))


def _clean(known: apt.Apt) -> Iterator[apt.Apt]:
    yield known
    known.prefer("")
    known.installed({})


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Callable[..., tuple[apt.Apt, apt_fixture.Served]]]:
    """Builds and serves a small repository with options; returns an apt for it, not yet updated."""
    with contextlib.ExitStack() as stack:

        def make(path: str, **options: object) -> tuple[apt.Apt, apt_fixture.Served]:
            known = next(r for r in catalog.repositories() if r.path == path)
            chosen = Options(sets=(known.name,), archs=(known.arch,), **options)  # type: ignore[arg-type]
            apt_fixture.build(tmp_path / "broken", chosen)
            served = stack.enter_context(apt_fixture.serve(tmp_path / "broken"))
            return apt.make(tmp_path / "apt", [served.uri(path)], served.fixture.keyring), served

        yield make
