"""The matrix of CI, and the workflows that build it: which cells there are, and what stops a run early."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from invoke.context import Context

from images import clouds, matrix, spec
from images.clouds.defaults import Defaults
from images.errors import ExitCode, UserError
from images.matrix import Cell
from images.settings import CHECKOUT

WORKFLOWS = CHECKOUT / ".github/workflows"
SPEC = (CHECKOUT / "images/catalog/gpu-debian.yaml").read_text()


def write(catalog: Path, family: str, sections: list[str], arch: list[str]) -> None:
    data = yaml.safe_load(SPEC)
    data |= {"family": family, "clouds": {name: {} for name in sections}, "arch": arch}
    data["driver"]["version"] = str(data["driver"]["version"])
    (catalog / f"{family}.yaml").write_text(yaml.safe_dump(data))


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(clouds, "names", lambda: ["aws", "gcp", "local"])
    monkeypatch.setattr(clouds, "load", lambda name: Defaults())  # that builds whatever a spec asks for
    write(tmp_path, "two", ["local", "gcp", "aws"], ["arm64", "amd64"])
    write(tmp_path, "one", ["aws"], ["amd64"])
    write(tmp_path, "mine", ["local"], ["amd64"])
    return tmp_path


def test_every_cloud_and_architecture_of_every_image_but_local(catalog: Path) -> None:
    assert matrix.cells(catalog=catalog) == [
        Cell("one", "aws", "amd64"),
        *itertools.starmap(Cell, itertools.product(["two"], ["aws", "gcp"], ["amd64", "arm64"])),
    ]


def test_local_when_asked_for(catalog: Path) -> None:
    assert [cell.image for cell in matrix.cells(cloud="local", catalog=catalog)] == ["mine", "two", "two"]


def test_one_cloud_one_image(catalog: Path) -> None:
    assert {cell.cloud for cell in matrix.cells(cloud="gcp", catalog=catalog)} == {"gcp"}
    assert matrix.cells(image="one", catalog=catalog) == [Cell("one", "aws", "amd64")]


@pytest.mark.parametrize("options", [{"image": "mine"}, {"image": "one", "cloud": "gcp"}])
def test_an_empty_matrix_is_an_error(catalog: Path, options: dict[str, str]) -> None:
    with pytest.raises(UserError, match="nothing to build") as caught:
        matrix.cells(catalog=catalog, **options)
    assert caught.value.code == ExitCode.NOTHING
    assert options["image"] in caught.value.message


def test_a_cloud_that_has_no_folder_is_named_with_its_line(catalog: Path) -> None:
    write(catalog, "far", ["moon"], ["amd64"])
    line = (catalog / "far.yaml").read_text().splitlines().index("  moon: {}") + 1
    with pytest.raises(UserError, match=rf"far\.yaml:{line}: no cloud 'moon'") as caught:
        matrix.cells(catalog=catalog)
    assert caught.value.code == ExitCode.USAGE


@pytest.mark.parametrize("options", [{"cloud": "moon"}, {"image": "nothing"}])
def test_unknown_names_are_wrong_input(catalog: Path, options: dict[str, str]) -> None:
    with pytest.raises(UserError) as caught:
        matrix.cells(catalog=catalog, **options)
    assert caught.value.code == ExitCode.USAGE
    assert caught.value.hint is not None and "there are:" in caught.value.hint


def test_the_task_prints_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    matrix.matrix(Context(), cloud="local")
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    # Read from the catalog without our own reader.
    expected = [
        {"image": path.stem, "cloud": "local", "arch": arch}
        for path in sorted(spec.CATALOG.glob("*.yaml"))
        for arch in ["amd64"]  # the local cloud makes no other
        if "local" in yaml.safe_load(path.read_text())["clouds"]
    ]
    assert json.loads(out) == {"include": expected}


def test_the_task_prints_nothing_when_there_is_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec, "names", lambda catalog: [])
    with pytest.raises(SystemExit) as caught:
        matrix.matrix(Context())
    assert caught.value.code == ExitCode.NOTHING
    printed = capsys.readouterr()
    assert printed.out == "" and "nothing to build" in printed.err


def test_a_cell_for_each_cloud(catalog: Path) -> None:
    found = json.loads(matrix.as_json(matrix.cells(catalog=catalog), per_cloud=True))
    assert found == {"include": [{"cloud": "aws"}, {"cloud": "gcp"}]}


def job(workflow: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((WORKFLOWS / workflow).read_text())["jobs"][name]
    return found


@pytest.mark.parametrize("workflow", ["nightly.yml", "sweep.yml"])
@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("", "is not set"),
        ("s3://bucket/manifest", "object stores come later"),
        ("manifest", "absolute path"),
        ("/srv/gpu-image", None),
    ],
)
def test_without_a_manifest_that_lasts_the_run_ends_at_once(
    workflow: str, folder: str, said: str | None
) -> None:
    # GitHub runs a step without `shell` by `bash -e`.
    script = job(workflow, "matrix")["steps"][0]["run"]
    result = subprocess.run(
        ["bash", "-e", "-c", script], env={"FOLDER": folder}, capture_output=True, text=True, check=False
    )
    assert result.returncode == (1 if said else 0), result.stderr
    assert (said or "") in result.stdout and result.stdout.startswith("::error::" if said else "")


@pytest.mark.parametrize(
    ("workflow", "name", "keys"),
    [("nightly.yml", "build", ["cloud", "image", "arch"]), ("sweep.yml", "sweep", ["cloud"])],
)
def test_workflows_read_what_the_matrix_has(
    workflow: str, name: str, keys: list[str], catalog: Path
) -> None:
    text = matrix.as_json(matrix.cells(catalog=catalog), per_cloud=keys == ["cloud"])
    assert {key for cell in json.loads(text)["include"] for key in cell} == set(keys)
    assert {f"${{{{ matrix.{key} }}}}" for key in keys} < set(job(workflow, name)["env"].values())


def test_a_nightly_build_never_outlives_its_credentials() -> None:
    build = job("nightly.yml", "build")
    seconds = [
        step["with"]["role-duration-seconds"] for step in build["steps"] if "aws-actions" in str(step)
    ]
    assert seconds and build["timeout-minutes"] * 60 < min(seconds)
