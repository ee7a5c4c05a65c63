"""The catalog's specs, and what a wrong one says."""

from __future__ import annotations

import pytest

from images import clouds, spec
from images.errors import UserError
from images.settings import CHECKOUT


@pytest.mark.parametrize("name", spec.names())
def test_catalog(name: str) -> None:
    loaded = spec.load(name)
    for cloud in loaded.spec.clouds:
        loaded.section(cloud, clouds.load(cloud).section)


def test_the_two_images_are_what_the_project_promises() -> None:
    base, debian = spec.load("gpu-base").spec, spec.load("gpu-debian").spec
    assert (base.os.id, base.os.version, base.driver.version) == ("ubuntu", "24.04", "580.95.05")
    assert (base.driver.source, base.driver.modules) == ("nvidia", "open")
    assert (debian.os.id, debian.os.version) == ("debian", "13")
    assert (debian.driver.source, debian.driver.modules) == ("debian", "proprietary")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("kernal.series=6.12", "unknown key 'kernal'"),
        ("driver.modules=free", "'driver.modules'"),
        ("disk_gib=1", "'disk_gib'"),
        ("family=other", "family 'other' stands in the file gpu-debian.yaml"),
        ("arch=[mips]", "'arch.0'"),
    ],
)
def test_wrong_override(override: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        spec.load("gpu-debian", overrides=[override])
    assert words in caught.value.message
    assert "gpu-debian.yaml" in caught.value.message or "--set" in caught.value.message


def test_wrong_key_in_a_cloud_section_is_named_with_its_line() -> None:
    loaded = spec.load("gpu-debian", overrides=["clouds.local.build_machine.cpu=3"])
    with pytest.raises(UserError) as caught:
        loaded.section("local", clouds.load("local").section)
    assert "unknown key 'clouds.local.build_machine.cpu'" in caught.value.message
    assert caught.value.hint == "did you mean 'cpus'?"


def test_unknown_image_and_cloud_name_what_there_is() -> None:
    with pytest.raises(UserError) as image:
        spec.load("gpu-debain")
    assert image.value.hint is not None and "gpu-debian" in image.value.hint
    with pytest.raises(UserError) as cloud:
        clouds.load("moon")
    assert cloud.value.hint is not None and "local" in cloud.value.hint
    with pytest.raises(UserError, match="no section for cloud 'moon'"):
        spec.load("gpu-debian").section("moon", clouds.load("local").section)


def test_digest_follows_content_not_layout() -> None:
    plain = spec.load("gpu-debian").digest
    assert spec.load("gpu-debian", overrides=["disk_gib=8"]).digest == plain
    assert spec.load("gpu-debian", overrides=["disk_gib=9"]).digest != plain


def test_a_spec_file_can_be_given_by_its_path() -> None:
    path = CHECKOUT / "images/catalog/gpu-debian.yaml"
    assert spec.load(str(path)).digest == spec.load("gpu-debian").digest
