"""What may go and what must stay: retention by age and by what channels name."""

from __future__ import annotations

from pathlib import Path

import pytest

from images import builds, settings, sweep
from images.errors import UserError
from images.manifest import keys
from images.manifest.publish import publish
from images.manifest.store import open_store
from images.settings import Settings
from tests.images.manifest import examples


@pytest.fixture
def site(tmp_path: Path) -> Settings:
    return settings.load(
        {
            "gpu_image": {
                "manifest": str(tmp_path / "manifest"),
                "build_dir": str(tmp_path / "build"),
                "cache": str(tmp_path / "cache"),
                "retention": {"images": 1, "failed_builds": 1, "bases": 1},
            }
        },
        site_file=tmp_path / "none.yaml",
    )


def add(site: Settings, status: str) -> Path:
    """A finished build with an image; returns the image's path."""
    with builds.new(site.build_dir, "gpu-debian", "local") as build:
        image = build.folder / f"gpu-debian-{build.version}.qcow2"
        if status == "done":
            image.write_text("disk")
        build.record(status=status, arch="amd64")
    return image


def name_in_channel(site: Settings, image: Path) -> None:
    version = image.stem.removeprefix("gpu-debian-")
    data = {**examples.DATA["image"], "regions": {"local": {"id": str(image)}}}
    release = examples.release(version=version, image=data)
    publish(open_store(site.manifest), release, examples.BLOBS, actor="test", reason="test")


def removed(site: Settings) -> list[str]:
    found = sweep.retention(site)
    for item in found:
        item.remove()
    return [Path(item.name).name for item in found]


def test_newest_images_and_failed_builds_stay(site: Settings) -> None:
    images = [add(site, "done") for _ in range(3)]
    failed = [add(site, "failed").parent for _ in range(2)]
    assert sorted(removed(site)) == sorted([images[0].parent.name, images[1].parent.name, failed[0].name])
    assert images[2].exists() and failed[1].exists()
    assert removed(site) == []


def test_an_image_that_a_channel_names_stays_however_old(site: Settings) -> None:
    oldest, *_ = [add(site, "done") for _ in range(3)]
    name_in_channel(site, oldest)
    assert oldest.parent.name not in removed(site)
    assert oldest.exists()


def test_live_builds_stay(site: Settings) -> None:
    with builds.new(site.build_dir, "gpu-debian", "local") as build:
        assert sweep.retention(site, everything=True) == []
        assert build.folder.exists()


def test_only_the_newest_base_disks_stay(site: Settings) -> None:
    for name in ("one", "two"):
        (site.cache / "base" / name).mkdir(parents=True)
    (site.cache / "base" / ".unfinished").mkdir()
    assert len(removed(site)) == 1
    assert (site.cache / "base" / ".unfinished").exists()


def test_ssh_into_a_build_that_left_no_machine(site: Settings) -> None:
    image = add(site, "failed")
    with pytest.raises(UserError, match="it left no machine") as caught:
        sweep.enter(site, image.parent.name, None)
    assert caught.value.code == 3


def test_an_image_in_a_channel_stays_even_if_its_build_failed_afterwards(site: Settings) -> None:
    image = add(site, "done")
    name_in_channel(site, image)
    with builds.new(site.build_dir, "gpu-debian", "local") as build:
        build.record(status="failed", arch="amd64")
    state = image.parent / "state.json"
    state.write_text(state.read_text().replace('"done"', '"failed"'))
    names = [item.name for item in sweep.retention(site, everything=True)]
    assert str(image.parent) not in names and str(build.folder) in names


def test_a_damaged_manifest_is_an_error_before_anything_is_removed(site: Settings) -> None:
    image = add(site, "done")
    record = keys.record("gpu-debian", image.stem.removeprefix("gpu-debian-"), "local", "amd64")
    path = site.manifest / record
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        sweep.dead(site)
    assert image.exists()
