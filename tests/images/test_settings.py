"""Where settings come from, and which one wins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from images import clouds, settings
from images.errors import UserError
from tests.conftest import Site


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have variables of a site."""
    for name in os.environ:
        if name.startswith("INVOKE_GPU_IMAGE_"):
            monkeypatch.delenv(name)


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


def test_invoke_yaml_has_every_key_with_its_default() -> None:
    """Invoke reads a variable only where it knows the key."""
    config = yaml.safe_load((settings.CHECKOUT / "invoke.yaml").read_text())["gpu_image"]
    sites = config.pop("clouds")
    assert settings.Settings(**config) == settings.Settings()
    for name, site in sites.items():
        model = clouds.load(name).site
        assert model(**site) == model()
    config["clouds"] = sites
    for model, keys in (
        (settings.Settings, config),
        (settings.Retention, config["retention"]),
        (settings.Site, config["site"]),
    ):
        lists = {name for name, field in model.model_fields.items() if field.annotation == list[str]}
        assert set(keys) == set(model.model_fields) - lists


@pytest.mark.parametrize(
    ("variable", "value", "code", "words"),
    [
        ("KEEP_HOURS", "abc", 2, "keep_hours"),
        ("SITE_PACKAGES", "nano", 0, "nothing is left over"),
        ("SITE_KEEP_APT_MIRROR", "false", 0, "nothing is left over"),
    ],
)
def test_variables_on_the_command_line(site: Site, variable: str, value: str, code: int, words: str) -> None:
    mine = Site(site.root, {f"INVOKE_GPU_IMAGE_{variable}": value})
    result = mine.inv("sweep")
    assert result.returncode == code, result.stderr
    assert words in result.stdout + result.stderr and "Traceback" not in result.stderr


def test_yes_or_no_in_a_variable(tmp_path: Path) -> None:
    for text, value in (("false", False), ("0", False), ("true", True), ("1", True)):
        config = {"gpu_image": {"site": {"keep_apt_mirror": text}}}
        assert settings.load(config, site_file=tmp_path / "none").site.keep_apt_mirror is value


def test_a_variable_that_invoke_does_not_know_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("site:\n  packages: [htop]\n")
    monkeypatch.setenv("INVOKE_GPU_IMAGE_SITE_PACKAGES", "nano")
    assert settings.load({}, site_file=file).site.packages == ["htop"]


def test_an_object_store_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("manifest: s3://bucket/prefix\n")
    with pytest.raises(UserError, match=f"{file}:1: .*object stores cannot be used yet"):
        settings.load({}, site_file=file)


def test_wrong_key_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("manifest: x\nsite:\n  pakages: [htop]\n")
    with pytest.raises(UserError) as caught:
        settings.load({}, site_file=file)
    assert f"{file}:3: unknown key 'site.pakages'" in caught.value.message
    assert caught.value.hint == "did you mean 'packages'?"
