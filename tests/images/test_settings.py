"""Where settings come from, and which one wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from images import settings
from images.errors import UserError


def test_defaults_are_absolute(tmp_path: Path) -> None:
    site = settings.load({}, site_file=tmp_path / "none.yaml")
    assert site.manifest == settings.CHECKOUT / "manifest"
    assert site.cache == Path.home() / ".cache/gpu-image"
    assert site.image_for("local") == "gpu-debian"
    assert site.image_for("aws") == "gpu-base"


def test_site_file_wins_over_defaults_and_variables_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("manifest: /site/manifest\nbuild_dir: /site/build\nsite:\n  packages: [htop]\n")
    monkeypatch.setenv("INVOKE_GPU_IMAGE_BUILD_DIR", "/variable/build")
    config = {"gpu_image": {"manifest": "manifest", "build_dir": "/variable/build"}}
    site = settings.load(config, site_file=file)
    assert site.manifest == Path("/site/manifest")
    assert site.build_dir == Path("/variable/build")
    assert site.site.packages == ["htop"]


def test_wrong_key_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("manifest: x\nsite:\n  pakages: [htop]\n")
    with pytest.raises(UserError) as caught:
        settings.load({}, site_file=file)
    assert f"{file}:3: unknown key 'site.pakages'" in caught.value.message
    assert caught.value.hint == "did you mean 'packages'?"
