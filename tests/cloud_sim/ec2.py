"""EC2's state as moto has it, with the gaps closed that matter to us; the calls are in ``ec2_api.py``.

All of moto's gaps are closed in these two files, each said where it is. Nothing of moto is changed in place:
these are subclasses, and each account has instances of its own, so that other tests of the same process can
use moto as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError, InvalidAMIIdError
from moto.ec2.models import EC2Backend
from moto.ec2.models.amis import Ami
from moto.ec2.models.elastic_block_store import Snapshot, Volume
from moto.ec2.models.instances import Instance as MotoInstance
from moto.ec2.utils import generic_filter, random_ami_id, random_snapshot_id

ACCOUNT_ID = "123456789012"  # moto's own, so that its other services agree
NAME = re.compile(r"[A-Za-z0-9()\[\] ./\-'@_]{3,128}")


def now() -> str:
    """The time as EC2 writes it."""
    return utcnow().strftime("%Y-%m-%dT%H:%M:%S.000Z")


def flag(value: object) -> bool:
    """A boolean parameter, which moto may hand over as text."""
    return str(value).lower() == "true"


@dataclass(frozen=True)
class Device:
    """A block device of an image: ``size`` in GiB."""

    name: str
    size: int
    snapshot: Snapshot | None = None
    kind: str = "gp3"
    delete_on_termination: bool = True
    encrypted: bool = False

    def mapping(self) -> dict[str, Any]:
        """As EC2 describes it."""
        ebs = {
            "SnapshotId": self.snapshot.id if self.snapshot else None,
            "VolumeSize": self.size,
            "VolumeType": self.kind,
            "DeleteOnTermination": self.delete_on_termination,
            "Encrypted": self.encrypted,
        }
        return {"DeviceName": self.name, "Ebs": ebs}


class Image(Ami):
    """Gap: moto's image has always one device of 15 GiB on ``/dev/sda1`` of type ``standard``, is never
    pending, and knows no ImdsSupport, deprecation, protection or source.

    ``folder`` is what it boots from.
    """

    def __init__(
        self, backend: Backend, *, folder: Path, devices: Iterable[Device] = (), **fields: Any
    ) -> None:
        self.default_user: str = fields.pop("default_user", "admin")
        self.imds_support: str | None = fields.pop("imds_support", None)
        image_id = fields.pop("image_id", None) or random_ami_id()
        super().__init__(
            backend,
            image_id,
            virtualization_type="hvm",
            hypervisor="xen",
            root_device_type="ebs",
            region_name=f"{backend.region_name}a",
            **fields,
        )
        backend.snapshots.pop(self.ebs_snapshot.id)
        self.folder = folder
        self.devices = list(devices)
        self.image_location = f"{self.owner_id}/{self.name}"
        self.ena_support = True
        self.platform_details = "Linux/UNIX"
        self.usage_operation = "RunInstances"
        self.state_reason: dict[str, str] | None = None
        self.source_image_id: str | None = None
        self.source_image_region: str | None = None
        self.deprecation_time: str | None = None
        self.last_launched_time: str | None = None
        self.deregistration_protection = "disabled"

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        return [device.mapping() for device in self.devices]

    @property
    def snapshots(self) -> list[Snapshot]:
        return [device.snapshot for device in self.devices if device.snapshot]

    @property
    def imds(self) -> str | None:  # what moto's DescribeImageAttribute asks for
        return self.imds_support

    @property
    def lld(self) -> str | None:
        return self.last_launched_time

    def settle(self, failure: str | None) -> None:
        """Ends the state ``pending``: ``available``, or ``failed`` for this reason."""
        self.state = "failed" if failure else "available"
        self.state_reason = {"Code": "Client.InternalError", "Message": failure} if failure else None
        for snapshot in self.snapshots:
            snapshot.status = "error" if failure else "completed"

    def get_filter_value(self, filter_name: str, method_name: str | None = None) -> Any:
        if filter_name == "block-device-mapping.snapshot-id":
            return [snapshot.id for snapshot in self.snapshots]
        return super().get_filter_value(filter_name, method_name)


class Instance(MotoInstance):
    """Gap: moto's instance runs at once, on nothing. ``address`` is the loopback address of its machine."""

    address: str
    image: Image

    def enter(self, name: str, code: int, *, reason: str = "", text: str = "") -> None:
        """Another state."""
        self._state.name, self._state.code = name, code
        self.state_reason.code, self.state_reason.message = reason, f"{reason}: {text}" if reason else ""
        self._reason = f"{text} ({now()})" if text else ""

    @property
    def public_dns_name(self) -> str:
        """None: nobody could resolve the name."""
        return ""


class Backend(EC2Backend):
    """EC2 in one region."""

    def __init__(self, region: str) -> None:
        super().__init__(region, ACCOUNT_ID)
        self.tokens: dict[tuple[str, str], Any] = {}  # answers by action and ClientToken
        # moto makes a default subnet in every zone of the region; three will do.
        zones = sorted(self.get_default_subnets())
        for zone in zones[3:]:
            self.subnets.pop(zone)

    def _load_amis(self) -> None:
        """None of moto's 1,302 images: the account seeds its own."""

    def image(self, image_id: str) -> Image:
        """The image. Raises EC2's error when there is none."""
        if image_id not in self.amis:
            raise InvalidAMIIdError([image_id])
        return self.amis[image_id]  # type: ignore[return-value]

    def own(self, image_id: str) -> Image:
        image = self.image(image_id)
        if image.owner_id != ACCOUNT_ID:
            raise EC2ClientError("AuthFailure", f"Not authorized for image:{image_id}")
        return image

    def instances(self) -> list[Instance]:
        return self.all_instances()  # type: ignore[return-value]

    def add(self, image: Image) -> Image:
        self.amis[image.id] = image
        return image

    def check_name(self, name: str) -> None:
        """Gap: moto accepts any name, and a name twice."""
        if not NAME.fullmatch(name or ""):
            raise EC2ClientError(
                "InvalidAMIName.Malformed",
                "AMI names must be between 3 and 128 characters long, and may contain letters, numbers, "
                "'(', ')', '.', '-', '/' and '_'",
            )
        for image in self.amis.values():
            if image.owner_id == ACCOUNT_ID and image.name == name:
                raise EC2ClientError(
                    "InvalidAMIName.Duplicate", f"AMI name {name} is already in use by AMI {image.id}"
                )

    def snapshot(self, description: str, *, size: int, image: Image, volume: Any = None) -> Snapshot:
        # EC2 gives this volume id to snapshots that are copies.
        volume = volume or Volume(self, "vol-ffffffff", size, None)  # type: ignore[abstract]
        made = Snapshot(
            self, random_snapshot_id(), volume, description, owner_id=image.owner_id, from_ami=image.id
        )
        self.snapshots[made.id] = made
        return made

    def capture(self, instance: Instance, *, name: str, description: str, changes: list[Any]) -> Image:
        """A pending image of an instance, with a snapshot of each of its volumes."""
        source = instance.image
        image = Image(
            self,
            instance=instance,
            name=name,
            description=description,
            state="pending",
            root_device_name=instance.root_device_name,
            boot_mode=source.boot_mode,
            imds_support=source.imds_support,
            default_user=source.default_user,
            folder=Path(),
        )
        for device, block in instance.get_block_device_mapping:
            volume = self.get_volume(block.volume_id)
            text = f"Created by CreateImage({instance.id}) for {image.id}"
            snapshot = self.snapshot(text, size=volume.size, image=image, volume=volume)
            snapshot.status = "pending"
            kept = bool(block.delete_on_termination)
            image.devices.append(
                Device(device, volume.size, snapshot, volume.volume_type, kept, bool(volume.encrypted))
            )
        image.devices = merge(image.devices, changes)
        return self.add(image)

    def copy_of(
        self, source: Image, *, region: str, name: str, description: str | None, encrypted: bool
    ) -> Image:
        """A pending copy of an image of ``region``."""
        image = Image(
            self,
            name=name,
            description=source.description if description is None else description,
            architecture=source.architecture,
            state="pending",
            root_device_name=source.root_device_name,
            boot_mode=source.boot_mode,
            imds_support=source.imds_support,
            default_user=source.default_user,
            folder=source.folder,
        )
        image.source_image_id, image.source_image_region = source.id, region
        for device in source.devices:
            original = device.snapshot.id if device.snapshot else ""
            text = (
                f"Copied for DestinationAmi {image.id} from SourceAmi {source.id} for SourceSnapshot "
                f"{original}. Task created on {utcnow().timestamp() * 1000:.0f}."
            )
            snapshot = self.snapshot(text, size=device.size, image=image)
            snapshot.status = "pending"
            secret = encrypted or device.encrypted
            snapshot.encrypted = secret
            image.devices.append(replace(device, snapshot=snapshot, encrypted=secret))
        return self.add(image)

    def describe_images(
        self,
        ami_ids: list[str] | None = None,
        filters: dict[str, Any] | None = None,
        exec_users: list[str] | None = None,
        owners: list[str] | None = None,
    ) -> list[Any]:
        """Gap: moto ignores owners and filters when image ids are given."""
        images: list[Any] = super().describe_images(ami_ids, filters, exec_users, owners)
        if ami_ids and owners:
            wanted = {ACCOUNT_ID if owner == "self" else owner for owner in owners}
            images = [image for image in images if {image.owner_id, image.owner_alias} & wanted]
        return generic_filter(filters or {}, images) if ami_ids else images

    def do_resources_exist(self, resource_ids: list[str]) -> bool:
        """Gap: moto tags instances that are not there."""
        for resource_id in resource_ids:
            if resource_id.startswith("i-"):
                self.get_instance(resource_id)
        return super().do_resources_exist(resource_ids)

    def delete_security_group(self, name: str | None = None, group_id: str | None = None) -> None:
        """Gap: moto deletes a group that is in use, and the default one."""
        group = self.get_security_group_by_name_or_id(group_id or name or "")
        if group and group.name == "default":
            raise EC2ClientError(
                "CannotDelete",
                f'the specified group: "{group.id}" name: "default" cannot be deleted by a user',
            )
        if group and any(group in eni.group_set for eni in self.enis.values()):
            raise EC2ClientError("DependencyViolation", f"resource {group.id} has a dependent object")
        super().delete_security_group(name, group_id)


def merge(devices: Iterable[Device], changes: Iterable[Mapping[str, Any]]) -> list[Device]:
    """The devices of an image with the BlockDeviceMappings of a request laid over them."""
    merged = {device.name: device for device in devices}
    for change in changes:
        name, ebs = change["DeviceName"], change.get("Ebs") or {}
        if "NoDevice" in change or not ebs:  # an instance store (VirtualName) is no volume
            merged.pop(name, None)
            continue
        old = merged.get(name) or Device(name, 0, delete_on_termination=False)
        size = int(ebs.get("VolumeSize") or old.size)
        if size < old.size:
            raise EC2ClientError(
                "InvalidBlockDeviceMapping",
                f"Volume of size {size}GB is smaller than snapshot '{old.snapshot and old.snapshot.id}', "
                f"expect size >= {old.size}GB",
            )
        merged[name] = replace(
            old,
            size=size,
            kind=ebs.get("VolumeType") or old.kind,
            delete_on_termination=flag(ebs.get("DeleteOnTermination", old.delete_on_termination)),
            encrypted=flag(ebs.get("Encrypted", old.encrypted)),
        )
    return list(merged.values())
