"""What a failed build leaves: its evidence, and an image only where the manifest names it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from images import builds, clouds, gate, inputs, job, pipeline, progress, settings
from images.clouds.model import Image
from images.errors import UserError
from images.manifest.publish import publish
from images.manifest.store import open_store
from tests.images.manifest import examples


def failed(tmp_path: Path, *, stage: str, published: bool, results: str | None = None) -> Path:
    """A build that fails in ``stage``; returns its image's path."""
    site = settings.load(
        {"gpu_image": {"manifest": str(tmp_path / "manifest"), "build_dir": str(tmp_path / "build")}},
        site_file=tmp_path / "none.yaml",
    )
    stages = progress.Stages()
    stages.current = stage
    with builds.new(site.build_dir, "gpu-debian", "local") as build:
        build.record(arch="amd64")
        made_from = SimpleNamespace(
            cloud=clouds.load("local"),
            loaded=SimpleNamespace(spec=SimpleNamespace(family="gpu-debian")),
            lock=SimpleNamespace(arch="amd64", digest="sha256:" + "0" * 64),
        )
        options = inputs.Options(cloud="local", image="gpu-debian")
        mine = job.Job(options, site, cast(Any, made_from), build, stages)
        path = build.folder / f"gpu-debian-{build.version}.qcow2"
        path.write_text("disk")
        (build.folder / "packer").mkdir()
        if results is not None:
            (build.folder / "gate-build.json").write_text(results)
        mine.image = Image(id=str(path), region="local", name=path.stem)
        if published:
            image = {**examples.DATA["image"], "regions": {"local": {"id": str(path)}}}
            release = examples.release(version=build.version, image=image)
            publish(open_store(site.manifest), release, examples.BLOBS, actor="test", reason="test")
        error = pipeline._failed(UserError("no more"), mine)
    assert isinstance(error, UserError) and error.message == f"{stage}: no more"
    assert not (path.parent / "packer").exists()
    return path


@pytest.mark.parametrize(
    ("stage", "published", "stays"),
    [("gate", False, False), ("publish", False, False), ("publish", True, True)],
)
def test_the_image_of_a_failed_build(tmp_path: Path, stage: str, published: bool, stays: bool) -> None:
    path = failed(tmp_path, stage=stage, published=published)
    assert path.exists() == stays
    assert json.loads((path.parent / "gate.json").read_bytes())["phases"] == []


def test_results_that_were_cut_off_do_not_stop_the_clean_up(tmp_path: Path) -> None:
    assert not failed(tmp_path, stage="gate", published=False, results='{"checks": [').exists()


def test_results_of_all_phases_come_in_the_order_of_the_build(tmp_path: Path) -> None:
    for name in ("capture", "first-uefi", "first-bios-reboot", "build", "first-bios"):
        (tmp_path / f"gate-{name}.json").write_text(json.dumps({"name": name}))
    merged = gate.merge(tmp_path, "b-1")
    assert [phase["name"] for phase in merged["phases"]] == [
        "build",
        "first-bios",
        "first-bios-reboot",
        "first-uefi",
        "capture",
    ]
    assert json.loads((tmp_path / "gate.json").read_bytes()) == merged
