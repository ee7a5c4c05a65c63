"""Documents: honest by their shape, in pydantic and in the JSON Schemas; damaged bytes give clear errors."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.errors import ExitCode
from images.manifest import codec, documents, json_schema
from images.manifest.codec import BadDocument
from images.manifest.documents import Channel, Document, Record, Release, Revocations, Statement
from images.manifest.later import STATEMENT_KINDS

from .examples import (
    CHANNEL,
    DATA,
    FAILED_BODY,
    NOT_RUN,
    PASSED,
    RECORD,
    REVOCATIONS,
    SHARED_BODY,
    STATEMENT,
    VALIDATED,
    ZERO,
    changed,
    release,
    without,
)

EXAMPLES: dict[type[Document], dict[str, Any]] = {
    Release: DATA,
    Statement: STATEMENT,
    Record: RECORD,
    Channel: CHANNEL,
    Revocations: REVOCATIONS,
}
CLAIM = "gpu.families.h100.validation"
ON_GPU = {**PASSED, "tier": "gpu"}


def schema_accepts(model: type[Document], data: dict[str, Any]) -> bool:
    """Whether the checked-in JSON Schema accepts ``data``."""
    schema = json.loads((json_schema.FOLDER / f"{model.kind}.schema.json").read_bytes())
    return bool(jsonschema.Draft202012Validator(schema).is_valid(data))


# --- schemas ------------------------------------------------------------------------------------------


def test_the_checked_in_schemas_are_current() -> None:
    there = {path.name: path.read_text() for path in json_schema.FOLDER.iterdir()}
    assert there == json_schema.render(), "run: python -m images.manifest.json_schema"


@pytest.mark.parametrize("name", sorted(json_schema.render()))
def test_schemas_are_valid_schemas(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(json_schema.render()[name]))


@pytest.mark.parametrize("model", EXAMPLES, ids=lambda model: model.kind)
def test_examples_are_accepted_and_come_back(model: type[Document]) -> None:
    document = codec.make(model, EXAMPLES[model])
    content = codec.dump(document)
    assert schema_accepts(model, json.loads(content))
    assert codec.load(model, content, name="x") == document
    assert content.endswith(b"}\n")
    assert list(json.loads(content)) == sorted(json.loads(content))


HONEST = {
    "validated with evidence": changed(DATA, CLAIM, VALIDATED),
    "failed with evidence": changed(
        DATA, CLAIM, {**without(VALIDATED, "level"), "state": "failed", "reason": "Xid 79"}
    ),
    "an image without a disk": changed(DATA, "image.disk", {"format": "none"}),
    "observed": changed(DATA, "software.observed.nvidia_driver", "550.163.01"),
    "outside git": changed(DATA, "build.source.commit", None),
    "a GPU check on a GPU": changed(DATA, "gates.0", {**ON_GPU, "level": "gpu_hardware"}),
    "a GPU check on a simulated GPU": changed(DATA, "gates.0", {**ON_GPU, "level": "gpu_simulated"}),
    "a site's own data": changed(DATA, "ext", {"team": {"ticket": [1, None, "x"]}}),
}

DISHONEST = {
    "validated without evidence": changed(DATA, CLAIM, without(VALIDATED, "evidence")),
    "validated with empty evidence": changed(DATA, CLAIM, {**VALIDATED, "evidence": []}),
    "validated on a simulation": changed(DATA, CLAIM, {**VALIDATED, "level": "gpu_simulated"}),
    "validated on a VM": changed(DATA, CLAIM, {**VALIDATED, "level": "vm_no_gpu"}),
    "validated on no level": changed(DATA, CLAIM, without(VALIDATED, "level")),
    "validated nobody knows when": changed(DATA, CLAIM, without(VALIDATED, "at")),
    "validated nobody knows where": changed(DATA, CLAIM, {**VALIDATED, "on": " "}),
    "not validated without a reason": changed(DATA, CLAIM, {"state": "not_validated"}),
    "not validated with a blank reason": changed(DATA, CLAIM, {"state": "not_validated", "reason": " "}),
    "no claim": changed(DATA, CLAIM, {}),
    "another word": changed(DATA, CLAIM, {"state": "skipped", "reason": "x"}),
    "not run without a reason": changed(DATA, "gates.1", {**NOT_RUN, "reason": None}),
    "not run with an empty reason": changed(DATA, "gates.1", {**NOT_RUN, "reason": ""}),
    "not run, reason left out": changed(DATA, "gates.1", without(NOT_RUN, "reason")),
    "failed without a reason": changed(DATA, "gates.0", {**PASSED, "result": "fail"}),
    "unknown without a reason": changed(DATA, "gates.0", {**PASSED, "result": "unknown"}),
    "skip is no result": changed(DATA, "gates.1", {**NOT_RUN, "result": "skip"}),
    "a GPU check passed without a GPU": changed(DATA, "gates.0", ON_GPU),
    "an NVSwitch check passed on the disk": changed(
        DATA, "gates.0", {**PASSED, "tier": "nvswitch", "level": "static"}
    ),
    "no gate": changed(DATA, "gates", []),
    "packages from nowhere": without(DATA, "software.package_origin"),
    "packages from a friend": changed(DATA, "software.package_origin", "friend"),
    "observed left out": without(DATA, "software.observed"),
    "a disk without digest": without(DATA, "image.disk.digest"),
    "no region": changed(DATA, "image.regions", {}),
    "no schema": without(DATA, "schema"),
    "unknown field": changed(DATA, "image.colour", "red"),
    "number as text": changed(DATA, "image.min_disk_gib", "4"),
    "truth as number": changed(DATA, "image.min_disk_gib", True),
    "text as truth": changed(DATA, "build.source.dirty", "no"),
    "a digest of another kind": changed(DATA, "build.lock_digest", "md5:" + "0" * 32),
    "version with leading zero": changed(DATA, "version", "2026.0102.5"),
    "upper case family": changed(DATA, "family", "GPU"),
}

#: What relates two fields, which JSON Schema cannot say.
DISHONEST_ACROSS_FIELDS = {
    "a request without an answer": changed(DATA, "software.observed", {}),
    "evidence that is not linked": changed(DATA, CLAIM, {**VALIDATED, "evidence": [ZERO]}),
    "a script with other content": changed(DATA, "boot_checks.items.0.content", "exit 0\n"),
    "a script of another size": changed(DATA, "boot_checks.items.0.size", 1),
    "a script of another mode": changed(DATA, "boot_checks.items.0.mode", "0644"),
    "another bundle digest": changed(DATA, "boot_checks.bundle_digest", ZERO),
    "no such day": changed(DATA, "created", "2026-02-30T00:00:00Z"),
}


@pytest.mark.parametrize("data", HONEST.values(), ids=HONEST)
def test_honest(data: dict[str, Any]) -> None:
    assert codec.make(Release, data)
    assert schema_accepts(Release, data)


@pytest.mark.parametrize("data", DISHONEST.values(), ids=DISHONEST)
def test_dishonest_is_refused_by_schema_writer_and_reader(data: dict[str, Any]) -> None:
    assert not schema_accepts(Release, data)
    if "schema" in data and "colour" not in data["image"]:  # a reader ignores what it does not know
        with pytest.raises(BadDocument):
            codec.load(Release, json.dumps(data).encode(), name="x")
    if "schema" in data:  # has a default in Python
        with pytest.raises(BadDocument):
            codec.make(Release, data)


@pytest.mark.parametrize("data", DISHONEST_ACROSS_FIELDS.values(), ids=DISHONEST_ACROSS_FIELDS)
def test_dishonest_across_fields_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(BadDocument):
        codec.make(Release, data)
    with pytest.raises(BadDocument):
        codec.load(Release, json.dumps(data).encode(), name="x")


@pytest.mark.parametrize("change", [{"serial": 2}, {"parent": ZERO}, {"serial": 0}, {"serial": 1.5}])
def test_a_chain_without_its_link(change: dict[str, Any]) -> None:
    with pytest.raises(BadDocument):
        codec.make(Channel, {**CHANNEL, **change})


HONEST_LATER = {
    "a statement of a failure": (Statement, changed(STATEMENT, "body", FAILED_BODY)),
    "a statement of sharing": (Statement, changed(STATEMENT, "body", SHARED_BODY)),
    "a region wanted": (Record, without(RECORD, "regions.us-west-2.id")),
    "a record from before there were regions": (Record, without(RECORD, "regions")),
    "a record from before there were statements": (
        Record,
        without(without(RECORD, "regions"), "statements"),
    ),
}

DISHONEST_LATER = {
    "available without an image": (Record, without(RECORD, "regions.eu-west-1.id")),
    "available, nobody says so": (Record, without(RECORD, "regions.eu-west-1.statement")),
    "failed without a reason": (Record, without(RECORD, "regions.ap-south-1.reason")),
    "failed, nobody says so": (Record, without(RECORD, "regions.ap-south-1.statement")),
    "another word": (Record, changed(RECORD, "regions.us-west-2.state", "copying")),
    "replicated without an image": (Statement, without(STATEMENT, "body.id")),
    "replicated somewhere": (Statement, without(STATEMENT, "body.region")),
    "a failure without a reason": (Statement, changed(STATEMENT, "body", {**FAILED_BODY, "reason": " "})),
    "shared with nobody": (Statement, changed(STATEMENT, "body", {**SHARED_BODY, "grantees": []})),
    "shared nothing": (Statement, changed(STATEMENT, "body", {**SHARED_BODY, "images": {}})),
    "about no release": (Statement, without(STATEMENT, "release")),
    "by nobody": (Statement, changed(STATEMENT, "actor", "")),
    "nobody knows when": (Statement, without(STATEMENT, "made")),
    "of a kind to come": (Statement, changed(STATEMENT, "body", {"kind": "gpu_validation"})),
}

DISHONEST_LATER_ACROSS_FIELDS = {
    "a summary of no statement": (Record, changed(RECORD, "statements", [])),
    "lagging without its facts": (
        Channel,
        changed(CHANNEL, "target.regions.local.release", "sha256:" + "1" * 64),
    ),
    "the target's own region lagging": (
        Channel,
        changed(
            CHANNEL,
            "target.regions.local.lagging",
            {"version": "2026.1129.0", "gpu": {}, "bundle_digest": ZERO},
        ),
    ),
}


@pytest.mark.parametrize(("model", "data"), HONEST_LATER.values(), ids=HONEST_LATER)
def test_honest_later(model: type[Document], data: dict[str, Any]) -> None:
    assert codec.make(model, data)
    assert schema_accepts(model, data)


@pytest.mark.parametrize(("model", "data"), DISHONEST_LATER.values(), ids=DISHONEST_LATER)
def test_dishonest_later_is_refused_by_schema_writer_and_reader(
    model: type[Document], data: dict[str, Any]
) -> None:
    assert not schema_accepts(model, data)
    with pytest.raises(BadDocument):
        codec.load(model, json.dumps(data).encode(), name="x")
    with pytest.raises(BadDocument):
        codec.make(model, data)


@pytest.mark.parametrize(
    ("model", "data"), DISHONEST_LATER_ACROSS_FIELDS.values(), ids=DISHONEST_LATER_ACROSS_FIELDS
)
def test_dishonest_later_across_fields_is_refused(model: type[Document], data: dict[str, Any]) -> None:
    with pytest.raises(BadDocument):
        codec.make(model, data)
    with pytest.raises(BadDocument):
        codec.load(model, json.dumps(data).encode(), name="x")


def test_the_known_kinds_are_those_of_the_schema() -> None:
    schema = json.loads((json_schema.FOLDER / "statement.schema.json").read_bytes())
    assert set(schema["properties"]["body"]["discriminator"]["mapping"]) == STATEMENT_KINDS


def test_bundle_digest_is_that_of_the_sorted_lines() -> None:
    x = {"mode": "0644", "sha256": hashlib.sha256(b"x").hexdigest(), "size": 1, "content": "x"}
    items = [documents.BootCheckFile.model_validate({**x, "path": path}) for path in ("/b", "/a")]
    # By coreutils: X=$(printf x | sha256sum | cut -c-64); printf "0644 $X /a\n0644 $X /b\n" | sha256sum
    assert documents.bundle_digest(items) == (
        "sha256:943ce7b36eb6f4125c3ddc24c6b6ae3243c27e8b632427941c6f30431094e998"
    )


# --- writing ------------------------------------------------------------------------------------------


def test_a_document_changed_behind_its_back_is_not_written() -> None:
    document = release()
    document.image.regions.clear()
    with pytest.raises(BadDocument, match=r"image\.regions"):
        codec.dump(document)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_what_is_not_json_is_not_written(value: Any) -> None:
    with pytest.raises(BadDocument):
        codec.dump(release(ext={"x": value}))


def test_too_large_to_write() -> None:
    with pytest.raises(BadDocument, match="at most"):
        codec.dump(release(ext={"x": "a" * codec.MAX_BYTES}))


def test_errors_name_the_field() -> None:
    with pytest.raises(
        BadDocument, match=r"release document: image\.min_disk_gib: .*greater than 0"
    ) as caught:
        codec.make(Release, changed(DATA, "image.min_disk_gib", 0))
    assert caught.value.code == ExitCode.FAILED


def test_what_a_newer_program_wrote_survives_a_change() -> None:
    data: dict[str, Any] = RECORD
    for path in ("new", "regions.us-west-2.new"):
        data = changed(data, path, {"any": ["thing"]})
    content = codec.revise(Record, json.dumps(data).encode(), lambda it: it.update(lifecycle="active"))
    assert json.loads(content) == {**data, "lifecycle": "active"}


def test_a_change_that_breaks_the_document_is_not_written() -> None:
    with pytest.raises(BadDocument, match="lifecycle"):
        codec.revise(Record, json.dumps(RECORD).encode(), lambda it: it.update(lifecycle="gone"))


# --- reading ------------------------------------------------------------------------------------------


def test_a_reader_ignores_what_it_does_not_know() -> None:
    data: dict[str, Any] = DATA
    for path in ("new", "image.new", "image.disk.new", "image.regions.local.new", CLAIM + ".new",
                 "gates.0.new", "boot_checks.items.0.new", "build.source.new", "links.0.new"):  # fmt: skip
        data = changed(data, path, {"any": ["thing"]})
    assert codec.load(Release, json.dumps(data).encode(), name="x") == release()


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("gpu-image/release/v2", "this program reads v1"),
        ("gpu-image/release/v10", "this program reads v1"),
        ("gpu-image/channel/v1", "is no release document"),
        ("release", "is no release document"),
        (None, "is no release document"),
        (1, "is no release document"),
        (["gpu-image/release/v1"], "is no release document"),
    ],
)
def test_another_schema(schema: Any, problem: str) -> None:
    with pytest.raises(BadDocument, match=problem):
        codec.load(Release, json.dumps({**DATA, "schema": schema}).encode(), name="x")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not valid JSON"),
        (b"null", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b'{"a": 1, "a": 1}', "the key 'a' comes twice"),
        (b'{"a": [{"b": {"c": 1, "\\u0063": 2}}]}', "the key 'c' comes twice"),
        (b" " * codec.MAX_BYTES + b"{}", "at most"),
    ],
    ids=lambda value: str(value[:24]),
)
def test_what_is_no_json_document(content: bytes, problem: str) -> None:
    with pytest.raises(BadDocument, match=f"channels/x: .*{problem}"):
        codec.load(Channel, content, name="channels/x")


def test_deep_data_below_the_parsers_limit() -> None:
    deep: Any = 1
    for _ in range(600):
        deep = [deep]
    with pytest.raises(BadDocument):
        codec.load(Channel, json.dumps({**CHANNEL, "ext": {"x": deep}, "serial": "x"}).encode(), name="x")


CONTENT = codec.dump(release())
KINDS = st.sampled_from(list(EXAMPLES))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _paths(data: Any, prefix: str = "") -> list[str]:
    """Every key and index of ``data``, dotted; none for keys that hold a dot."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path for key, value in items for path in (prefix + str(key), *_paths(value, f"{prefix}{key}."))]


@settings(deadline=None)
@given(st.integers(0, len(CONTENT) - 3))
def test_truncated(length: int) -> None:
    with pytest.raises(BadDocument):
        codec.load(Release, CONTENT[:length], name="x")


@settings(deadline=None)
@given(KINDS, st.binary(max_size=200))
def test_arbitrary_bytes(model: type[Document], content: bytes) -> None:
    with pytest.raises(BadDocument):
        codec.load(model, content, name="x")


@settings(max_examples=300, deadline=None)
@given(KINDS, st.data(), JSON)
def test_any_value_anywhere_is_refused_or_allowed_by_the_schema(
    model: type[Document], data: st.DataObject, value: Any
) -> None:
    path = data.draw(st.sampled_from(_paths(EXAMPLES[model])))
    content = json.dumps(changed(EXAMPLES[model], path, value)).encode()
    try:
        document = codec.load(model, content, name="x")
    except BadDocument:
        return
    assert schema_accepts(model, json.loads(codec.dump(document)))


@settings(deadline=None)
@given(KINDS, st.data())
def test_a_key_twice_anywhere(model: type[Document], data: st.DataObject) -> None:
    """A second value for a key: one reader would take the first, another the last."""
    text = json.dumps(EXAMPLES[model])
    objects = [position for position in range(len(text)) if text[position : position + 2] == '{"']
    at = data.draw(st.sampled_from(objects))
    key = text[at + 1 : text.index('"', at + 2) + 1]
    with pytest.raises(BadDocument, match="comes twice"):
        codec.load(model, f"{text[: at + 1]}{key}: null, {text[at + 1 :]}".encode(), name="x")
