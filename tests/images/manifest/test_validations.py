"""Validation on GPUs that comes after a release: what is written, and who sees it."""

from __future__ import annotations

import json

import pytest
from invoke.context import Context

from images.manifest import FolderStore, codec, keys, tasks
from images.manifest.codec import BadDocument
from images.manifest.resolve import read_statement, resolve
from images.manifest.validations import validated

from . import walk
from .cloud import AT, CHANNEL_KEY, CLOUD, HOME, NEW, OLD, channel, content, copied, put, record, record_key
from .stores import Recording

EVIDENCE = [b'{"checks": []}', b"name, uuid"]
ON = "p5.48xlarge, NVIDIA H100 80GB HBM3"
pytestmark = pytest.mark.usefixtures("no_fsync")


def validate(store: FolderStore, digest: str, family: str = "h100") -> str:
    return validated(store, digest, family=family, gpus=8, on=ON, evidence=EVIDENCE, actor="validate", at=AT)


def test_evidence_statement_record_channel(store: FolderStore, digest: str) -> None:
    recording = Recording(store.folder)
    validate(recording, digest)
    assert [key.split("/")[0] for key in recording.written] == [
        "blobs", "blobs", "statements", "records", "pointers", "channels"
    ]  # fmt: skip
    walk.verify(store.folder)


def test_the_statement_names_its_evidence(store: FolderStore, digest: str) -> None:
    statement = read_statement(store, validate(store, digest), release=digest)
    assert statement and statement.body.model_dump() == {
        "kind": "validated",
        "family": "h100",
        "level": "gpu_hardware",
        "gpus": 8,
        "on": ON,
        "evidence": [codec.digest_of(blob) for blob in EVIDENCE],
    }
    assert [store.get(keys.blob(name))[0] for name in statement.body.evidence] == EVIDENCE
    assert (statement.made, statement.actor) == (AT, "validate")


def test_provisioners_see_it(store: FolderStore, digest: str) -> None:
    before = resolve(store, **CLOUD, region=HOME)
    assert before.gpu["h100"] == "not_validated"
    validate(store, digest)
    after = resolve(store, **CLOUD, region=HOME)
    assert after.gpu == {**before.gpu, "h100": "validated"}
    assert (after.serial, channel(store).reason) == (2, f"{OLD} is validated on h100")


def test_a_family_that_the_release_does_not_know(store: FolderStore, digest: str) -> None:
    validate(store, digest, "l4")
    assert resolve(store, **CLOUD, region=HOME).gpu["l4"] == "validated"


def test_each_validation_is_a_statement_and_the_last_one_counts(store: FolderStore, digest: str) -> None:
    first = validate(store, digest)
    second = validated(
        store,
        digest,
        family="h100",
        gpus=1,
        on="other",
        evidence=EVIDENCE,
        actor="x",
        at="2026-12-01T00:00:00Z",
    )
    assert record(store).statements == [first, second]
    assert record(store).gpu == {"h100": second}
    assert channel(store).serial == 2  # what it says is true already


def test_the_next_release_is_not_validated_by_it(store: FolderStore, digest: str) -> None:
    validate(store, digest)
    put(store, NEW)
    assert resolve(store, **CLOUD, region=HOME).gpu["h100"] == "not_validated"


def test_a_region_that_lags_behind_keeps_what_was_true_of_its_release(
    store: FolderStore, digest: str
) -> None:
    copied(store, digest)
    validate(store, digest)
    put(store, NEW)
    found = resolve(store, **CLOUD, region="eu-west-1")
    assert (found.release_digest, found.gpu["h100"]) == (digest, "validated")


def test_a_channel_that_claims_more_is_not_believed(store: FolderStore, digest: str) -> None:
    data = json.loads(content(store)[CHANNEL_KEY])
    data["target"]["gpu"]["h100"] = "validated"
    (store.folder / CHANNEL_KEY).write_text(json.dumps(data))
    with pytest.raises(BadDocument, match="h100 is validated, and no document does"):
        resolve(store, **CLOUD, region=HOME)


def test_a_record_that_names_another_statement(store: FolderStore, digest: str) -> None:
    validate(store, digest)
    copied(store, digest)
    key = record_key(OLD)
    data = json.loads(content(store)[key])
    data["gpu"]["h100"] = data["statements"][1]
    (store.folder / key).write_text(json.dumps(data))
    with pytest.raises(BadDocument, match="does not say that h100 was validated"):
        validate(store, digest, "l4")


def test_show(store: FolderStore, digest: str, capsys: pytest.CaptureFixture[str]) -> None:
    validate(store, digest)
    tasks.show(Context(), release=digest, manifest=store.name)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"h100 validated on {ON} (8 GPUs), {AT}" in lines
