"""What is done to images after Packer made them, against the simulated account."""

from __future__ import annotations

from typing import Any

import pytest

from images.clouds.aws import ami, api
from images.errors import UserError
from tests.cloud_sim.box import Box
from tests.cloud_sim.faults import Call, Fault
from tests.images.clouds.aws.test_leftovers import image

HOME, AWAY = "us-east-1", "us-west-2"
TAGS = {"gpu-image:build-id": "b-1"}


@pytest.fixture
def ec2(box: Box) -> Any:
    return api.client("ec2", HOME)


@pytest.fixture
def source(box: Box, ec2: Any) -> str:
    made = image(box, ec2, "gpu-debian-2026.1130.1", [])
    assert ami.wait(made, HOME, poll=0.05) == "available"
    return made


def copy(source: str, begun: list[str]) -> str:
    return ami.copy(source, HOME, AWAY, name="gpu-debian", tags=TAGS, poll=0.05, begun=begun.append)


def test_a_copy_is_tagged_with_its_snapshots_and_made_once(box: Box, source: str) -> None:
    begun: list[str] = []
    made = copy(source, begun)
    assert begun == [made]
    found = ami.describe(made, AWAY)
    assert found and ami.tags_of(found) == {**TAGS, "gpu-image:source": source}
    snapshots = api.client("ec2", AWAY).describe_snapshots(SnapshotIds=ami.snapshots_of(found))["Snapshots"]
    assert [ami.tags_of(item)["gpu-image:build-id"] for item in snapshots] == ["b-1"]
    assert copy(source, begun) == made
    assert len(box.faults.actions("CopyImage")) == 1


def test_a_copy_that_was_begun_and_lost_is_found_again(box: Box, source: str) -> None:
    """The builder died between EC2's answer and its own note of the id."""
    box.account.machines.image_seconds = 1
    first: list[str] = []

    def die(identifier: str) -> None:
        first.append(identifier)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ami.copy(source, HOME, AWAY, name="gpu-debian", tags=TAGS, poll=0.05, begun=die)
    assert copy(source, []) == first[0]
    assert len(box.faults.actions("CopyImage")) == 1


def test_a_copy_that_fails_is_deleted_and_made_again(box: Box, source: str) -> None:
    box.faults.image_fails(region=AWAY, copied=True, times=1)
    begun: list[str] = []
    made = copy(source, begun)
    assert begun[-1] == made and len(begun) == 2
    assert box.leftovers()[AWAY]["images"] == [made]
    assert len(box.leftovers()[AWAY]["snapshots"]) == 1


def test_copies_that_fail_for_good_are_an_error_and_leave_nothing(box: Box, source: str) -> None:
    box.faults.image_fails(region=AWAY, copied=True)
    with pytest.raises(UserError, match="went to the state failed"):
        copy(source, [])
    assert AWAY not in box.leftovers()


def test_too_many_copies_on_their_way_are_waited_for(box: Box, source: str) -> None:
    box.faults.add(Fault("CopyImage", "ResourceLimitExceeded", times=2))
    assert ami.state(copy(source, []), AWAY) == "available"
    assert len(box.faults.actions("CopyImage")) == 3


def test_another_refusal_of_a_copy_is_an_error_at_once(box: Box, source: str) -> None:
    box.faults.add(Fault("CopyImage", "UnauthorizedOperation", status=403))
    with pytest.raises(UserError, match=r"copying .* to us-west-2: UnauthorizedOperation"):
        copy(source, [])


def test_states(box: Box, ec2: Any, source: str) -> None:
    assert ami.state("ami-0123456789abcdef0", HOME) == "missing"
    assert ami.state(source, HOME) == "available"
    assert ami.state(source, AWAY) == "missing"
    ami.delete(source, HOME)
    ami.delete(source, HOME)
    assert ami.state(source, HOME) == "missing"
    assert "snapshots" not in box.leftovers().get(HOME, {})


def test_sharing_is_verified(box: Box, ec2: Any, source: str) -> None:
    ami.share(source, HOME, ["444455556666"])
    found = ec2.describe_image_attribute(ImageId=source, Attribute="launchPermission")
    assert found["LaunchPermissions"] == [{"UserId": "444455556666"}]
    snapshot = ami.snapshots_of(ami.describe(source, HOME) or {})[0]
    seen = ec2.describe_snapshot_attribute(SnapshotId=snapshot, Attribute="createVolumePermission")
    assert seen["CreateVolumePermissions"] == [{"UserId": "444455556666"}]

    def undo(_: Call) -> None:
        ec2.modify_image_attribute(
            ImageId=source,
            Attribute="launchPermission",
            LaunchPermission={"Remove": [{"UserId": "111122223333"}]},
        )

    box.faults.before("DescribeImageAttribute", undo)
    with pytest.raises(UserError, match="is not shared with"):
        ami.share(source, HOME, ["111122223333"])


@pytest.mark.parametrize("account", ["12345", "all", "arn:aws:iam::444455556666:root", ""])
def test_who_is_no_account_is_refused(account: str, source: str) -> None:
    with pytest.raises(UserError, match="is no AWS account"):
        ami.share(source, HOME, [account])


GOOD = {
    "Architecture": "x86_64",
    "ImdsSupport": "v2.0",
    "EnaSupport": True,
    "BootMode": "uefi-preferred",
    "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"Encrypted": False}}],
}


@pytest.mark.parametrize(
    ("change", "asked", "words"),
    [
        ({}, {}, []),
        ({"Architecture": "arm64"}, {}, ["architecture"]),
        ({"ImdsSupport": None}, {}, ["IMDSv2"]),
        ({"EnaSupport": False}, {}, ["EnaSupport"]),
        ({"BootMode": None}, {}, ["boot mode is the default (BIOS)"]),
        ({"BootMode": "legacy-bios"}, {}, ["boot mode is legacy-bios"]),
        ({}, {"encrypted": True}, ["/dev/sda1 is not encrypted"]),
        ({"Architecture": "arm64", "BootMode": None}, {"arch": "arm64", "boot_mode": "uefi"}, []),
    ],
)
def test_flags_that_are_not_as_asked_for(
    change: dict[str, Any], asked: dict[str, Any], words: list[str]
) -> None:
    wanted = {"arch": "amd64", "boot_mode": "uefi-preferred", "encrypted": False, **asked}
    found = ami.problems({**GOOD, **change}, **wanted)
    assert len(found) == len(words)
    for problem, word in zip(found, words, strict=True):
        assert word in problem


def test_imdsv2_is_demanded_of_machines_from_the_image(ec2: Any, source: str) -> None:
    ami.require_imdsv2(source, HOME)
    assert ec2.describe_images(ImageIds=[source])["Images"][0]["ImdsSupport"] == "v2.0"
