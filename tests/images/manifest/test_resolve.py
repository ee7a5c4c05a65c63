"""Resolving: the id, or a clear reason why not and what is there instead; never another image."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invoke.context import Context

from images.errors import ExitCode, UserError
from images.manifest import FolderStore, codec, keys, tasks
from images.manifest.documents import Channel, Release, Revocations
from images.manifest.publish import Published, publish
from images.manifest.resolve import read_record, read_release, resolve

from .examples import BLOBS, CHANNEL, DATA, NOT_RUN, REVOCATIONS, WHERE, ZERO, changed, release

IMAGE = "/images/gpu-debian.qcow2"
CHANNEL_KEY = "channels/gpu-debian/local/amd64/candidate.json"


@pytest.fixture
def published(store: FolderStore) -> Published:
    return publish(store, release(), BLOBS, actor="ci", reason="build")


def rewrite(store: FolderStore, path: str, value: Any) -> None:
    """Changes one value of the channel as a bad disk or a careless hand would."""
    content = json.loads(store.get(CHANNEL_KEY)[0])
    (store.folder / CHANNEL_KEY).write_text(json.dumps(changed(content, path, value)))


def revoke(store: FolderStore, **changes: Any) -> None:
    entry = {**REVOCATIONS["entries"][0], "images": [], **changes}
    document = codec.make(Revocations, {**REVOCATIONS, "entries": [entry]})
    store.create(keys.revocations("gpu-debian"), codec.dump(document))


def refusal(store: FolderStore, **question: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        resolve(store, **{**WHERE, **question})
    return caught.value


def test_the_answer(store: FolderStore, published: Published) -> None:
    assert dataclasses.asdict(resolve(store, **WHERE)) == {
        **WHERE,
        "id": IMAGE,
        "release_digest": published.digest,
        "version": "2026.1130.54712",
        "build_id": "gpu-debian-2026.1130.54712-3fa9",
        "region": "local",
        "channel": "candidate",
        "serial": 1,
        "bundle_digest": DATA["boot_checks"]["bundle_digest"],
        "gpu": {"h100": "not_validated"},
        "lags_behind": None,
    }


def test_nothing_is_published(store: FolderStore) -> None:
    error = refusal(store)
    assert error.code == ExitCode.NOTHING
    assert error.message == "no channel candidate of gpu-debian on local amd64"
    assert error.hint and store.name in error.hint


@pytest.mark.parametrize(
    "question", [{"channel": "stable"}, {"family": "gpu-base"}, {"cloud": "aws"}, {"arch": "arm64"}]
)
@pytest.mark.usefixtures("published")
def test_no_such_channel_says_which_there_are(store: FolderStore, question: dict[str, str]) -> None:
    error = refusal(store, **question)
    assert error.code == ExitCode.NOTHING
    assert next(iter(question.values())) in error.message
    assert error.hint == "there are: gpu-debian/local/amd64/candidate"


@pytest.mark.usefixtures("published")
def test_a_name_that_leads_out_of_the_store(store: FolderStore) -> None:
    assert "cannot be a key" in refusal(store, cloud="../../etc").message


def test_regions(store: FolderStore) -> None:
    regions = {"us-east-1": {"id": "ami-1"}, "eu-west-1": {"id": "ami-2"}}
    document = codec.make(Release, changed(DATA, "image.regions", regions))
    publish(store, document, BLOBS, actor="ci", reason="build")
    assert resolve(store, **WHERE, region="eu-west-1").id == "ami-2"
    missing = refusal(store, region="ap-south-1")
    assert (missing.code, missing.hint) == (ExitCode.NOTHING, "ready: eu-west-1, us-east-1")
    unsaid = refusal(store)
    assert (unsaid.code, unsaid.hint) == (ExitCode.USAGE, "give one of eu-west-1, us-east-1")


def test_expired(store: FolderStore) -> None:
    publish(store, release(), BLOBS, actor="ci", reason="build", expires="2026-12-24T00:00:00Z")
    assert resolve(store, **WHERE, now="2026-12-23T23:59:59Z").id == IMAGE
    error = refusal(store, now="2026-12-24T00:00:00Z")
    assert error.code == ExitCode.NOTHING
    assert "expired at 2026-12-24T00:00:00Z" in error.message


@pytest.mark.parametrize("by", ["release", "image"])
def test_revoked(store: FolderStore, published: Published, by: str) -> None:
    revoke(store, **({"release": published.digest} if by == "release" else {"images": [IMAGE]}))
    assert resolve(store, **WHERE, now="2026-11-30T23:59:59Z").id == IMAGE, "a schedule is no revocation"
    error = refusal(store, now="2026-12-01T00:00:00Z")
    assert error.code == ExitCode.NOTHING
    assert "revoked (drain): the driver hangs" in error.message


@pytest.mark.usefixtures("published")
def test_another_release_is_revoked(store: FolderStore) -> None:
    revoke(store)
    assert resolve(store, **WHERE).id == IMAGE


@pytest.mark.usefixtures("published")
def test_a_damaged_revocation_list_is_no_empty_list(store: FolderStore) -> None:
    store.create(keys.revocations("gpu-debian"), b"{}")
    assert refusal(store).code == ExitCode.FAILED


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("target.regions.local.id", "/images/other.qcow2", "another image in local"),
        ("family", "gpu-base", "family is 'gpu-base', expected 'gpu-debian'"),
        ("channel", "stable", "channel is 'stable'"),
        ("target.regions.local.release", ZERO, "lagging must be there exactly where the release differs"),
        ("target", {**CHANNEL["target"]}, "has no releases/sha256/00/"),
        ("target.version", "2026.1130.54713", "another version or bundle in local"),
        ("target.bundle_digest", ZERO, "another version or bundle in local"),
        ("target.regions.local.statement", ZERO, "is missing"),
        ("schema", "gpu-image/channel/v2", "this program reads v1"),
    ],
)
@pytest.mark.usefixtures("published")
def test_a_channel_that_lies(store: FolderStore, path: str, value: str, problem: str) -> None:
    rewrite(store, path, value)
    assert problem in refusal(store).message


def test_a_damaged_release(store: FolderStore, published: Published) -> None:
    path = store.folder / keys.release(published.digest)
    path.write_bytes(path.read_bytes() + b" ")
    error = refusal(store)
    assert error.code == ExitCode.FAILED
    assert "is damaged" in error.message


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # the store is put back each time
@given(st.data())
@pytest.mark.usefixtures("published")
def test_no_flipped_bit_gives_another_image(store: FolderStore, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from([CHANNEL_KEY, *store.list("releases/")]))
    content = store.get(key)[0]
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    try:
        (store.folder / key).write_bytes(flipped)
        assert resolve(store, **WHERE).id == IMAGE
    except UserError:
        pass
    finally:
        (store.folder / key).write_bytes(content)


def test_a_version_leads_to_its_release(store: FolderStore, published: Published) -> None:
    record = read_record(store, **WHERE, version="2026.1130.54712")
    assert read_release(store, record.release) == release()
    with pytest.raises(UserError, match=r"no gpu-debian 2026\.1\.1 on local amd64") as caught:
        read_record(store, **WHERE, version="2026.1.1")
    assert caught.value.code == ExitCode.NOTHING


def test_a_channel_document_alone_is_enough_for_a_client(store: FolderStore, published: Published) -> None:
    """The promise to programs that have only curl and jq: one GET has id, release and bundle digest."""
    pointer = codec.load(Channel, store.get(CHANNEL_KEY)[0], name="x")
    assert pointer.target.regions["local"].id == IMAGE
    assert pointer.target.release == published.digest
    assert set(CHANNEL["target"]) == set(type(pointer.target).model_fields)


# --- the tasks ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("published")
def test_the_task_prints_only_the_id(store: FolderStore, capsys: pytest.CaptureFixture[str]) -> None:
    tasks.resolve(Context(), cloud="local", family="gpu-debian", manifest=store.name)
    assert capsys.readouterr() == (IMAGE + "\n", "")


def test_the_task_as_json(
    store: FolderStore, published: Published, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks.resolve(Context(), cloud="local", family="gpu-debian", manifest=store.name, format="json")
    assert json.loads(capsys.readouterr().out)["release_digest"] == published.digest


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"channel": "stable"}, 3, "there are: gpu-debian/local/amd64/candidate"),
        ({"region": "moon"}, 3, "ready: local"),
        ({"format": "xml"}, 2, "--format=xml"),
        ({"manifest": "s3://bucket"}, 2, "not supported yet"),
    ],
)
@pytest.mark.usefixtures("published")
def test_the_task_says_why_not(
    store: FolderStore, capsys: pytest.CaptureFixture[str], options: dict[str, str], code: int, words: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        tasks.resolve(
            Context(), **{"cloud": "local", "family": "gpu-debian", "manifest": store.name, **options}
        )
    shown = capsys.readouterr()
    assert caught.value.code == code
    assert shown.out == ""
    assert words in shown.err


@pytest.mark.parametrize("by", ["channel", "version", "digest"])
def test_show(store: FolderStore, published: Published, capsys: pytest.CaptureFixture[str], by: str) -> None:
    which = {"channel": None, "version": "2026.1130.54712", "digest": published.digest}[by]
    tasks.show(Context(), release=which, family="gpu-debian", manifest=store.name)
    shown = capsys.readouterr().out
    for fact in (
        "gpu-debian 2026.1130.54712 on local amd64",
        published.digest,
        IMAGE,
        "kernel 6.12.118+deb13-cloud-amd64",
        DATA["boot_checks"]["bundle_digest"],
    ):
        assert fact in shown
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "nvidia_driver 550.163.01 null (nobody looked)" in lines
    assert "h100 not_validated no GPU" in lines
    assert "driver-loads not_run no GPU here" in lines
    assert any(line.startswith("channel candidate, serial 1") for line in lines) == (by == "channel")


def test_show_reads_nothing_as_markup(store: FolderStore, capsys: pytest.CaptureFixture[str]) -> None:
    check = {**NOT_RUN, "id": "[red]x[/red]", "reason": "[/] \\[bold]"}
    publish(store, codec.make(Release, changed(DATA, "gates.1", check)), BLOBS, actor="ci", reason="build")
    tasks.show(Context(), family="gpu-debian", manifest=store.name)
    shown = capsys.readouterr().out
    assert "[red]x[/red]" in shown
    assert "[/] \\[bold]" in shown


def test_show_as_json_is_the_stored_document(
    store: FolderStore, published: Published, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    tasks.show(Context(), family="gpu-debian", manifest=store.name, format="json")
    assert codec.digest_of(capfdbinary.readouterr().out) == published.digest
