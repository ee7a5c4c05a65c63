"""Boots machines from a captured image, and takes them away again with all that was made for them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from images import cloud_init
from images.builds import short_folder
from images.clouds.aws import ami, api
from images.clouds.aws.api import AwsError, explained
from images.clouds.aws.section import Machines, Section, Site
from images.clouds.model import Context, Image, LaunchRequest
from images.errors import ExitCode, UserError
from images.remote import SshMachine, write_ssh_config

RUNNING_SECONDS = 600.0
GONE_SECONDS = 900.0
SSH_SECONDS = 900.0  # a metal machine takes minutes to come up

#: What the gate's machines get more than the image's own disk, GiB: the file system must be seen to grow.
EXTRA_GIB = 2


class Instance(SshMachine):
    """An instance, reachable by SSH."""

    def __init__(self, request: LaunchRequest, site: Site, section: Section, *, folder: Path) -> None:
        self.request, self.site, self.region = request, site, section.region
        self.name, self.user = request.name, request.user
        self.port = 22
        self.host = ""
        self.id = ""
        self.description = ""
        self.disk_bytes = (request.context.loaded.spec.disk_gib + EXTRA_GIB) * 1024**3
        self.started = time.monotonic()
        self.serial_log = request.evidence / f"serial-{request.name}.log"
        self.folder = folder
        self.ssh_config = folder / f"ssh_config-{request.name}"
        self.known_hosts = folder / f"known_hosts-{request.name}"
        self.control: Path = folder / f"ssh-{request.name}"
        self.left = False
        self._asked = 0.0
        self._looked = self.started
        self._serial = ""

    def serial(self) -> str:
        """The console, asked for not more often than every ``poll_seconds``; kept in ``serial_log`` too."""
        if self.id and time.monotonic() - self._asked >= self.site.poll_seconds:
            self._asked = time.monotonic()
            with contextlib.suppress(AwsError):
                self._serial = console(self.id, self.region)
                self.serial_log.write_text(self._serial)
        return self._serial

    def ended(self) -> str | None:
        """Whether it was ended, by us or by AWS."""
        if self.request.cancelled.is_set():
            return "the gate was stopped"
        if self.id and time.monotonic() - self._looked >= self.site.poll_seconds:
            self._looked = time.monotonic()
            with contextlib.suppress(AwsError):
                state = (describe(self.id, self.region) or {}).get("State", {}).get("Name", "missing")
                return None if state in ("pending", "running") else f"{self.id} is {state}"
        return None

    def restart(self) -> None:
        """Asks AWS for a reboot, which asks the operating system."""
        with explained(f"rebooting {self.id}"):
            api.client("ec2", self.region).reboot_instances(InstanceIds=[self.id])

    def leave_running(self) -> None:
        """The end of the context does not end it; its dead-man timer does."""
        self.left = True


def console(instance_id: str, region: str) -> str:
    """The serial console's text; the newest where the machine type can tell, else what AWS last posted."""
    ec2 = api.client("ec2", region)
    what = f"reading the console of {instance_id}"
    try:
        with explained(what):
            answer = ec2.get_console_output(InstanceId=instance_id, Latest=True)
    except AwsError as error:
        if error.error_code not in ("UnsupportedOperation", "InvalidParameterCombination"):
            raise
        with explained(what):
            answer = ec2.get_console_output(InstanceId=instance_id)
    return str(answer.get("Output") or "")


@contextlib.contextmanager
def launch(
    image: Image, request: LaunchRequest, *, section: Section, site: Site, machines: Machines
) -> Iterator[Instance]:
    """An instance of the first type and zone that has capacity; when the context ends, it is gone, and so is
    its security group. Raises ``UserError``: all places without capacity are named, a quota at once."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-image-", dir=short_folder()))
    instance = Instance(request, site, section, folder=folder)
    group = ""

    def take_away() -> None:
        instance.close_ssh()
        instance.serial()
        if not instance.left:
            shutil.rmtree(folder, ignore_errors=True)
            end(instance.id, group, section.region, poll=site.poll_seconds)

    with _afterwards(take_away):
        group = _security_group(request.context, request.name, section, site)
        instance.id, where = _run(image, request, group, section, site, machines)
        instance.description = f"AWS {where}"
        instance.host = _address(instance)
        write_ssh_config(
            instance.ssh_config,
            host=instance.host,
            port=instance.port,
            user=request.user,
            key=request.private_key,
            known_hosts=instance.known_hosts,
            control=instance.control,
        )
        instance.wait_for_ssh(SSH_SECONDS)
        yield instance


@contextlib.contextmanager
def build_group(
    context: Context, *, section: Section, site: Site, keep: bool
) -> Iterator[Mapping[str, Any]]:
    """The security group of the build machine; gone with the context, unless a failed machine is kept."""
    group = _security_group(context, "build", section, site)
    delete = partial(delete_security_group, group, section.region, poll=site.poll_seconds)
    with _afterwards(delete, keep=keep):
        yield {"security_group_id": group}


@contextlib.contextmanager
def _afterwards(clean_up: Callable[[], None], *, keep: bool = False) -> Iterator[None]:
    """Cleans up when the body ends, but with ``keep`` not after a ``UserError``.

    When the clean-up of a failed body fails too, the body's error is the one to show; what is left is looked
    for again when the build is discarded.
    """
    try:
        yield
    except BaseException as error:
        if not (keep and isinstance(error, UserError)):
            with contextlib.suppress(UserError):
                clean_up()
        raise
    clean_up()


def _security_group(context: Context, name: str, section: Section, site: Site) -> str:
    """A group that lets ``source_cidr`` in by SSH, and nobody else."""
    ec2 = api.client("ec2", section.region)
    tags = {**context.tags, "Name": f"{context.build_id}-{name}"}
    with explained("making a security group"):
        place = {}
        if site.subnet_id:
            subnet = ec2.describe_subnets(SubnetIds=[site.subnet_id])["Subnets"][0]
            place = {"VpcId": subnet["VpcId"]}
        group = ec2.create_security_group(
            GroupName=f"gpu-image-{context.build_id}-{name}",
            Description="gpu-image: SSH from the site to a machine of a build",
            TagSpecifications=[{"ResourceType": "security-group", "Tags": ami.tag_list(tags)}],
            **place,
        )["GroupId"]
        rule: dict[str, Any] = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
        cidr = str(site.source_cidr)
        if ":" in cidr:
            rule["Ipv6Ranges"] = [{"CidrIpv6": cidr}]
        else:
            rule["IpRanges"] = [{"CidrIp": cidr}]
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    return str(group)


def _run(
    image: Image, request: LaunchRequest, group: str, section: Section, site: Site, machines: Machines
) -> tuple[str, str]:
    """Starts an instance; returns its id, and its type and zone in words."""
    full = []
    for kind in machines.types:
        for zone in machines.zones or [""]:
            try:
                with explained(f"starting a {kind} in {zone or section.region}"):
                    answer = api.client("ec2", section.region).run_instances(
                        **_order(image, request, group, section, site, kind, zone)
                    )
                found = answer["Instances"][0]
                return found["InstanceId"], f"{kind} in {found['Placement']['AvailabilityZone']}"
            except AwsError as error:
                if api.kind_of(error.error_code) != "capacity":
                    raise
                full.append(f"{kind} in {zone or section.region} ({error.error_code})")
    raise UserError(
        f"no capacity for the gate's machine {request.name}: {', '.join(full)}",
        hint=api.HINTS["capacity"],
        code=ExitCode.FAILED,
    )


def _order(
    image: Image,
    request: LaunchRequest,
    group: str,
    section: Section,
    site: Site,
    kind: str,
    zone: str,
) -> Mapping[str, Any]:
    context = request.context
    tags = {**context.tags, "Name": f"{context.build_id}-{request.name}"}
    interface: dict[str, Any] = {"DeviceIndex": 0, "Groups": [group]}
    interface["AssociatePublicIpAddress"] = site.ssh_interface == "public_ip"
    if site.subnet_id:
        interface["SubnetId"] = site.subnet_id
    disk = {
        "VolumeSize": context.loaded.spec.disk_gib + EXTRA_GIB,
        "VolumeType": "gp3",
        "DeleteOnTermination": True,
    }
    order: dict[str, Any] = {
        "ImageId": image.id,
        "InstanceType": kind,
        "MinCount": 1,
        "MaxCount": 1,
        "UserData": cloud_init.user_data(
            request.user, request.public_key, cloud_init.dead_man(context.expires)
        ),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
        "NetworkInterfaces": [interface],
        "BlockDeviceMappings": [{"DeviceName": section.root_device, "Ebs": disk}],
        "TagSpecifications": [
            {"ResourceType": what, "Tags": ami.tag_list(tags)}
            for what in ("instance", "volume", "network-interface")
        ],
    }
    if zone:
        order["Placement"] = {"AvailabilityZone": zone}
    return order


def _address(instance: Instance) -> str:
    """Waits until the instance runs; returns the address that SSH goes to."""
    field = {"public_ip": "PublicIpAddress", "private_ip": "PrivateIpAddress"}[instance.site.ssh_interface]
    deadline = time.monotonic() + RUNNING_SECONDS
    while True:
        found = describe(instance.id, instance.region) or {}
        state = found.get("State", {}).get("Name", "missing")
        if state == "running" and found.get(field):
            return str(found[field])
        reason = found.get("StateReason", {}).get("Message", "")
        if state not in ("pending", "running", "missing") or time.monotonic() > deadline:
            raise UserError(f"{instance.name}: {instance.id} is {state}: {reason}", code=ExitCode.FAILED)
        if ended := instance.ended():
            raise UserError(f"{instance.name}: {ended}", code=ExitCode.FAILED)
        time.sleep(min(instance.site.poll_seconds, 5))  # EC2 tells nobody; until the deadline above


def describe(instance_id: str, region: str) -> dict[str, Any] | None:
    """What the API says of an instance; None for an id that it does not know (yet)."""
    found: dict[str, Any] = {}
    with explained(f"looking at {instance_id}", ignore=["InvalidInstanceID.*"]):
        found = api.client("ec2", region).describe_instances(InstanceIds=[instance_id])
    instances = [item for group in found.get("Reservations") or [] for item in group["Instances"]]
    return instances[0] if instances else None


def end(instance_id: str, group: str, region: str, *, poll: float) -> None:
    """Terminates an instance, waits until it is gone, deletes its security group; empty ids are nothing."""
    ec2 = api.client("ec2", region)
    if instance_id:
        with explained(f"ending {instance_id}", ignore=["InvalidInstanceID.*"]):
            ec2.terminate_instances(InstanceIds=[instance_id])
        deadline = time.monotonic() + GONE_SECONDS
        while (found := describe(instance_id, region)) and found["State"]["Name"] != "terminated":
            if time.monotonic() > deadline:
                raise UserError(f"{instance_id} does not end", hint="./inv sweep --cloud=aws")
            time.sleep(min(poll, 5))  # EC2 tells nobody; until the deadline above
    if group:
        delete_security_group(group, region, poll=poll)


def delete_security_group(group: str, region: str, *, poll: float, timeout: float = 120) -> None:
    """Deletes a group; one that is gone is no error. AWS counts it as in use for a while after its last
    machine has ended, so it is tried again until ``timeout``."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            with explained(f"deleting the security group {group}", ignore=["InvalidGroup.NotFound"]):
                api.client("ec2", region).delete_security_group(GroupId=group)
            return
        except AwsError as error:
            if error.error_code != "DependencyViolation" or time.monotonic() > deadline:
                raise
            time.sleep(min(poll, 5))  # the group is in use a little longer than its machine
