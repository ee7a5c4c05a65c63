"""Machine images (AMIs): their state, and what is done to them after Packer made them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from images.clouds.aws import api
from images.clouds.aws.api import AwsError, explained
from images.errors import ExitCode, UserError

AVAILABLE_SECONDS = 3600.0  # a copy between regions has taken 53 minutes (hashicorp/packer#8415)
TRIES = 3  # copies that went to `failed` before we give up

SOURCE_TAG = "gpu-image:source"
RELEASE_TAG = "gpu-image:release"


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as the API takes them."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def tags_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """Tags as the API gives them."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags") or []}


def describe(image_id: str, region: str) -> dict[str, Any] | None:
    """What the API says of an image; None when there is none of that id."""
    found: dict[str, Any] = {}
    with explained(f"looking at {image_id} in {region}", ignore=["InvalidAMIID.*"]):
        found = api.client("ec2", region).describe_images(ImageIds=[image_id])
    images = found.get("Images") or []
    return images[0] if images else None


def state(image_id: str, region: str) -> str:
    """``available``, ``pending``, ``failed`` or ``missing``."""
    image = describe(image_id, region)
    if image is None:
        return "missing"
    found = str(image["State"])
    return {"available": "available", "pending": "pending", "transient": "pending"}.get(found, "failed")


def wait(image_id: str, region: str, *, poll: float, timeout: float = AVAILABLE_SECONDS) -> str:
    """Waits while the image is pending; returns its state. Raises ``UserError`` at the timeout."""
    deadline = time.monotonic() + timeout
    while (found := state(image_id, region)) == "pending":
        if time.monotonic() > deadline:
            raise UserError(
                f"{image_id} in {region} is still pending after {timeout / 60:.0f} minutes",
                hint="the same command goes on waiting for it",
                code=ExitCode.FAILED,
            )
        time.sleep(poll)  # EC2 tells nobody; until the deadline above
    return found


def snapshots_of(image: Mapping[str, Any]) -> list[str]:
    """The snapshots behind an image."""
    mappings = image.get("BlockDeviceMappings") or []
    return [mapping["Ebs"]["SnapshotId"] for mapping in mappings if mapping.get("Ebs", {}).get("SnapshotId")]


def tag(image_id: str, region: str, tags: Mapping[str, str]) -> None:
    """Tags an image and its snapshots."""
    image = describe(image_id, region)
    with explained(f"tagging {image_id} in {region}"):
        resources = [image_id, *snapshots_of(image or {})]
        api.client("ec2", region).create_tags(Resources=resources, Tags=tag_list(tags))


def delete(image_id: str, region: str) -> None:
    """Deregisters an image and deletes its snapshots; one that is gone already is no error."""
    image = describe(image_id, region)
    ec2 = api.client("ec2", region)
    if image is None:
        return
    with explained(f"deleting {image_id} in {region}", ignore=["InvalidAMIID.*"]):
        ec2.deregister_image(ImageId=image_id)
    for snapshot in snapshots_of(image):
        delete_snapshot(snapshot, region)


def delete_snapshot(snapshot: str, region: str) -> None:
    """Deletes a snapshot; one that is gone already is no error."""
    with explained(f"deleting {snapshot} in {region}", ignore=["InvalidSnapshot.NotFound"]):
        api.client("ec2", region).delete_snapshot(SnapshotId=snapshot)


def require_imdsv2(image_id: str, region: str) -> None:
    """Machines from this image offer the metadata service with session tokens only.

    Set here and not by the template, because Packer 1.6 cannot.
    """
    with explained(f"setting imdsSupport of {image_id}"):
        api.client("ec2", region).modify_image_attribute(
            ImageId=image_id, Attribute="imdsSupport", ImdsSupport={"Value": "v2.0"}
        )


def describe_as(image_id: str, region: str, text: str) -> None:
    """Sets an image's description. Packer would do it before it tags, when no policy knows the image yet."""
    with explained(f"describing {image_id}"):
        api.client("ec2", region).modify_image_attribute(ImageId=image_id, Description={"Value": text[:255]})


def problems(image: Mapping[str, Any], *, arch: str, boot_mode: str, encrypted: bool) -> list[str]:
    """Where a created image is not what was asked for, a line each.

    A template can ask for what a builder ignores, and no flag can be mended once machines run from it.
    """
    found = []
    wanted = {"amd64": "x86_64", "arm64": "arm64"}[arch]
    mode = image.get("BootMode")
    if image.get("Architecture") != wanted:
        found.append(f"its architecture is {image.get('Architecture')}, not {wanted}")
    if image.get("ImdsSupport") != "v2.0":
        found.append("it does not demand IMDSv2 (ImdsSupport)")
    if not image.get("EnaSupport"):
        found.append("it has no enhanced networking (EnaSupport)")
    if mode != boot_mode and not (arch == "arm64" and mode in (None, "uefi")):
        found.append(f"its boot mode is {mode or 'the default (BIOS)'}, not {boot_mode}")
    for mapping in image.get("BlockDeviceMappings") or []:
        if encrypted and not mapping.get("Ebs", {}).get("Encrypted"):
            found.append(f"its disk {mapping.get('DeviceName')} is not encrypted")
    return found


def copy(
    source: str,
    source_region: str,
    region: str,
    *,
    name: str,
    tags: Mapping[str, str],
    poll: float,
    begun: Callable[[str], None],
) -> str:
    """Copies an image to ``region`` and returns the copy's id when it is available there.

    A copy that is there or on its way is found again by its tags, which it has from the start, and a request
    whose answer got lost by its client token: a retry never makes a second one. One that went to ``failed``
    is deleted and begun anew, a few times. Waits while too many copies are on their way in the account (the
    quota is five a destination).
    """
    for _ in range(TRIES):
        identifier = _there(source, region) or _begin(
            source, source_region, region, name=name, tags=tags, poll=poll
        )
        begun(identifier)
        found = wait(identifier, region, poll=poll)
        if found == "available":
            # Not left to CopyImageTags: tags do not come along when the source belongs to somebody else.
            tag(identifier, region, {**tags, SOURCE_TAG: source})
            return identifier
        delete(identifier, region)
    raise UserError(f"{TRIES} copies of {source} to {region} went to the state failed", code=ExitCode.FAILED)


def _there(source: str, region: str) -> str | None:
    """A copy of the image that is available or pending; one that failed is deleted."""
    with explained(f"looking for copies of {source} in {region}"):
        found = api.client("ec2", region).describe_images(
            Owners=["self"], Filters=[{"Name": f"tag:{SOURCE_TAG}", "Values": [source]}]
        )
    for image in found["Images"]:
        if image["State"] in ("available", "pending"):
            return str(image["ImageId"])
        delete(image["ImageId"], region)
    return None


def _begin(
    source: str,
    source_region: str,
    region: str,
    *,
    name: str,
    tags: Mapping[str, str],
    poll: float,
) -> str:
    # New for each copy: with the token of one that failed EC2 would answer with that one again.
    token = secrets.token_hex(32)
    wanted = tag_list({**tags, SOURCE_TAG: source})
    deadline = time.monotonic() + AVAILABLE_SECONDS
    while True:
        try:
            with explained(f"copying {source} to {region}"):
                answer = api.client("ec2", region).copy_image(
                    Name=name,
                    SourceImageId=source,
                    SourceRegion=source_region,
                    ClientToken=token,
                    TagSpecifications=[
                        {"ResourceType": kind, "Tags": wanted} for kind in ("image", "snapshot")
                    ],
                )
                return str(answer["ImageId"])
        except AwsError as error:
            if error.error_code != "ResourceLimitExceeded" or time.monotonic() > deadline:
                raise
            time.sleep(poll * 4)  # somebody else's copies have to end first


def share(image_id: str, region: str, accounts: Sequence[str]) -> None:
    """Lets accounts, organisations or units launch an image and read its snapshots (accounts only: EC2 has
    no more for snapshots); verifies it. Raises ``UserError``."""
    ec2 = api.client("ec2", region)
    image = describe(image_id, region)
    if image is None:
        raise UserError(f"{image_id} is not in {region}", code=ExitCode.FAILED)
    grants = [_grantee(account) for account in accounts]
    with explained(f"sharing {image_id} in {region}"):
        ec2.modify_image_attribute(
            ImageId=image_id, Attribute="launchPermission", LaunchPermission={"Add": grants}
        )
        users = [grant["UserId"] for grant in grants if "UserId" in grant]
        for snapshot in snapshots_of(image) if users else []:
            ec2.modify_snapshot_attribute(
                SnapshotId=snapshot,
                Attribute="createVolumePermission",
                OperationType="add",
                UserIds=users,
            )
        answer = ec2.describe_image_attribute(ImageId=image_id, Attribute="launchPermission")
    allowed = [value for grant in answer.get("LaunchPermissions") or [] for value in grant.values()]
    if missing := [grant for grant in grants if next(iter(grant.values())) not in allowed]:
        raise UserError(f"{image_id} in {region} is not shared with {missing}", code=ExitCode.FAILED)


def _grantee(account: str) -> dict[str, str]:
    if account.isdigit() and len(account) == 12:
        return {"UserId": account}
    if account.startswith("arn:") and ":organization/" in account:
        return {"OrganizationArn": account}
    if account.startswith("arn:") and ":ou/" in account:
        return {"OrganizationalUnitArn": account}
    raise UserError(
        f"{account!r} is no AWS account", hint="12 digits, or the ARN of an organization or unit"
    )
