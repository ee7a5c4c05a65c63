"""A cloud is a folder: the toy cloud is put into a copy of the checkout, and every task knows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from images import clouds
from images.settings import CHECKOUT
from tests.cloud_sim import checkout

TOY = Path(__file__).parent / "toy"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the toy's folder, and a spec that names it; nothing else is changed."""
    folder = checkout.make(tmp_path_factory.mktemp("toy") / "checkout")
    shutil.copytree(TOY, folder / "images/clouds/toy")
    spec = yaml.safe_load((CHECKOUT / "images/catalog/gpu-debian.yaml").read_text())
    spec |= {"family": "toy-image", "clouds": {"toy": {"base": "wooden"}}}
    (folder / "images/catalog/toy-image.yaml").write_text(yaml.safe_dump(spec))
    return folder


def inv(sources: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {
        "INVOKE_GPU_IMAGE_MANIFEST": str(sources / "manifest"),
        "INVOKE_GPU_IMAGE_BUILD_DIR": str(sources / "build"),
    }
    return subprocess.run(
        [sys.executable, "-m", "images", *words],
        cwd=sources,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_not_in_the_project() -> None:
    assert "toy" not in clouds.names()


def test_every_task_knows_it(sources: Path, tmp_path: Path) -> None:
    mine = ("--cloud=toy", "--image=toy-image")
    cells = json.loads(inv(sources, "matrix", "--cloud=toy").stdout)["include"]
    assert {(cell["image"], cell["arch"]) for cell in cells} == {
        ("toy-image", "amd64"),
        ("toy-image", "arm64"),
    }
    locked = inv(sources, "lock", *mine)
    assert locked.returncode == 0, locked.stderr
    assert (sources / "images/locks/toy-image.toy.amd64.json").exists()
    rendered = inv(sources, "render", *mine, f"--out={tmp_path / 'out'}", "--validate")
    assert rendered.returncode == 0, rendered.stderr
    assert "accelerator" in inv(sources, "doctor", "--cloud=toy").stdout
    swept = inv(sources, "sweep", "--cloud=toy", "--yes")
    assert "the red block is gone" in swept.stdout
    refused = inv(sources, "build", *mine, "--accel=kvm")
    assert refused.returncode == 2 and "--accel=kvm" in refused.stderr
    built = inv(sources, "build", *mine)
    assert built.returncode == 1 and "the toy has no machines" in built.stderr
    unknown = inv(sources, "replicate", "sha256:" + "0" * 64)
    assert unknown.returncode == 3
