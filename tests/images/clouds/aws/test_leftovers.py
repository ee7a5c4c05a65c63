"""What a sweep takes and what it leaves, in an account where several things lie about."""

from __future__ import annotations

import datetime
import time
import uuid
from typing import Any

import pytest

from images.clouds.aws import api, leftovers
from images.clouds.model import Scope
from images.settings import Settings
from tests.cloud_sim import seeds
from tests.cloud_sim.box import Box
from tests.images.test_run import wait_for

REGION = "us-east-1"
NOW = time.time()
LIVE, DEAD, OTHER = "gpu-debian-1-live", "gpu-debian-1-dead", "gpu-debian-1-other"


@pytest.fixture
def ec2(box: Box) -> Any:
    return api.client("ec2", REGION)


def at(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(NOW + seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def tags(build: str, expires: float) -> list[dict[str, str]]:
    return [
        {"Key": "gpu-image:build-id", "Value": build},
        {"Key": "gpu-image:expires", "Value": at(expires)},
    ]


def launch(ec2: Any, wanted: list[dict[str, str]]) -> str:
    seed = next(seed for seed in seeds.SEEDS if seed.name.startswith("debian-13-amd64"))
    spec = [{"ResourceType": "instance", "Tags": wanted}] if wanted else []
    made = ec2.run_instances(
        ImageId=seeds.image_id(seed, REGION),
        InstanceType="t3.micro",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=spec,
    )
    return str(made["Instances"][0]["InstanceId"])


def packer_name(age: float) -> str:
    return f"packer_{int(NOW - age):08x}-{str(uuid.uuid4())[9:]}"


def group(ec2: Any, name: str, wanted: list[dict[str, str]]) -> str:
    spec = [{"ResourceType": "security-group", "Tags": wanted}] if wanted else []
    return str(ec2.create_security_group(GroupName=name, Description="-", TagSpecifications=spec)["GroupId"])


def scope(settings: Settings, **more: Any) -> Scope:
    return Scope(**{"settings": settings, "keep": (), "live": [LIVE], "dead": [DEAD], **more})


def found(settings: Settings, **more: Any) -> set[str]:
    return {item.name.split()[0] for item in leftovers.find(scope(settings, **more))}


@pytest.mark.parametrize(
    ("build", "expires", "goes"),
    [
        (LIVE, -3600, False),  # it runs on this machine: only it knows better than its tag
        (DEAD, 3600, True),
        (OTHER, 3600, False),  # somebody else's, who may still want it
        (OTHER, -1, True),
    ],
)
def test_by_build_id_else_by_expiry(
    ec2: Any, settings: Settings, build: str, expires: float, goes: bool
) -> None:
    instance = launch(ec2, tags(build, expires))
    name = f"gpu-image-{build}"
    group(ec2, name, tags(build, expires))
    assert (instance in found(settings)) == goes
    assert (name in found(settings)) == goes


def test_what_is_not_ours_stays(ec2: Any, settings: Settings) -> None:
    launch(ec2, [])
    launch(ec2, [{"Key": "Name", "Value": "production"}])
    group(ec2, "production", [])
    ec2.create_key_pair(KeyName="somebody")
    ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=1)
    assert found(settings) == set()
    assert found(settings, anybodys=True) == set()


def test_packers_own_only_when_asked_and_old(ec2: Any, settings: Settings) -> None:
    old, young = packer_name(14 * 3600), packer_name(60)
    for name in (old, young):
        ec2.create_key_pair(KeyName=name)
        group(ec2, name, [])
    assert found(settings) == set()
    assert found(settings, anybodys=True) == {old}
    assert found(settings, names=[young]) == {young}  # a dead build of ours said so


def test_removing_ends_machines_before_what_they_use(ec2: Any, settings: Settings, box: Box) -> None:
    made = group(ec2, "gpu-image-x", tags(DEAD, 3600))
    seed = next(seed for seed in seeds.SEEDS if seed.name.startswith("debian-13-amd64"))
    ec2.run_instances(
        ImageId=seeds.image_id(seed, REGION),
        InstanceType="t3.micro",
        MinCount=1,
        MaxCount=1,
        SecurityGroupIds=[made],
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags(DEAD, 3600)}],
    )
    for item in leftovers.find(scope(settings)):
        item.remove()
    assert box.leftovers() == {}


def image(box: Box, ec2: Any, name: str, wanted: list[dict[str, str]]) -> str:
    """An image whose machine is gone."""
    instance = launch(ec2, [])
    states = ec2.describe_instances
    running = {"Reservations": 0}

    def up() -> bool:
        running["state"] = states(InstanceIds=[instance])["Reservations"][0]["Instances"][0]["State"]["Name"]
        return running["state"] == "running"  # type: ignore[comparison-overlap]

    assert wait_for(up)
    made = str(ec2.create_image(InstanceId=instance, Name=name)["ImageId"])
    if wanted:
        ec2.create_tags(Resources=[made], Tags=wanted)
    ec2.terminate_instances(InstanceIds=[instance])
    return made


def test_images(box: Box, ec2: Any, settings: Settings) -> None:
    dead = image(box, ec2, "gpu-debian-2026.1130.1", tags(DEAD, 3600))
    named = image(box, ec2, "gpu-debian-2026.1130.2", tags(DEAD, 3600))
    released = image(
        box,
        ec2,
        "gpu-debian-2026.1130.3",
        [*tags(DEAD, 3600), {"Key": "gpu-image:release", "Value": "sha256:1"}],
    )
    pending = image(box, ec2, "gpu-debian-2026.1130.4", [])
    foreign = image(box, ec2, "web-2026.1130.4", [])
    gone = found(settings, keep=[named], names=["gpu-debian-2026.1130.4"])
    assert {dead, pending} <= gone
    assert not {named, released, foreign} & gone
    assert pending not in found(settings, keep=[named])  # untagged, young, and no build here knows the name
    for item in leftovers.find(scope(settings, keep=[named], names=["gpu-debian-2026.1130.4"])):
        item.remove()
    left = box.leftovers()[REGION]
    assert sorted(left["images"]) == sorted([named, released, foreign])
    assert len(left["snapshots"]) == 3


def test_only_one_build(ec2: Any, settings: Settings) -> None:
    mine = launch(ec2, tags(DEAD, 3600))
    launch(ec2, tags(OTHER, -1))
    assert found(settings, only=DEAD) == {mine}
    assert leftovers.running(scope(settings, only=DEAD))
    assert not leftovers.running(scope(settings, only=LIVE))


def test_a_refusal_is_an_error_and_not_an_empty_list(box: Box, ec2: Any, settings: Settings) -> None:
    from tests.cloud_sim.faults import Fault

    box.faults.add(Fault("DescribeInstances", "UnauthorizedOperation", status=403))
    with pytest.raises(api.AwsError, match="listing Reservations"):
        leftovers.find(scope(settings))


def test_every_region_of_the_catalog_is_looked_at() -> None:
    assert leftovers.regions() == ["us-east-1", "us-west-2"]
