"""What Packer prints, and what the pipeline makes of it. Lines are real output of Packer 1.6.6."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images import packer
from images.errors import UserError


@pytest.mark.parametrize(
    ("text", "version"),
    [("Packer v1.6.6\n", (1, 6, 6)), ("Packer v1.14.2\non linux_amd64\n", (1, 14, 2)), ("1.9", (1, 9, 0))],
)
def test_version(text: str, version: tuple[int, ...]) -> None:
    assert packer.parse_version(text) == version


@pytest.mark.parametrize("text", ["", "packer", "Packer v1.6.5", "0.12.3"])
def test_version_refused(text: str) -> None:
    with pytest.raises(UserError):
        packer.parse_version(text)


def test_ui_line() -> None:
    event = packer.parse_line("1796007479,,ui,say,==> forge.amazon-ebs.img: Connected to SSH!")
    assert event == packer.Event("", "ui", ("say", "==> forge.amazon-ebs.img: Connected to SSH!"))


def test_commas_and_newlines_are_decoded() -> None:
    event = packer.parse_line("1796007505,x,artifact,0,id,eu:ami-1%!(PACKER_COMMA)us:ami-2\\nend")
    assert event is not None
    assert event.data == ("0", "id", "eu:ami-1,us:ami-2\nend")


@given(st.text())
def test_any_line_is_read_or_ignored(line: str) -> None:
    packer.Log().feed(line)


def said(*texts: str) -> packer.Log:
    log = packer.Log()
    for text in texts:
        escaped = text.replace(",", "%!(PACKER_COMMA)").replace("\n", "\\n")
        log.feed(f"1796007479,,ui,say,{escaped}")
    return log


def test_steps_are_what_packer_announces() -> None:
    assert said("==> gpu-debian.qemu.image: Starting VM, booting disk image").step.startswith("Starting VM")


def test_failed_task_is_named_with_its_message() -> None:
    prefix = "    gpu-debian.qemu.image: "
    log = said(
        prefix + "TASK [kernel : Install the locked kernel] ****",
        prefix + 'fatal: [default]: FAILED! => {"changed": false, "msg": "no package matching x"}',
    )
    assert log.ansible_failure == "kernel : Install the locked kernel: no package matching x"


def test_first_failed_task_wins_and_stderr_is_shown() -> None:
    log = said(
        "    a.b: TASK [base : One] **",
        '    a.b: fatal: [default]: FAILED! => {"msg": "non-zero return code", "stderr": "boom"}',
        "    a.b: TASK [base : Two] **",
        '    a.b: fatal: [default]: FAILED! => {"msg": "later"}',
    )
    assert log.ansible_failure == "base : One: non-zero return code: boom"


def test_line_ends_inside_a_result_do_not_hide_the_reason() -> None:
    """A line as Packer 1.6.6 printed it: commas and line ends escaped, JSON's backslash-n too."""
    log = packer.Log()
    log.feed("1796038017,,ui,message,    a.b: TASK [site : Install the site's packages] *******")
    log.feed(
        "1796038048,,ui,message,    a.b: fatal: [default]: FAILED! => "
        '{"msg": "non-zero return code"%!(PACKER_COMMA) "rc": 100%!(PACKER_COMMA) '
        '"stderr": "E: Unable to locate package no-such-package"%!(PACKER_COMMA) '
        '"stdout": "Reading package lists...\\nBuilding dependency tree..."}'
    )
    assert log.ansible_failure is not None
    assert log.ansible_failure.endswith("return code: E: Unable to locate package no-such-package")


def test_cancel_is_told_from_failure() -> None:
    assert said("==> Cleanly cancelled builds after being interrupted.").cancelled
    assert not said("==> Build 'x' errored").cancelled


def manifest(tmp_path: Path, **entry: object) -> Path:
    path = tmp_path / "manifest.json"
    build = {"packer_run_uuid": "u1", "files": None, "artifact_id": "", **entry}
    path.write_text(json.dumps({"builds": [build], "last_run_uuid": "u1"}))
    return path


def test_artifact_files(tmp_path: Path) -> None:
    path = manifest(tmp_path, files=[{"name": "out/disk.qcow2", "size": 1}], artifact_id="VM")
    assert packer.artifacts(path) == ["out/disk.qcow2"]


def test_artifact_id_where_there_are_no_files(tmp_path: Path) -> None:
    assert packer.artifacts(manifest(tmp_path, artifact_id="eu-west-1:ami-1")) == ["eu-west-1:ami-1"]


@pytest.mark.parametrize("entry", [{}, {"packer_run_uuid": "an earlier run", "artifact_id": "x"}])
def test_no_artifact_is_an_error(tmp_path: Path, entry: dict[str, object]) -> None:
    with pytest.raises(UserError, match="names no artifact"):
        packer.artifacts(manifest(tmp_path, **entry))


def test_missing_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no artifact"):
        packer.artifacts(tmp_path / "none.json")


def test_packer_variable_names_a_program_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKER", "/nowhere/packer")
    with pytest.raises(UserError, match="/nowhere/packer is not installed"):
        packer.binary()
