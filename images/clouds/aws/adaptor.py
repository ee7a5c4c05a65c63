"""AWS's side of the ``Cloud`` protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from images import archive, cloud_init, python_command, simulation
from images import lock as locks
from images.clouds import Machine
from images.clouds.aws import ami, api, leftovers, machine
from images.clouds.aws.api import AwsError, explained
from images.clouds.aws.section import NAME, Machines, Section, Site, machines_for, section_of, site_of
from images.clouds.defaults import Defaults
from images.clouds.model import (
    Base,
    BuildRequest,
    Context,
    Image,
    LaunchRequest,
    Note,
    Placement,
    Refusal,
    Removable,
    Scope,
)
from images.errors import ExitCode, UserError
from images.lock import Lock
from images.settings import Settings
from images.spec import Loaded

GATE, PLAIN = "first-gate", "first-plain"

#: EC2's names of architectures.
ARCHITECTURES = {"amd64": "x86_64", "arm64": "arm64"}


class AwsCloud(Defaults):
    """Builds AMIs. An image's id is the AMI's; regions are AWS's."""

    name = NAME
    section = Section
    site = Site
    folder = Path(__file__).parent
    knows_host_keys = True

    @property
    def programs(self) -> Mapping[str, str]:
        """mmdebstrap asks the distribution's archive for the kernel's versions."""
        return {"mmdebstrap": "mmdebstrap"}

    def architectures(self, loaded: Loaded) -> Sequence[str]:
        """Those that the section has a build machine for."""
        return [arch for arch in loaded.spec.arch if arch in section_of(loaded).build_machine]

    def missing_credentials(self, settings: Settings) -> list[str]:
        """The SDK, credentials that AWS accepts, and who may reach the machines."""
        try:
            import boto3
        except ImportError:
            return ["boto3 is not installed: ./inv installs it when --cloud=aws is given (extra `aws`)"]
        lines = []
        if boto3.Session().get_credentials() is None:
            lines.append("no credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        else:
            try:
                with explained("the credentials"):
                    api.client("sts", leftovers.regions()[0]).get_caller_identity()
            except AwsError as error:
                lines.append(error.message)
        if not site_of(settings).source_cidr:
            lines.append(
                "clouds.aws.source_cidr is not set (site.yaml, or INVOKE_GPU_IMAGE_CLOUDS_AWS_SOURCE_CIDR): "
                "the addresses that may reach the machines by SSH, for example 203.0.113.4/32"
            )
        return lines

    def resolve(self, loaded: Loaded, arch: str, *, settings: Settings, note: Note) -> Lock:
        """The newest base image of the publisher, and the kernel as the distribution's archive has it."""
        section = section_of(loaded)
        spec = loaded.spec
        name = section.base.name.replace("{arch}", arch)
        note(f"asking AWS for {name}")
        with explained(f"looking for the base image in {section.region}"):
            images = api.client("ec2", section.region).describe_images(
                Owners=[section.base.owner],
                Filters=[
                    {"Name": "name", "Values": [name]},
                    {"Name": "architecture", "Values": [ARCHITECTURES[arch]]},
                    {"Name": "state", "Values": ["available"]},
                ],
            )["Images"]
        if not images:
            raise UserError(
                f"{loaded.source.place(('clouds', NAME, 'base'))}: {section.base.owner} has no image "
                f"{name} in {section.region}"
            )
        image = max(images, key=lambda item: (item["CreationDate"], item["ImageId"]))
        kernel_package = section.kernel_package.replace("{arch}", arch)
        note(f"asking the archive of {spec.os.codename}")
        resolved = archive.resolve(
            distribution=spec.os.id,
            suite=spec.os.codename,
            arch=arch,
            kernel_package=kernel_package,
            release=spec.kernel.release,
            mirror=settings.site.apt_mirror,
            note=note,
        )
        release, packages = archive.kernel_of(
            resolved,
            kernel_package,
            series=spec.kernel.series,
            release=spec.kernel.release,
            where=loaded.source.place(("kernel", "series")),
        )
        return Lock(
            origin="fixture" if simulation.name() else "resolved",
            image=spec.family,
            cloud=NAME,
            arch=arch,
            resolved=locks.now(),
            inputs=locks.inputs_digest(loaded, NAME, arch),
            indexes=[locks.Index(**vars(index)) for index in resolved.indexes],
            base=locks.BaseImage(id=image["ImageId"], name=image["Name"]),
            kernel=locks.LockedKernel(
                release=release, packages=[locks.LockedPackage(**vars(item)) for item in packages]
            ),
        )

    def base_id(self, loaded: Loaded, lock: Lock) -> str:
        """The AMI in the lock."""
        return self._base(lock)

    def _base(self, lock: Lock) -> str:
        if not lock.base.id:
            raise UserError("the lock names no base image", hint="./inv lock --cloud=aws")
        return lock.base.id

    def prepare_base(self, loaded: Loaded, lock: Lock, *, settings: Settings, note: Note) -> Base:
        """Looks whether the AMI of the lock is still there: publishers take old ones away."""
        section = section_of(loaded)
        found = ami.state(self._base(lock), section.region)
        if found != "available":
            raise UserError(
                f"the base image {lock.base.id} ({lock.base.name}) is {found} in {section.region}",
                hint=f"resolve a newer one: ./inv lock --cloud=aws --image={lock.image} --arch={lock.arch}",
                code=ExitCode.FAILED,
            )
        return Base(id=self._base(lock), artifact=self._base(lock), name=lock.base.name)

    def render_context(self, loaded: Loaded, lock: Lock) -> Mapping[str, Any]:
        """Region, base image, volume and flags."""
        section = section_of(loaded)
        machines_for(loaded, section.build_machine, lock.arch, "build_machine")
        return {
            "region": section.region,
            "base": self._base(lock),
            "base_name": lock.base.name,
            "root_device": section.root_device,
            "volume": section.volume,
        }

    def placeholders(self, file: Path) -> dict[str, Any]:
        """Nothing is asked of AWS while a template is validated."""
        return {
            "instance_type": "t3.micro",
            "availability_zone": "",
            "security_group_id": "sg-00000000",
            "subnet_id": "",
            "ssh_interface": "public_ip",
            "user_data_file": str(file),
            "poll_seconds": 15,
            "expires": "2026-01-01T00:00:00Z",
            "host_key_command": "true",
        }

    def packer_variables(self, base: Base, request: BuildRequest) -> dict[str, Any]:
        """User-data with the build's user and the dead-man timer, network, expiry."""
        context, site = request.context, site_of(request.context.settings)
        section = section_of(context.loaded)
        user_data = request.temporary / "user-data"
        user_data.write_text(
            cloud_init.user_data(
                request.user,
                request.key.public,
                {**cloud_init.dead_man(context.expires), "hostname": request.hostname},
            )
        )
        command = python_command.of(
            "images.clouds.aws.build_machine",
            "--region",
            section.region,
            "--known-hosts",
            request.known_hosts,
            "--console-log",
            request.work / "serial-build.log",
            "--poll",
            str(site.poll_seconds),
        )
        return {
            "subnet_id": site.subnet_id or "",
            "ssh_interface": site.ssh_interface,
            "user_data_file": str(user_data),
            "poll_seconds": max(round(site.poll_seconds), 1),
            "expires": context.tags["gpu-image:expires"],
            "host_key_command": command,
        }

    def build_resources(self, context: Context, *, keep: bool) -> AbstractContextManager[Mapping[str, Any]]:
        """A security group, since Packer 1.6 cannot tag the one that it would make."""
        return machine.build_group(
            context, section=section_of(context.loaded), site=site_of(context.settings), keep=keep
        )

    def placements(self, context: Context) -> Sequence[Placement]:
        """Every type in every zone, in the spec's order."""
        section = section_of(context.loaded)
        machines = machines_for(context.loaded, section.build_machine, context.arch, "build_machine")
        return [
            Placement(
                f"{kind} in {zone or section.region}", {"instance_type": kind, "availability_zone": zone}
            )
            for kind in machines.types
            for zone in machines.zones or [""]
        ]

    def refusal(self, errors: Sequence[str]) -> Refusal | None:
        """EC2's error code in Packer's words."""
        return api.refusal_in(errors)

    def unreachable(self, context: Context) -> str | None:
        """An answer is an answer, but for one that every question gets: credentials that are no good any
        more. Packer would go on asking for hours."""
        region = section_of(context.loaded).region
        try:
            with explained(f"EC2 in {region}"):
                api.client("ec2", region, patient=False).describe_regions(RegionNames=[region])
        except AwsError as error:
            lost = error.unreachable or api.kind_of(error.error_code) == "credentials"
            return error.message if lost else None
        return None

    def capture(
        self, artifacts: Sequence[str], context: Context, *, work: Path, name: str, note: Note
    ) -> Image:
        """The AMI that Packer names, once EC2 says that it is available and as it was asked for."""
        section, site = section_of(context.loaded), site_of(context.settings)
        ids = dict(pair.split(":", 1) for item in artifacts for pair in item.split(",") if ":" in pair)
        identifier = ids.get(section.region)
        if not identifier:
            raise UserError(f"Packer's artifact has no AMI in {section.region}: {artifacts}")
        note(f"{identifier}: waiting until it is available")
        state = ami.wait(identifier, section.region, poll=site.poll_seconds)
        if state != "available":
            raise UserError(f"{identifier} is {state}", hint="build again", code=ExitCode.FAILED)
        ami.require_imdsv2(identifier, section.region)
        ami.describe_as(identifier, section.region, f"{context.build_id}: {context.loaded.spec.description}")
        image = ami.describe(identifier, section.region) or {}
        wrong = ami.problems(
            image,
            arch=context.arch,
            boot_mode="uefi" if context.arch == "arm64" else section.boot_mode,
            encrypted=section.volume.encrypted,
        )
        if wrong:
            ami.delete(identifier, section.region)
            raise UserError(
                f"{identifier} is not what was asked for: {'; '.join(wrong)}",
                hint="boot mode and enhanced networking are the base image's: take another clouds.aws.base",
                code=ExitCode.FAILED,
            )
        return Image(id=identifier, region=section.region, name=name)

    def launch(self, image: Image, request: LaunchRequest) -> AbstractContextManager[Machine]:
        """A machine of the gate's types, or of the build machine's for the second one."""
        loaded = request.context.loaded
        section = section_of(loaded)
        return machine.launch(
            image,
            request,
            section=section,
            site=site_of(request.context.settings),
            machines=self._gate_machines(loaded, section, request),
        )

    def _gate_machines(self, loaded: Loaded, section: Section, request: LaunchRequest) -> Machines:
        arch = request.context.arch
        if request.name == GATE and any(known == arch for known in section.gate_machine):
            return machines_for(loaded, section.gate_machine, arch, "gate_machine")
        return machines_for(loaded, section.build_machine, arch, "build_machine")

    def running(self, scope: Scope) -> bool:
        """Whether the build has an instance."""
        return leftovers.running(scope)

    def first_boots(self) -> Sequence[str]:
        """One on the machine with the GPU, if the spec has one, one on a machine without."""
        return (GATE, PLAIN)

    def image_state(self, image_id: str, region: str, settings: Settings) -> str:
        """As EC2 says."""
        return ami.state(image_id, region)

    def published(self, image_id: str, region: str, release: str, settings: Settings) -> None:
        """Tags it with its release: no sweep takes an image with that tag, whatever manifest it reads."""
        ami.tag(image_id, region, {ami.RELEASE_TAG: release})

    def regions(self, loaded: Loaded) -> Sequence[str]:
        """Where it is built, then the replicas."""
        section = section_of(loaded)
        return [section.region, *section.replicas]

    def copy(
        self, image: Image, region: str, context: Context, *, note: Note, begun: Callable[[str], None]
    ) -> Image:
        """CopyImage, waited for, tagged."""
        copied = ami.copy(
            image.id,
            image.region,
            region,
            name=image.name,
            tags={**context.tags, "Name": image.name},
            poll=site_of(context.settings).poll_seconds,
            begun=begun,
        )
        return Image(id=copied, region=region, name=image.name)

    def share(self, image_id: str, region: str, accounts: Sequence[str], settings: Settings) -> None:
        """Launch permission, and the snapshots for accounts."""
        ami.share(image_id, region, accounts)

    def delete(self, image_id: str, region: str, settings: Settings) -> None:
        """Deregisters it and deletes its snapshots."""
        ami.delete(image_id, region)

    def leftovers(self, scope: Scope) -> list[Removable]:
        """In all regions of the catalog."""
        return leftovers.find(scope)

    def how_to_boot(self, image: Image) -> str:
        """With the AWS CLI."""
        return (
            f"aws ec2 run-instances --region {image.region} --image-id {image.id} "
            "--instance-type g6.xlarge --key-name YOUR_KEY"
        )
