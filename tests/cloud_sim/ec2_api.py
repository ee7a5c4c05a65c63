"""EC2's calls as moto has them, with the gaps closed that matter to us; the state is in ``ec2.py``.

Error codes and messages are EC2's: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from moto.core.responses import ActionResult, EmptyResult
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses import EC2Response

from tests.cloud_sim.ec2 import ACCOUNT_ID, Backend, Instance, flag, merge, now

if TYPE_CHECKING:
    from tests.cloud_sim.account import Account

CONSOLE_LIMIT = 64 << 10  # bytes that GetConsoleOutput answers


class Response(EC2Response):
    """One request."""

    def __init__(self, account: Account) -> None:
        super().__init__()
        self.account = account

    @property
    def ec2_backend(self) -> Backend:
        return self.account.backend(self.region)

    def _tags(self, kind: str) -> dict[str, str]:
        tags: dict[str, str] = self._parse_tag_specification().get(kind, {})
        return tags

    def _once(self) -> Any:
        """Gap: moto ignores ClientToken. What was answered to this token before, or None."""
        return self.ec2_backend.tokens.get((self._get_action(), self._get_param("ClientToken")))

    def _remember(self, answer: Any) -> Any:
        if token := self._get_param("ClientToken"):
            self.ec2_backend.tokens[self._get_action(), token] = answer
        return answer

    def run_instances(self) -> ActionResult:
        """Gaps: moto checks neither image, key pair, type nor architecture, takes MinCount for the count,
        and makes a root volume of its own. Machines really start."""
        if before := self._once():
            return ActionResult(before)
        image = self.ec2_backend.image(self._get_param("ImageId"))
        if image.state != "available":
            raise EC2ClientError(
                "InvalidAMIID.Unavailable", f"The image ID '{image.id}' is no longer available"
            )
        key_name = self._get_param("KeyName")
        if key_name and key_name not in self.ec2_backend.key_pairs:
            raise EC2ClientError("InvalidKeyPair.NotFound", f"The key pair '{key_name}' does not exist")
        kind = self._get_param("InstanceType", "m1.small")
        if kind not in INSTANCE_TYPES:
            raise EC2ClientError("InvalidInstanceType", f"Invalid value '{kind}' for InstanceType")
        supported = INSTANCE_TYPES[kind]["ProcessorInfo"]["SupportedArchitectures"]
        if image.architecture not in supported:
            raise EC2ClientError(
                "InvalidParameterValue",
                f"The architecture '{','.join(supported)}' of the specified instance type does not match "
                f"the architecture '{image.architecture}' of the specified AMI.",
            )
        devices = merge(image.devices, self._get_param("BlockDeviceMappings", []))
        self.params["BlockDeviceMappings"] = [device.mapping() for device in devices]
        self.params["MinCount"] = self._get_param("MaxCount", 1)
        options = self._get_param("MetadataOptions", {})
        if image.imds_support and "HttpTokens" not in options:
            self.params["MetadataOptions"] = {**options, "HttpTokens": "required"}
        result = super().run_instances()
        reservation: Any = result.result
        for instance in reservation.instances:
            instance.__class__ = Instance  # moto offers no way to say which class it makes
            instance.image = image
            image.last_launched_time = now()
            for nic in instance.nics.values():
                nic.delete_on_termination = True  # EC2's default for what RunInstances makes
            self.account.machines.launch(self.ec2_backend, instance)
        self._remember(reservation)
        return result

    def _instances(self, allowed: Iterable[str], verb: str) -> list[Instance]:
        """The instances of the request. Gap: moto lets any state follow any other."""
        found: Any = self.ec2_backend.get_multi_instances_by_id(self._get_param("InstanceIds", []))
        for instance in found:
            if instance.state not in allowed:
                raise EC2ClientError(
                    "IncorrectInstanceState",
                    f"The instance '{instance.id}' is not in a state from which it can be {verb}.",
                )
        self.error_on_dryrun()
        return list(found)

    def _changed(self, key: str, instances: Iterable[Instance], change: Any) -> ActionResult:
        answer = []
        for instance in instances:
            previous = {"Name": instance.state, "Code": instance.state_code}
            change(self.ec2_backend, instance)
            current = {"Name": instance.state, "Code": instance.state_code}
            answer.append({"InstanceId": instance.id, "PreviousState": previous, "CurrentState": current})
        return ActionResult({key: answer})

    def stop_instances(self) -> ActionResult:
        """Gap: moto's instances stop at once; here they shut down."""
        instances = self._instances(("running", "stopping", "stopped"), "stopped")
        return self._changed("StoppingInstances", instances, self.account.machines.stop)

    def start_instances(self) -> ActionResult:
        """Gap: as StopInstances."""
        instances = self._instances(("pending", "running", "stopped"), "started")
        return self._changed("StartingInstances", instances, self.account.machines.start)

    def reboot_instances(self) -> ActionResult:
        """Gap: moto's does nothing."""
        for instance in self._instances(("running",), "rebooted"):
            self.account.machines.reboot(instance)
        return EmptyResult()

    def terminate_instances(self) -> ActionResult:
        """Gap: as StopInstances."""
        states = ("pending", "running", "stopping", "stopped", "shutting-down", "terminated")
        instances = self._instances(states, "terminated")
        for instance in instances:
            if flag(instance.disable_api_termination):
                raise EC2ClientError(
                    "OperationNotPermitted",
                    f"The instance '{instance.id}' may not be terminated. Modify its "
                    "'disableApiTermination' instance attribute and try again.",
                )
        return self._changed("TerminatingInstances", instances, self.account.machines.terminate)

    def get_console_output(self) -> ActionResult:
        """Gap: moto answers a fixed text."""
        instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        text = self.account.machines.console(instance.id).encode()[-CONSOLE_LIMIT:]
        output = base64.b64encode(text).decode() if text else None
        return ActionResult({"InstanceId": instance.id, "Timestamp": utcnow(), "Output": output})

    def modify_instance_metadata_options(self) -> ActionResult:
        """Gap: moto forgets the options that the call does not name."""
        instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        names = {
            "HttpTokens": "http_tokens",
            "HttpPutResponseHopLimit": "http_put_response_hop_limit",
            "HttpEndpoint": "http_endpoint",
            "HttpProtocolIpv6": "http_protocol_ipv6",
            "InstanceMetadataTags": "instance_metadata_tags",
        }
        for parameter, attribute in names.items():
            if (value := self._get_param(parameter)) is not None:
                setattr(instance.metadata_options, attribute, value)
        answer = {"InstanceId": instance.id, "InstanceMetadataOptions": instance.metadata_options}
        return ActionResult(answer)

    def create_image(self) -> ActionResult:
        """Gaps: moto's images are available at once, of nothing, and their snapshots cannot be tagged."""
        name = self._get_param("Name")
        self.ec2_backend.check_name(name)
        instance: Any = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        if instance.state not in ("running", "stopping", "stopped"):
            raise EC2ClientError(
                "IncorrectState",
                f"Instance '{instance.id}' is not 'running' or 'stopped'; it is '{instance.state}'",
            )
        self.error_on_dryrun()
        changes = self._get_param("BlockDeviceMappings", [])
        image = self.ec2_backend.capture(
            instance, name=name, description=self._get_param("Description", ""), changes=changes
        )
        image.add_tags(self._tags("image"))
        for snapshot in image.snapshots:
            snapshot.add_tags(self._tags("snapshot"))
        self.account.machines.capture(instance, image, no_reboot=flag(self._get_param("NoReboot")))
        return ActionResult({"ImageId": image.id})

    def copy_image(self) -> ActionResult:
        """Gaps: moto's copies are available at once; it ignores ClientToken, CopyImageTags and
        TagSpecifications, and the copy does not know its source."""
        if before := self._once():
            return ActionResult(before)
        region = self._get_param("SourceRegion")
        source = self.account.backend(region).image(self._get_param("SourceImageId"))
        if source.state != "available":
            raise EC2ClientError(
                "InvalidRequest", "The storage for the ami is not available in the source Region."
            )
        self.ec2_backend.check_name(self._get_param("Name"))
        self.error_on_dryrun()
        image = self.ec2_backend.copy_of(
            source,
            region=region,
            name=self._get_param("Name"),
            description=self._get_param("Description"),
            encrypted=flag(self._get_param("Encrypted")),
        )
        if flag(self._get_param("CopyImageTags")):
            image.add_tags({tag["key"]: tag["value"] for tag in source.get_tags()})
        image.add_tags(self._tags("image"))
        for snapshot in image.snapshots:
            snapshot.add_tags(self._tags("snapshot"))
        self.account.machines.settle_later(image, copied=True)
        return ActionResult(self._remember({"ImageId": image.id}))

    def modify_image_attribute(self) -> ActionResult:
        """Gap: moto knows launch permissions only, and lets anybody change any image in any state."""
        image = self.ec2_backend.own(self._get_param("ImageId"))
        if image.state != "available":
            raise EC2ClientError(
                "InvalidAMIID.Unavailable", f"The image ID '{image.id}' is no longer available"
            )
        attribute, value = self._get_param("Attribute"), self._get_param("Value")
        description = self._get_param("Description.Value", value if attribute == "description" else None)
        imds = self._get_param("ImdsSupport.Value", value if attribute == "imdsSupport" else None)
        self.error_on_dryrun()
        if imds not in (None, "v2.0"):
            raise EC2ClientError(
                "InvalidParameterValue", f"Value ({imds}) for parameter imdsSupport is invalid."
            )
        if description is not None:
            image.description = description
        if imds:
            image.imds_support = imds
        return super().modify_image_attribute()

    def deregister_image(self) -> ActionResult:
        """Gaps: moto ignores deregistration protection, the owner and DeleteAssociatedSnapshots."""
        image_id = self._get_param("ImageId")
        if image_id not in self.ec2_backend.deleted_amis:
            image = self.ec2_backend.own(image_id)
            if image.deregistration_protection != "disabled":
                raise EC2ClientError(
                    "OperationNotPermitted", f"Deregistration protection is enabled for image {image_id}."
                )
        result = super().deregister_image()
        deleted = []
        if flag(self._get_param("DeleteAssociatedSnapshots")):
            for snapshot in image.snapshots:
                if self.ec2_backend.snapshots.pop(snapshot.id, None):
                    deleted.append({"SnapshotId": snapshot.id, "ReturnCode": "success"})
        return ActionResult({**result.result, "DeleteSnapshotResults": deleted})  # type: ignore[dict-item]

    def disable_image(self) -> ActionResult:
        """Gap: EC2 removes all launch permissions, and they do not come back."""
        result = super().disable_image()
        self.ec2_backend.own(self._get_param("ImageId")).launch_permissions.clear()
        return result

    def _set(self, **attributes: str | None) -> ActionResult:
        image = self.ec2_backend.own(self._get_param("ImageId"))
        self.error_on_dryrun()
        for name, value in attributes.items():
            setattr(image, name, value)
        return ActionResult({"Return": True if "deprecation_time" in attributes else "true"})

    def enable_image_deprecation(self) -> ActionResult:
        """Gap: not in moto."""
        when = self._get_param("DeprecateAt")
        return self._set(deprecation_time=when.strftime("%Y-%m-%dT%H:%M:00.000Z"))

    def disable_image_deprecation(self) -> ActionResult:
        """Gap: not in moto."""
        return self._set(deprecation_time=None)

    def enable_image_deregistration_protection(self) -> ActionResult:
        """Gap: not in moto."""
        cooldown = flag(self._get_param("WithCooldown"))
        return self._set(deregistration_protection="enabled-with-cooldown" if cooldown else "enabled")

    def disable_image_deregistration_protection(self) -> ActionResult:
        """Gap: not in moto. A cooldown of 24 hours is not waited for."""
        return self._set(deregistration_protection="disabled")

    def describe_snapshots(self) -> ActionResult:
        """Gap: moto ignores OwnerIds."""
        result: Any = super().describe_snapshots().result
        owners = {ACCOUNT_ID if owner == "self" else owner for owner in self._get_param("OwnerIds", [])}
        found = [s for s in result["Snapshots"] if not owners or s.owner_id in owners]
        return ActionResult({"Snapshots": found})

    def delete_key_pair(self) -> ActionResult:
        """Gap: moto ignores KeyPairId."""
        if identifier := self._get_param("KeyPairId"):
            names = [key.key_name for key in self.ec2_backend.key_pairs.values() if key.id == identifier]
            self.params["KeyName"] = names[0] if names else ""
        return super().delete_key_pair()
