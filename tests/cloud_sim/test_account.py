"""The simulated account as real boto3 sees it, through the proxy; the machines are bookkeeping here."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.cloud_sim import seeds
from tests.cloud_sim.account import Credentials
from tests.cloud_sim.box import Box
from tests.cloud_sim.faults import Call, Fault
from tests.cloud_sim.ledger import Ledger
from tests.images.test_run import wait_for

Where = dict[str, str | re.Pattern[str]]
DEBIAN = {"Name": "name", "Values": ["debian-13-amd64-*"]}


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def box(tmp_path: Path, ledger: Ledger) -> Iterator[Box]:
    with Box(target=ledger, source=tmp_path / "source", folder=tmp_path) as box:
        box.account.machines.image_seconds = 0
        yield box
    if not ledger.error:
        assert box.errors == []


@pytest.fixture
def ec2(box: Box) -> Any:
    return box.client("ec2")


def debian(ec2: Any, arch: str = "amd64") -> str:
    return image_id_of(f"debian-13-{arch}-20261101-0001", ec2.meta.region_name)


def image_id_of(name: str, region: str) -> str:
    return seeds.image_id(next(seed for seed in seeds.SEEDS if seed.name == name), region)


def launch(ec2: Any, **parameters: Any) -> str:
    """Launches an instance and waits until it runs."""
    wanted = {
        "ImageId": debian(ec2),
        "InstanceType": "m7i.large",
        "MinCount": 1,
        "MaxCount": 1,
        **parameters,
    }
    made: str = ec2.run_instances(**wanted)["Instances"][0]["InstanceId"]
    assert reaches(ec2, made, "running")
    return made


def instance(ec2: Any, instance_id: str) -> Any:
    return ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]


def state(ec2: Any, instance_id: str) -> str:
    return str(instance(ec2, instance_id)["State"]["Name"])


def reaches(ec2: Any, instance_id: str, wanted: str) -> bool:
    return wait_for(lambda: state(ec2, instance_id) == wanted)


def image(ec2: Any, image_id: str) -> Any:
    return ec2.describe_images(ImageIds=[image_id])["Images"][0]


def image_reaches(ec2: Any, image_id: str, wanted: str) -> bool:
    return wait_for(lambda: image(ec2, image_id)["State"] == wanted)


def capture(ec2: Any, name: str = "an image", **parameters: Any) -> str:
    made: str = ec2.create_image(InstanceId=launch(ec2), Name=name, **parameters)["ImageId"]
    assert image_reaches(ec2, made, "available")
    return made


@contextlib.contextmanager
def refused(code: str, message: str = ".") -> Iterator[None]:
    with pytest.raises(ClientError, match=message) as caught:
        yield
    assert caught.value.response["Error"]["Code"] == code


def tags(**pairs: str) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in pairs.items()]


# What is there.


def test_source_images_are_found_as_packer_looks_for_them(ec2: Any) -> None:
    found = ec2.describe_images(
        Owners=["136693071363"],
        Filters=[
            DEBIAN,
            {"Name": "root-device-type", "Values": ["ebs"]},
            {"Name": "virtualization-type", "Values": ["hvm"]},
        ],
    )["Images"]
    assert sorted(image["Name"] for image in found) == [
        "debian-13-amd64-20260915-0001",
        "debian-13-amd64-20261101-0001",
    ]
    assert max(found, key=lambda image: image["CreationDate"])["ImageId"] == debian(ec2)
    assert {image["RootDeviceName"] for image in found} == {"/dev/xvda"}
    noble = "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-arm64-server-*"
    (ubuntu,) = ec2.describe_images(Owners=["099720109477"], Filters=[{"Name": "name", "Values": [noble]}])[
        "Images"
    ]
    assert (ubuntu["Architecture"], ubuntu["ImdsSupport"]) == ("arm64", "v2.0")


@pytest.mark.parametrize("region", ["us-east-1", "us-west-2", "eu-west-1"])
def test_each_region_has_a_default_vpc_with_three_zones(box: Box, region: str) -> None:
    ec2 = box.client("ec2", region)
    (vpc,) = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    subnets = ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc["VpcId"]]}])["Subnets"]
    zones = [subnet["AvailabilityZone"] for subnet in subnets]
    assert len(set(zones)) == 3
    assert all(zone.startswith(region) for zone in zones)


def test_other_services_are_motos(box: Box) -> None:
    assert box.client("sts").get_caller_identity()["Account"] == "123456789012"
    ssm = box.client("ssm")
    ssm.put_parameter(Name="/a", Value="b", Type="String", Overwrite=True)
    assert ssm.get_parameter(Name="/a")["Parameter"]["Value"] == "b"
    s3 = box.client("s3")
    s3.create_bucket(Bucket="a-bucket")
    s3.put_object(Bucket="a-bucket", Key="a key/ü", Body=b"text")
    assert s3.get_object(Bucket="a-bucket", Key="a key/ü")["Body"].read() == b"text"
    with refused("ParameterNotFound"):
        ssm.get_parameter(Name="/none")
    assert box.calls[-1].error == "ParameterNotFound"


def test_what_is_not_simulated_says_so(ec2: Any, box: Box) -> None:
    with refused("UnsupportedOperation", "not simulated"):
        ec2.import_image(DiskContainers=[])


def test_two_boxes_know_nothing_of_each_other(box: Box, ec2: Any, tmp_path: Path) -> None:
    ec2.create_key_pair(KeyName="k")
    with Box(target=Ledger(), source=tmp_path, folder=tmp_path / "other") as other:
        assert other.client("ec2").describe_key_pairs()["KeyPairs"] == []
        assert other.leftovers() == {}
    assert box.leftovers() == {"us-east-1": {"key_pairs": ["k"]}}


# Instances.


def test_states_follow_the_machine(ec2: Any, ledger: Ledger, box: Box) -> None:
    ledger.hold.clear()
    made = ec2.run_instances(ImageId=debian(ec2), InstanceType="m7i.large", MinCount=1, MaxCount=1)
    one = made["Instances"][0]["InstanceId"]
    assert made["Instances"][0]["State"]["Name"] == state(ec2, one) == "pending"
    ledger.hold.set()
    assert reaches(ec2, one, "running")
    ledger.hold.clear()
    assert (
        ec2.stop_instances(InstanceIds=[one])["StoppingInstances"][0]["CurrentState"]["Name"] == "stopping"
    )
    assert state(ec2, one) == "stopping"
    with refused("IncorrectInstanceState"):
        ec2.start_instances(InstanceIds=[one])
    ledger.hold.set()
    assert reaches(ec2, one, "stopped")
    ec2.start_instances(InstanceIds=[one])
    assert reaches(ec2, one, "running")
    ec2.reboot_instances(InstanceIds=[one])
    ledger.hold.clear()
    (ended,) = ec2.terminate_instances(InstanceIds=[one])["TerminatingInstances"]
    assert (ended["PreviousState"]["Name"], ended["CurrentState"]["Name"]) == ("running", "shutting-down")
    assert box.leftovers()["us-east-1"]["instances"] == [one]
    ledger.hold.set()
    assert reaches(ec2, one, "terminated")
    assert instance(ec2, one)["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert ledger.asked == ["start", "power_off", "resume", "reboot", "destroy"]
    assert box.leftovers() == {}


def test_a_machine_gets_what_the_launch_says(ec2: Any, ledger: Ledger, tmp_path: Path) -> None:
    key = ec2.create_key_pair(KeyName="k")
    public = ec2.describe_key_pairs(KeyNames=["k"], IncludePublicKey=True)["KeyPairs"][0]["PublicKey"]
    specification = [{"ResourceType": "instance", "Tags": tags(Name="n")}]
    one = launch(ec2, KeyName="k", UserData="#cloud-config\n{}\n", TagSpecifications=specification)
    (boot,) = ledger.boots
    assert key["KeyMaterial"].startswith("-----BEGIN RSA PRIVATE KEY-----")
    assert boot.public_keys == (public.strip(),)
    assert boot.user_data == b"#cloud-config\n{}\n"
    assert (boot.instance_id, boot.image, boot.default_user) == (one, tmp_path / "source", "admin")
    assert (boot.region, boot.tags) == ("us-east-1", {"Name": "n"})
    seen = instance(ec2, one)
    assert boot.address == seen["PublicIpAddress"]
    assert re.fullmatch(r"127\.77\.\d+\.\d+", boot.address)
    assert seen["NetworkInterfaces"][0]["Association"]["PublicIp"] == boot.address
    assert boot.zone == seen["Placement"]["AvailabilityZone"]
    assert ec2.get_console_output(InstanceId=one)["Output"] == f"console of {one}\n"


@pytest.mark.parametrize(("behaviour", "end"), [("stop", "stopped"), ("terminate", "terminated")])
def test_a_machine_that_powers_itself_off(ec2: Any, ledger: Ledger, behaviour: str, end: str) -> None:
    one = launch(ec2, InstanceInitiatedShutdownBehavior=behaviour)
    ledger.on_power_off(one)
    assert reaches(ec2, one, end)
    assert instance(ec2, one)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert ledger.asked == (["start"] if end == "stopped" else ["start", "destroy"])


def test_a_machine_that_cannot_start(ec2: Any, ledger: Ledger, box: Box) -> None:
    ledger.error = OSError("no memory")
    made = ec2.run_instances(ImageId=debian(ec2), InstanceType="m7i.large", MinCount=1, MaxCount=1)
    one = made["Instances"][0]["InstanceId"]
    assert reaches(ec2, one, "terminated")
    assert instance(ec2, one)["StateReason"]["Code"] == "Server.InternalError"
    assert "no memory" in box.errors[0]
    assert box.leftovers() == {}


def test_volumes_come_from_the_image_and_the_request(ec2: Any, box: Box) -> None:
    one = launch(
        ec2,
        BlockDeviceMappings=[
            {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3"}},
            {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 5, "DeleteOnTermination": False}},
        ],
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags(build="1")}],
    )
    volumes = ec2.describe_volumes(Filters=[{"Name": "tag:build", "Values": ["1"]}])["Volumes"]
    by_device = {volume["Attachments"][0]["Device"]: volume for volume in volumes}
    assert {name: volume["Size"] for name, volume in by_device.items()} == {"/dev/xvda": 20, "/dev/sdf": 5}
    assert by_device["/dev/xvda"]["SnapshotId"].startswith("snap-")
    ec2.terminate_instances(InstanceIds=[one])
    assert reaches(ec2, one, "terminated")
    kept = by_device["/dev/sdf"]["VolumeId"]
    assert box.leftovers() == {"us-east-1": {"volumes": [kept]}}
    ec2.delete_volume(VolumeId=kept)
    with refused("InvalidBlockDeviceMapping", "smaller than snapshot"):
        launch(ec2, BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 4}}])


def test_instances_are_found_by_filters(ec2: Any) -> None:
    specification = [{"ResourceType": "instance", "Tags": tags(build="b1", Name="gate")}]
    one, other = launch(ec2, TagSpecifications=specification), launch(ec2)

    def found(name: str, value: str) -> set[str]:
        answer = ec2.describe_instances(Filters=[{"Name": name, "Values": [value]}])
        return {i["InstanceId"] for r in answer["Reservations"] for i in r["Instances"]}

    assert found("tag:build", "b1") == found("tag-key", "build") == found("tag:Name", "ga*") == {one}
    assert found("instance-state-name", "running") == {one, other}
    ec2.terminate_instances(InstanceIds=[other])
    assert reaches(ec2, other, "terminated")
    assert found("instance-state-name", "running") == {one}


def test_a_launch_is_carried_out_once_for_a_token(ec2: Any, ledger: Ledger) -> None:
    first, second = launch(ec2, ClientToken="t"), launch(ec2, ClientToken="t")
    assert first == second
    assert ledger.asked == ["start"]


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"ImageId": "ami-00000000000000000"}, "InvalidAMIID.NotFound"),
        ({"KeyName": "none"}, "InvalidKeyPair.NotFound"),
        ({"InstanceType": "m7.gigantic"}, "InvalidInstanceType"),
        ({"InstanceType": "m7g.large"}, "InvalidParameterValue"),  # arm64
        ({"SubnetId": "subnet-00000000"}, "InvalidSubnetID.NotFound"),
        ({"SecurityGroupIds": ["sg-00000000"]}, "InvalidGroup.NotFound"),
        ({"DryRun": True}, "DryRunOperation"),
    ],
)
def test_launches_that_are_refused(ec2: Any, box: Box, parameters: dict[str, Any], code: str) -> None:
    with refused(code):
        launch(ec2, **parameters)
    assert box.calls[-1].error == code
    assert box.leftovers() == {}


def test_only_what_is_there_can_be_tagged(ec2: Any) -> None:
    with refused("InvalidInstanceID.NotFound"):
        ec2.create_tags(Resources=["i-00000000000000000"], Tags=tags(a="b"))


def test_metadata_options_that_are_not_named_stay(ec2: Any) -> None:
    one = launch(ec2, MetadataOptions={"HttpTokens": "required", "HttpPutResponseHopLimit": 2})
    ec2.modify_instance_metadata_options(InstanceId=one, InstanceMetadataTags="enabled")
    options = instance(ec2, one)["MetadataOptions"]
    assert options["HttpTokens"] == "required"
    assert (options["HttpPutResponseHopLimit"], options["InstanceMetadataTags"]) == (2, "enabled")


def test_key_pairs_and_security_groups(ec2: Any, box: Box) -> None:
    key = ec2.create_key_pair(
        KeyName="k1", TagSpecifications=[{"ResourceType": "key-pair", "Tags": tags(build="b")}]
    )
    (found,) = ec2.describe_key_pairs(Filters=[{"Name": "tag-key", "Values": ["build"]}])["KeyPairs"]
    assert found["KeyName"] == "k1"
    group = ec2.create_security_group(
        GroupName="g1",
        Description="d",
        TagSpecifications=[{"ResourceType": "security-group", "Tags": tags(build="b")}],
    )["GroupId"]
    for name, value in {"group-name": "g*", "tag:build": "b", "tag-key": "build"}.items():
        answer = ec2.describe_security_groups(Filters=[{"Name": name, "Values": [value]}])
        assert [g["GroupId"] for g in answer["SecurityGroups"]] == [group]
    one = launch(ec2, SecurityGroupIds=[group])
    with refused("DependencyViolation"):
        ec2.delete_security_group(GroupId=group)
    ec2.terminate_instances(InstanceIds=[one])
    assert reaches(ec2, one, "terminated")
    assert box.leftovers()["us-east-1"] == {"key_pairs": ["k1"], "security_groups": ["g1"]}
    ec2.delete_security_group(GroupId=group)
    ec2.delete_key_pair(KeyPairId=key["KeyPairId"])
    assert box.leftovers() == {}
    with refused("CannotDelete"):
        ec2.delete_security_group(GroupName="default")


# Images.


def test_a_capture_is_what_the_instance_was(ec2: Any, ledger: Ledger, box: Box) -> None:
    device = [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 12}}]
    one = launch(ec2, BlockDeviceMappings=device)
    box.account.machines.image_seconds = 60
    made = ec2.create_image(
        InstanceId=one,
        Name="an image",
        Description="a text",
        TagSpecifications=[
            {"ResourceType": "image", "Tags": tags(kind="image")},
            {"ResourceType": "snapshot", "Tags": tags(kind="snapshot")},
        ],
    )["ImageId"]
    assert image(ec2, made)["State"] == "pending"
    with refused("InvalidAMIID.Unavailable"):
        launch(ec2, ImageId=made)
    with refused("InvalidAMIName.Duplicate"):
        ec2.create_image(InstanceId=one, Name="an image")
    with refused("InvalidAMIName.Malformed"):
        ec2.create_image(InstanceId=one, Name="no:colons")
    box.account.backend("us-east-1").image(made).settle(None)
    filters = [{"Name": "root-device-type", "Values": ["ebs"]}, {"Name": "state", "Values": ["available"]}]
    (found,) = ec2.describe_images(Owners=["self"], Filters=filters)["Images"]
    assert (found["ImageId"], found["Description"], found["Architecture"]) == (made, "a text", "x86_64")
    assert (found["RootDeviceName"], found["BootMode"]) == ("/dev/xvda", "uefi-preferred")
    assert found["SourceInstanceId"] == one
    assert found["Tags"] == tags(kind="image")
    (mapping,) = found["BlockDeviceMappings"]
    assert (mapping["DeviceName"], mapping["Ebs"]["VolumeSize"]) == ("/dev/xvda", 12)
    (snapshot,) = ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]
    assert snapshot["SnapshotId"] == mapping["Ebs"]["SnapshotId"]
    assert (snapshot["State"], snapshot["Tags"]) == ("completed", tags(kind="snapshot"))
    assert snapshot["Description"] == f"Created by CreateImage({one}) for {made}"
    assert wait_for(lambda: ledger.asked == ["start", "power_off", "capture", "resume"])
    launch(ec2, ImageId=made)
    assert ledger.boots[-1].image.is_dir()


def test_a_capture_without_reboot(ec2: Any, ledger: Ledger) -> None:
    capture(ec2, NoReboot=True)
    assert ledger.asked == ["start", "capture"]


@pytest.mark.parametrize(("copied", "ends"), [(False, "failed"), (True, "available"), (None, "failed")])
def test_a_capture_that_fails(ec2: Any, box: Box, copied: bool | None, ends: str) -> None:
    box.faults.image_fails(region="eu-west-1", reason="elsewhere")
    box.faults.image_fails(region="us-east-1", copied=copied, reason="disk on fire")
    made = ec2.create_image(InstanceId=launch(ec2), Name="an image")["ImageId"]
    assert image_reaches(ec2, made, ends)
    if ends == "failed":
        assert image(ec2, made)["StateReason"]["Message"] == "disk on fire"
        assert ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"][0]["State"] == "error"


def test_a_copy(ec2: Any, box: Box, ledger: Ledger) -> None:
    source = capture(ec2)
    ec2.create_tags(Resources=[source], Tags=tags(family="f", kind="source"))
    west = box.client("ec2", "us-west-2")
    box.account.machines.image_seconds = 60
    wanted: dict[str, Any] = {
        "Name": "a copy",
        "SourceImageId": source,
        "SourceRegion": "us-east-1",
        "ClientToken": "once",
        "CopyImageTags": True,
        "TagSpecifications": [
            {"ResourceType": "image", "Tags": tags(kind="copy")},
            {"ResourceType": "snapshot", "Tags": tags(kind="snapshot")},
        ],
    }
    made = west.copy_image(**wanted)["ImageId"]
    assert west.copy_image(**wanted)["ImageId"] == made
    assert image(west, made)["State"] == "pending"
    with refused("InvalidAMIName.Duplicate"):
        west.copy_image(**{**wanted, "ClientToken": "twice"})
    box.account.backend("us-west-2").image(made).settle(None)
    copy = image(west, made)
    assert (copy["State"], copy["SourceImageId"], copy["SourceImageRegion"]) == (
        "available",
        source,
        "us-east-1",
    )
    assert {tag["Key"]: tag["Value"] for tag in copy["Tags"]} == {"family": "f", "kind": "copy"}
    (snapshot,) = west.describe_snapshots(OwnerIds=["self"])["Snapshots"]
    assert snapshot["Tags"] == tags(kind="snapshot")
    assert west.describe_images(Owners=["self"])["Images"] == [copy]
    launch(west, ImageId=made)
    assert ledger.boots[-1].image == box.account.backend("us-east-1").image(source).folder


def test_a_copy_that_fails(ec2: Any, box: Box) -> None:
    source = capture(ec2)
    box.faults.image_fails(region="us-west-2", copied=True, times=1)
    west = box.client("ec2", "us-west-2")
    first = west.copy_image(Name="copy 1", SourceImageId=source, SourceRegion="us-east-1")["ImageId"]
    assert image_reaches(west, first, "failed")
    second = west.copy_image(Name="copy 2", SourceImageId=source, SourceRegion="us-east-1")["ImageId"]
    assert image_reaches(west, second, "available")
    with refused("InvalidRequest"):
        ec2.copy_image(Name="copy 3", SourceImageId=first, SourceRegion="us-west-2")
    with refused("InvalidAMIID.NotFound"):
        west.copy_image(Name="copy 4", SourceImageId=source, SourceRegion="eu-west-1")


def test_attributes_of_an_image(ec2: Any) -> None:
    made = capture(ec2)
    ec2.modify_image_attribute(ImageId=made, Description={"Value": "new text"})
    ec2.modify_image_attribute(ImageId=made, ImdsSupport={"Value": "v2.0"})
    ec2.modify_image_attribute(ImageId=made, LaunchPermission={"Add": [{"UserId": "111122223333"}]})
    found = image(ec2, made)
    assert (found["Description"], found["ImdsSupport"]) == ("new text", "v2.0")
    permissions = ec2.describe_image_attribute(ImageId=made, Attribute="launchPermission")[
        "LaunchPermissions"
    ]
    assert permissions == [{"UserId": "111122223333"}]
    assert ec2.describe_image_attribute(ImageId=made, Attribute="imdsSupport")["ImdsSupport"] == {
        "Value": "v2.0"
    }
    assert instance(ec2, launch(ec2, ImageId=made))["MetadataOptions"]["HttpTokens"] == "required"
    ec2.disable_image(ImageId=made)
    assert (
        ec2.describe_image_attribute(ImageId=made, Attribute="launchPermission")["LaunchPermissions"] == []
    )
    with refused("AuthFailure"):
        ec2.modify_image_attribute(ImageId=debian(ec2), Description={"Value": "mine"})
    with refused("InvalidParameterValue"):
        ec2.enable_image(ImageId=made)
        ec2.modify_image_attribute(ImageId=made, ImdsSupport={"Value": "v1.0"})


def test_the_end_of_an_image(ec2: Any, box: Box) -> None:
    made = capture(ec2)
    ec2.enable_image_deprecation(ImageId=made, DeprecateAt="2027-05-01T00:00:00Z")
    assert image(ec2, made)["DeprecationTime"] == "2027-05-01T00:00:00.000Z"
    ec2.disable_image_deprecation(ImageId=made)
    assert "DeprecationTime" not in image(ec2, made)
    ec2.enable_image_deregistration_protection(ImageId=made, WithCooldown=True)
    assert image(ec2, made)["DeregistrationProtection"] == "enabled-with-cooldown"
    with refused("OperationNotPermitted"):
        ec2.deregister_image(ImageId=made)
    ec2.disable_image_deregistration_protection(ImageId=made)
    (snapshot,) = ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]
    with refused("InvalidSnapshot.InUse"):
        ec2.delete_snapshot(SnapshotId=snapshot["SnapshotId"])
    answer = ec2.deregister_image(ImageId=made, DeleteAssociatedSnapshots=True)
    assert answer["DeleteSnapshotResults"] == [
        {"SnapshotId": snapshot["SnapshotId"], "ReturnCode": "success"}
    ]
    with refused("InvalidAMIID.Unavailable"):
        ec2.deregister_image(ImageId=made)
    other = capture(ec2, "another")
    assert ec2.deregister_image(ImageId=other).get("DeleteSnapshotResults", []) == []
    assert len(box.leftovers()["us-east-1"]["snapshots"]) == 1  # of the second


# Credentials.


def test_only_our_key_is_accepted(box: Box) -> None:
    ours = box.account.credentials
    for wrong in (
        Credentials("AKIAIOSFODNN7EXAMPLE", ours.secret_key),
        Credentials(ours.access_key, "another secret"),
        Credentials(ours.access_key, ours.secret_key, "a token that it does not have"),
    ):
        with refused("AuthFailure"):
            box.client("ec2", credentials=wrong).describe_regions()
        code = "SignatureDoesNotMatch" if wrong.secret_key != ours.secret_key else "InvalidClientTokenId"
        with refused(code):
            box.client("sts", credentials=wrong).get_caller_identity()


def test_sessions_end(box: Box) -> None:
    session = box.account.session()
    assert box.client("sts", credentials=session).get_caller_identity()["Account"] == "123456789012"
    expired = box.account.session(expired=True)
    with refused("RequestExpired"):
        box.client("ec2", credentials=expired).describe_regions()
    with refused("ExpiredToken"):
        box.client("sts", credentials=expired).get_caller_identity()


def test_an_unsigned_request_is_refused(box: Box) -> None:
    config = Config(proxies={"https": box.proxy.url}, signature_version=UNSIGNED)
    client = boto3.client("ec2", "us-east-1", config=config, verify=str(box.proxy.authority.bundle))
    with refused("MissingAuthenticationToken"):
        client.describe_regions()


# Faults.


def test_a_fault_strikes_where_and_as_often_as_it_says(ec2: Any, box: Box, ledger: Ledger) -> None:
    subnets = ec2.describe_subnets()["Subnets"]
    by_zone = {subnet["AvailabilityZone"]: subnet["SubnetId"] for subnet in subnets}
    where: Where = {"InstanceType": "g6.xlarge", "AvailabilityZone": re.compile("a$")}
    box.faults.add(Fault("RunInstances", "InsufficientInstanceCapacity", status=500, times=2, where=where))
    for placement in (
        {"SubnetId": by_zone["us-east-1a"]},
        {"Placement": {"AvailabilityZone": "us-east-1a"}},
    ):
        with refused("InsufficientInstanceCapacity"):
            launch(ec2, InstanceType="g6.xlarge", **placement)
    launch(ec2, InstanceType="g6.xlarge", SubnetId=by_zone["us-east-1b"])
    launch(ec2, InstanceType="m7i.large", SubnetId=by_zone["us-east-1a"])
    launch(ec2, InstanceType="g6.xlarge", SubnetId=by_zone["us-east-1a"])
    assert [boot.zone for boot in ledger.boots] == ["us-east-1b", "us-east-1a", "us-east-1a"]
    errors = [call.error for call in box.faults.actions("RunInstances")]
    assert errors == ["InsufficientInstanceCapacity"] * 2 + [None] * 3


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("VcpuLimitExceeded", 400),
        ("RequestLimitExceeded", 503),
        ("InternalError", 500),
        ("UnauthorizedOperation", 403),
        ("InvalidAMIID.NotFound", 400),
    ],
)
def test_faults_look_like_errors_of_the_service(ec2: Any, box: Box, code: str, status: int) -> None:
    box.faults.add(Fault("RunInstances", code, "<because> & so", status, region="us-east-1"))
    with refused(code, "<because> & so"):
        launch(ec2)
    launch(box.client("ec2", "us-west-2"))
    box.faults.clear()
    launch(ec2)


def test_a_retry_survives_a_fault_that_passes(box: Box) -> None:
    """As production's clients: botocore repeats what is throttled, and the launch happens once."""
    client = box.client("ec2", attempts=3)
    box.faults.add(Fault("RunInstances", "RequestLimitExceeded", status=503, times=1))
    launch(client)
    assert len(box.faults.actions("RunInstances")) == 2
    assert len(box.leftovers()["us-east-1"]["instances"]) == 1


def test_faults_of_other_services(box: Box) -> None:
    box.faults.add(Fault("GetCallerIdentity", "Throttling", times=1))
    box.faults.add(Fault("GetParameter", "ThrottlingException", times=1))
    with refused("Throttling"):
        box.client("sts").get_caller_identity()
    with refused("ThrottlingException"):
        box.client("ssm").get_parameter(Name="/a")


def test_hooks_run_at_their_moment(ec2: Any, box: Box, ledger: Ledger) -> None:
    moments: list[tuple[str, int, bool]] = []
    answered = threading.Event()
    told = threading.Event()

    def note(moment: str) -> Callable[[Call], None]:
        def hook(call: Call) -> None:
            instances = box.leftovers().get("us-east-1", {}).get("instances", [])
            if moment == "after":
                answered.wait(10)
            moments.append((moment, len(instances), answered.is_set()))
            if moment == "after":
                told.set()

        return hook

    box.faults.before("RunInstances", note("before"))
    box.faults.done("RunInstances", note("done"))
    box.faults.after("RunInstances", note("after"))
    ec2.run_instances(ImageId=debian(ec2), InstanceType="m7i.large", MinCount=1, MaxCount=1)
    answered.set()
    assert told.wait(10)
    # "after" could wait for the client to have its answer: the answer does not wait for the hook.
    assert moments == [("before", 0, False), ("done", 1, False), ("after", 1, True)]
    launch(ec2)
    assert len(moments) == 3


def test_a_hook_that_fails_is_noticed(ec2: Any, box: Box) -> None:
    def hook(_call: Call) -> None:
        raise ValueError("in a hook")

    box.faults.after("DescribeRegions", hook)
    ec2.describe_regions()
    assert wait_for(lambda: bool(box.errors))
    assert "in a hook" in box.errors.pop()


def test_a_dead_endpoint_refuses_connections(ec2: Any, box: Box) -> None:
    ec2.describe_regions()
    box.faults.endpoint_dies()
    with pytest.raises(BotoCoreError):
        ec2.describe_regions()
    port = urlsplit(box.proxy.url).port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port or 0))


# The proxy.


def tunnel(box: Box, host: str, port: int = 443) -> http.client.HTTPSConnection:
    at = urlsplit(box.proxy.url)
    context = ssl.create_default_context(cafile=box.proxy.authority.bundle)
    connection = http.client.HTTPSConnection(at.hostname or "", at.port, timeout=10, context=context)
    connection.set_tunnel(host, port)
    return connection


@pytest.mark.parametrize(
    ("host", "port"),
    [("example.com", 443), ("amazonaws.com.example.com", 443), ("ec2.us-east-1.amazonaws.com", 80)],
)
def test_a_host_that_nobody_serves_is_refused(box: Box, host: str, port: int) -> None:
    with pytest.raises(OSError, match="502"):
        tunnel(box, host, port).connect()
    assert box.proxy.refused == [f"{host}:{port}"]


def test_a_region_that_does_not_exist_cannot_be_reached(box: Box) -> None:
    with pytest.raises(BotoCoreError):
        box.client("ec2", "mars-north-1").describe_regions()
    with refused("InvalidParameterValue", "mars-north-1"):
        box.client("ec2").copy_image(Name="copy", SourceImageId="ami-0", SourceRegion="mars-north-1")


def test_an_unencrypted_request_is_refused(box: Box) -> None:
    at = urlsplit(box.proxy.url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=10)
    connection.request("GET", "http://example.com/")
    assert connection.getresponse().status == 502
    connection.close()


def test_a_connection_serves_many_requests(box: Box) -> None:
    connection = tunnel(box, "ec2.us-east-1.amazonaws.com")
    for _ in range(3):
        connection.request("POST", "/", body=iter([b"Action=", b"DescribeRegions"]))  # chunked
        answer = connection.getresponse()
        assert b"MissingAuthenticationToken" in answer.read()
    connection.close()
    assert [call.action for call in box.calls] == ["DescribeRegions"] * 3


def test_a_client_that_does_not_trust_the_ca_gets_nothing(box: Box) -> None:
    connection = tunnel(box, "ec2.us-east-1.amazonaws.com")
    connection._context = ssl.create_default_context()  # type: ignore[attr-defined]
    with pytest.raises(ssl.SSLCertVerificationError):
        connection.connect()
    assert box.calls == []


def test_the_environment_leads_nowhere_else(box: Box) -> None:
    base = {"AWS_PROFILE": "production", "AWS_SESSION_TOKEN": "t", "HTTP_PROXY": "http://p", "PATH": "/bin"}
    environment = box.environment(base)
    assert environment.keys().isdisjoint({"AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY"})
    assert environment["PATH"] == "/bin"
    assert environment["AWS_CA_BUNDLE"] == str(box.proxy.authority.bundle)
    assert not Path(environment["AWS_CONFIG_FILE"]).exists()
    assert environment["GPU_IMAGE_SIMULATION"]


def test_the_environment_is_all_that_a_client_needs(box: Box) -> None:
    program = (
        "import boto3; print(len(boto3.client('ec2').describe_images(Owners=['136693071363'])['Images']))"
    )
    words = box.command([sys.executable, "-c", program])
    result = subprocess.run(words, env=box.environment(), capture_output=True, text=True, check=False)
    assert (result.stdout, result.returncode) == ("4\n", 0), result.stderr
