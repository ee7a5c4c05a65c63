"""Rendering is pure: golden files, the same bytes twice, and Packer itself accepts the result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from images import clouds, lock, packer, render, spec
from images.errors import UserError
from images.lock import Lock

GOLDEN = Path(__file__).parent.parent / "golden"
LOCKS = Path(__file__).parent.parent / "fixtures" / "locks"


def fixture_lock(image: str) -> Lock:
    return lock.read(LOCKS / f"{image}.local.amd64.json")


def rendered(image: str, version: render.Version = (1, 6, 6)) -> dict[str, str]:
    return render.render(clouds.load("local"), spec.load(image), fixture_lock(image), packer_version=version)


@pytest.mark.parametrize("image", ["gpu-debian", "gpu-base"])
def test_golden(image: str) -> None:
    """To accept a wanted change: ./inv render --cloud=local --image=IMAGE --lock=tests/fixtures/locks/...
    --packer-version=1.6.6 --out=tests/golden/local/IMAGE, and read the diff."""
    folder = GOLDEN / "local" / image
    assert {path.name: path.read_text() for path in folder.iterdir()} == rendered(image)


@pytest.mark.parametrize("version", [(1, 6, 6), (1, 9, 5), (1, 14, 2)])
def test_same_bytes_twice(version: render.Version) -> None:
    assert rendered("gpu-debian", version) == rendered("gpu-debian", version)


def test_plugins_only_where_packer_knows_them() -> None:
    assert "plugins.pkr.hcl" not in rendered("gpu-debian", (1, 6, 6))
    assert "required_plugins" in rendered("gpu-debian", (1, 7, 0))["plugins.pkr.hcl"]
    assert "required_plugins" not in rendered("gpu-debian", (1, 7, 0))["build.pkr.hcl"]


def test_rendering_again_for_an_old_packer_removes_the_plugins(tmp_path: Path) -> None:
    render.write(rendered("gpu-debian", (1, 14, 0)), tmp_path)
    render.write(rendered("gpu-debian", (1, 6, 6)), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build.pkr.hcl", "vars.json"]


@pytest.mark.parametrize("image", ["gpu-debian", "gpu-base"])
def test_packer_accepts_it(image: str, tmp_path: Path) -> None:
    render.write(rendered(image), tmp_path)
    packer.validate_rendering(tmp_path, clouds.load("local"))


def test_packer_refuses_a_broken_one(tmp_path: Path) -> None:
    files = rendered("gpu-debian")
    files["build.pkr.hcl"] = files["build.pkr.hcl"].replace("headless ", "headles ")
    render.write(files, tmp_path)
    with pytest.raises(UserError, match="headles"):
        packer.validate_rendering(tmp_path, clouds.load("local"))


def test_formatted_as_packer_formats(tmp_path: Path) -> None:
    render.write(rendered("gpu-debian", (1, 14, 0)), tmp_path)
    before = {path.name: path.read_text() for path in tmp_path.glob("*.pkr.hcl")}
    assert shutil.which("packer")
    from images import run

    run.run(["packer", "fmt", tmp_path], env=packer.ENVIRONMENT)
    assert {path.name: path.read_text() for path in tmp_path.glob("*.pkr.hcl")} == before


def test_kernel_comes_from_the_lock() -> None:
    variables = json.loads(rendered("gpu-debian")["vars.json"])
    document = json.loads((LOCKS / "gpu-debian.local.amd64.json").read_bytes())
    assert variables["kernel_release"] == document["kernel"]["release"]
    assert variables["kernel_packages"] == {
        package["name"]: package["version"] for package in document["kernel"]["packages"]
    }


def test_lock_of_another_image_is_refused() -> None:
    with pytest.raises(UserError, match="the lock is for gpu-base on local"):
        render.render(
            clouds.load("local"),
            spec.load("gpu-debian"),
            fixture_lock("gpu-base"),
            packer_version=(1, 6, 6),
        )


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", '"a"'), ("${x}", '"$${x}"'), ("%{if}", '"%%{if}"'), ('q"', '"q\\""'), (3, "3"), (["a"], '["a"]')],
)
def test_hcl_literals(value: object, text: str) -> None:
    assert render.hcl(value) == text
