"""What follows from the results of a gate on a machine that exists."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from images.errors import ExitCode
from images.manifest import FolderStore, keys
from images.manifest.later import Validated
from images.manifest.resolve import read_statement, resolve
from images.validate import judge, report
from images.validate.host import Address
from tests.images.manifest import cloud

ALL = [*judge.MUST_PASS, "kernel.running"]


def check(id: str, result: str = "pass", **more: Any) -> dict[str, Any]:
    reason = None if result == "pass" else f"because of {id}"
    return {"id": id, "tier": "gpu", "level": "gpu_hardware", "result": result, "reason": reason, **more}


def document(*checks: dict[str, Any], level: str = "gpu_hardware") -> dict[str, Any]:
    given = {item["id"] for item in checks}
    return {"level": level, "checks": [*checks, *(check(id) for id in ALL if id not in given)]}


def outcome(found: dict[str, Any], **more: Any) -> judge.Outcome:
    verdict, reason = judge.judge(found)
    values = {"gpus": {"h100": 8}, "level": found["level"], **more}
    return judge.Outcome(
        "ssh://h", verdict, reason, "an image", None, checks=found["checks"], evidence=Path("/e"), **values
    )


@pytest.mark.parametrize(
    ("checks", "verdict", "reason", "code"),
    [
        ([], "healthy", "6 of 6 checks passed", ExitCode.DONE),
        ([check("x", "not_run")], "healthy", "6 of 6 checks passed; 1 not run", ExitCode.DONE),
        ([check("x", "fail")], "unhealthy", "1 of 7 checks failed", ExitCode.FAILED),
        ([check("x", "unknown")], "unknown", "1 of 7 checks cannot tell", ExitCode.NOTHING),
        ([check("x", "unknown"), check("y", "fail")], "unhealthy", "1 of 8 checks failed", ExitCode.FAILED),
        ([check("x", degraded=["hot"])], "degraded", "7 of 7 checks passed, and: hot", ExitCode.DONE),
    ],
)
def test_verdicts(checks: list[dict[str, Any]], verdict: str, reason: str, code: ExitCode) -> None:
    found = outcome(document(*checks))
    assert (found.verdict, found.reason, found.code) == (verdict, reason, code)


def test_nothing_that_ran_is_no_health() -> None:
    assert judge.judge({"checks": [check("x", "not_run")]}) == ("unknown", "no check applied")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (document(), None),
        (document(check("x", degraded=["hot"])), None),
        (document(check("dcgm.diag", "fail")), "the machine is unhealthy: 1 of 6"),
        (document(check("dcgm.diag", "not_run")), "not passed: dcgm.diag"),
        (document(check("gpu.memory", "unknown")), "the machine is unknown"),
        (document(level="gpu_simulated"), "the level is gpu_simulated; only gpu_hardware validates"),
        (document(level="vm_no_gpu"), "the level is vm_no_gpu"),
    ],
)
def test_what_validates_a_family(found: dict[str, Any], why: str | None) -> None:
    said = judge.why_not(found, outcome(found))
    assert said is None if why is None else str(said).startswith(why)


def test_an_unknown_family_validates_nothing() -> None:
    found = document()
    assert judge.why_not(found, outcome(found, gpus={})) == "the GPUs' family is not known"


def test_without_a_release_little_is_expected() -> None:
    found = judge.expectation(None, {}, judge.Options(Address("h"), gpus=8))
    assert found == {
        "schema": "gpu-image/expected/v1",
        "boots": [],
        "ours": False,
        "gpu": {"count": 8, "diag_level": 1, "driver": None},
    }


def test_the_report_says_the_verdict_first_and_why_things_were_not_run() -> None:
    found = document(
        check("gpu.ecc", "fail"),
        check("dcgm.diag", "not_run"),
        check("gpu.count", data={"summary": "8 GPUs"}),
    )
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(report.render(outcome(found, recorded={}, not_recorded="it is simulated")))
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines[0] == "UNHEALTHY: 1 of 6 checks failed; 1 not run"
    assert "fail gpu.ecc gpu_hardware because of gpu.ecc" in lines
    assert "because of dcgm.diag dcgm.diag" in lines[lines.index("not run, because checks") :]
    assert "pass gpu.count gpu_hardware 8 GPUs" in lines
    assert "not recorded it is simulated" in lines
    assert "GPUs 8 x h100 (level gpu_hardware)" in lines


def test_what_was_validated_is_recorded_with_its_evidence(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "manifest")
    release = cloud.put(store)
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs/dcgm-diag.json").write_text("{}")
    found = {**document(), "machine_type": "p5.48xlarge, NVIDIA H100 80GB HBM3"}
    (tmp_path / "gate-host.json").write_text(json.dumps(found))
    made = dataclasses.replace(outcome(found), evidence=tmp_path)
    judge.record(store, made, release, found, actor="on-call")
    statement = read_statement(store, made.recorded["h100"], release=release)
    assert statement and isinstance(statement.body, Validated)
    assert (statement.actor, statement.body.gpus, statement.body.on) == ("on-call", 8, found["machine_type"])
    blobs = [store.get(keys.blob(digest))[0] for digest in statement.body.evidence]
    assert blobs == [(tmp_path / "gate-host.json").read_bytes(), b"{}"]
    assert resolve(store, **cloud.CLOUD, region=cloud.HOME).gpu["h100"] == "validated"


def test_simulated_gpus_are_not_recorded(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "manifest")
    release = cloud.put(store)
    found = document(level="gpu_simulated")
    made = outcome(found)
    judge.record(store, made, release, found, actor="on-call")
    assert made.recorded == {}
    assert made.not_recorded == "the level is gpu_simulated; only gpu_hardware validates a GPU family"
    assert resolve(store, **cloud.CLOUD, region=cloud.HOME).gpu["h100"] == "not_validated"
