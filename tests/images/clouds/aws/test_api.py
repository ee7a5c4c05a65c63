"""What EC2's errors mean: codes as the API reference lists them, lines as Packer prints them."""

from __future__ import annotations

import pytest

from images.clouds.aws import api
from images.clouds.aws.api import AwsError
from images.errors import ExitCode
from tests.cloud_sim.box import Box
from tests.cloud_sim.faults import Fault


@pytest.mark.parametrize(
    ("errors", "kind", "words"),
    [
        (
            [
                "Error launching source instance: InsufficientInstanceCapacity: We currently do not have "
                "sufficient c7i.2xlarge capacity in the Availability Zone you requested (us-east-1a).\n"
                "\tstatus code: 500, request id: 0a1b"
            ],
            "capacity",
            "capacity: InsufficientInstanceCapacity: We currently do not have",
        ),
        (
            ["Error launching source instance: VcpuLimitExceeded: You have requested more vCPU capacity"],
            "quota",
            "quota: VcpuLimitExceeded: You have requested more vCPU capacity",
        ),
        (
            ["Error launching source instance: UnauthorizedOperation: You are not authorized to perform"],
            "permission",
            "permission: UnauthorizedOperation",
        ),
        (
            ["RequestExpired: Request has expired.", "InsufficientInstanceCapacity: none"],
            "credentials",
            "credentials: RequestExpired",
        ),
        (["Unsupported: Your requested instance type (p5.48xlarge) is not supported"], "capacity", "p5"),
        (["Script exited with non-zero exit status: 3.Allowed exit codes are: [0]"], None, ""),
        (["Error creating AMI: InternalError: An internal error has occurred"], None, ""),
        ([], None, ""),
    ],
)
def test_what_packers_errors_mean(errors: list[str], kind: str | None, words: str) -> None:
    found = api.refusal_in(errors)
    assert (found.kind if found else None) == kind
    assert not found or (words in found.message and "\n" not in found.message)


def test_an_error_names_what_was_done_and_the_code(box: Box) -> None:
    box.faults.add(Fault("DescribeImages", "UnauthorizedOperation", "not you", status=403))
    with pytest.raises(AwsError) as caught, api.explained("looking"):
        api.client("ec2", "us-east-1").describe_images(Owners=["self"])
    assert caught.value.message == "looking: UnauthorizedOperation: not you"
    assert caught.value.code == ExitCode.FAILED
    assert "policy.json" in (caught.value.hint or "")
    assert not caught.value.unreachable


def test_an_ignored_code_is_no_error(box: Box) -> None:
    with api.explained("looking", ignore=["InvalidAMIID.*"]):
        api.client("ec2", "us-east-1").describe_images(ImageIds=["ami-0123456789abcdef0"])


def test_a_dead_endpoint_is_unreachable(box: Box) -> None:
    box.faults.endpoint_dies()
    with pytest.raises(AwsError) as caught, api.explained("looking"):
        api.client("ec2", "us-east-1", patient=False).describe_regions()
    assert caught.value.unreachable
