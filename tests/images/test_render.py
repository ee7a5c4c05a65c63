"""Rendering is pure: golden files, the same bytes twice, and Packer itself accepts the result."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from images import clouds, lock, matrix, packer, render, spec
from images.errors import UserError
from images.lock import Lock

GOLDEN = Path(__file__).parent.parent / "golden"
LOCKS = Path(__file__).parent.parent / "fixtures" / "locks"


def fixture_lock(image: str, cloud: str = "local", arch: str = "amd64") -> Lock:
    return lock.read(LOCKS / f"{image}.{cloud}.{arch}.json")


def rendered(
    image: str, version: render.Version = (1, 6, 6), cloud: str = "local", arch: str = "amd64"
) -> dict[str, str]:
    found = fixture_lock(image, cloud, arch)
    return render.render(clouds.load(cloud), spec.load(image), found, packer_version=version)


#: Every image, cloud and architecture that has a lock among the fixtures: one that has none is in no test.
ALL = [tuple(path.name.removesuffix(".json").split(".")) for path in sorted(LOCKS.glob("*.json"))]
everything = pytest.mark.parametrize(("image", "cloud", "arch"), ALL, ids=".".join)


def test_every_build_of_the_catalog_is_here() -> None:
    cells = [*matrix.cells(), *matrix.cells(cloud="local")]
    assert sorted((cell.image, cell.cloud, cell.arch) for cell in cells) == ALL


@everything
def test_golden(image: str, cloud: str, arch: str) -> None:
    """To accept a wanted change: ./inv render --cloud=CLOUD --image=IMAGE --arch=ARCH
    --lock=tests/fixtures/locks/... --packer-version=1.6.6 --out=tests/golden/CLOUD/IMAGE.ARCH, and read the
    diff."""
    folder = GOLDEN / cloud / f"{image}.{arch}"
    assert {path.name: path.read_text() for path in folder.iterdir()} == rendered(
        image, cloud=cloud, arch=arch
    )


@pytest.mark.parametrize("cloud", ["local", "aws"])
@pytest.mark.parametrize("version", [(1, 6, 6), (1, 9, 5), (1, 14, 2)])
def test_same_bytes_twice(version: render.Version, cloud: str) -> None:
    assert rendered("gpu-debian", version, cloud) == rendered("gpu-debian", version, cloud)


@pytest.mark.parametrize("cloud", ["local", "aws"])
def test_plugins_only_where_packer_knows_them(cloud: str) -> None:
    assert "plugins.pkr.hcl" not in rendered("gpu-debian", (1, 6, 6), cloud)
    assert "required_plugins" in rendered("gpu-debian", (1, 7, 0), cloud)["plugins.pkr.hcl"]
    assert "required_plugins" not in rendered("gpu-debian", (1, 7, 0), cloud)["build.pkr.hcl"]


def test_what_packer_1_6_does_not_know_is_for_newer_ones_only() -> None:
    """`packer validate` of 1.6.6 calls each "Unsupported"; docs of the builder:
    https://developer.hashicorp.com/packer/integrations/hashicorp/amazon/latest/components/builder/ebs"""
    for words in ("imds_support", "metadata_options"):
        assert words not in rendered("gpu-base", (1, 6, 6), "aws")["build.pkr.hcl"]
        assert words in rendered("gpu-base", (1, 7, 0), "aws")["build.pkr.hcl"]


def test_nothing_of_a_site_or_account_is_in_a_rendering() -> None:
    text = rendered("gpu-base", cloud="aws")["build.pkr.hcl"]
    for word in ("access_key", "secret", "0.0.0.0", "token", "profile"):
        assert word not in text


def test_rendering_again_for_an_old_packer_removes_the_plugins(tmp_path: Path) -> None:
    render.write(rendered("gpu-debian", (1, 14, 0)), tmp_path)
    render.write(rendered("gpu-debian", (1, 6, 6)), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build.pkr.hcl", "vars.json"]


@everything
def test_packer_accepts_it(
    image: str, cloud: str, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any credentials."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    render.write(rendered(image, cloud=cloud, arch=arch), tmp_path / "template")
    packer.validate_rendering(tmp_path / "template", clouds.load(cloud))


def test_packer_refuses_a_broken_one(tmp_path: Path) -> None:
    files = rendered("gpu-debian")
    files["build.pkr.hcl"] = files["build.pkr.hcl"].replace("headless ", "headles ")
    render.write(files, tmp_path)
    with pytest.raises(UserError, match="headles"):
        packer.validate_rendering(tmp_path, clouds.load("local"))


@pytest.mark.parametrize("version", [(1, 6, 6), (1, 14, 0)])
@everything
def test_formatted_as_packer_formats(
    image: str, cloud: str, arch: str, version: render.Version, tmp_path: Path
) -> None:
    render.write(rendered(image, version, cloud, arch), tmp_path)
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
