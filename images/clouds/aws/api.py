"""boto3: clients, and what EC2's errors mean to a person.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from images.clouds.model import Refusal
from images.errors import ExitCode, UserError

CAPACITY = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientCapacityOnHost",
        "InsufficientCapacity",
        "Unsupported",  # this type does not exist in this zone
    }
)
QUOTA = frozenset(
    {
        "VcpuLimitExceeded",
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "VolumeLimitExceeded",
        "SnapshotLimitExceeded",
        "SecurityGroupLimitExceeded",
        "AddressLimitExceeded",
        "PrivateIpAddressLimitExceeded",
    }
)
CREDENTIALS = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
        "OptInRequired",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
PERMISSION = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})

HINTS = {
    "capacity": "try again later, or add types and zones to clouds.aws of the spec",
    "quota": "ask for a higher quota (Service Quotas, Amazon EC2), or end what you do not need; "
    "other zones have the same quota",
    "credentials": "renew the credentials: AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "permission": "images/clouds/aws/policy.json is what a build needs; docs/operators.md",
}


class AwsError(UserError):
    """The API refused. ``error_code`` is EC2's, empty when it could not be asked at all."""

    def __init__(self, message: str, *, error_code: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, code=ExitCode.FAILED)
        self.error_code = error_code

    @property
    def unreachable(self) -> bool:
        """Whether the API did not answer at all."""
        return not self.error_code


@functools.cache
def client(service: str, region: str, *, patient: bool = True) -> Any:
    """A boto3 client, made once. ``patient`` ones retry throttling and server errors by themselves."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise UserError(
            "boto3 is not installed",
            hint="./inv installs it when --cloud=aws is given; or: pip install .[aws]",
        ) from None
    config = Config(
        connect_timeout=10 if patient else 5,
        read_timeout=60 if patient else 10,
        retries={"mode": "standard", "total_max_attempts": 6 if patient else 1},
    )
    return boto3.Session().client(service, region_name=region, config=config)


def kind_of(code: str) -> str | None:
    """``capacity``, ``quota``, ``credentials`` or ``permission`` for an error code of EC2; else None."""
    kinds = {"capacity": CAPACITY, "quota": QUOTA, "credentials": CREDENTIALS, "permission": PERMISSION}
    return next((kind for kind, codes in kinds.items() if code in codes), None)


@contextlib.contextmanager
def explained(what: str, *, ignore: Sequence[str] = ()) -> Iterator[None]:
    """Turns botocore's errors in the body into ``AwsError``; error codes in ``ignore`` are no error.

    A code may end in ``*``.
    """
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", "unknown"))
        if any(code == item or (item.endswith("*") and code.startswith(item[:-1])) for item in ignore):
            return
        message = str(error.response.get("Error", {}).get("Message", "")).strip()
        kind = kind_of(code)
        hint = HINTS.get(kind) if kind else None
        raise AwsError(f"{what}: {code}: {message}", error_code=code, hint=hint) from None
    except (ConnectionError, HTTPClientError) as error:  # no connection, no answer, no TLS
        raise AwsError(f"{what}: {error}", error_code="") from None
    except BotoCoreError as error:  # our own mistake, or no credentials any more
        raise AwsError(f"{what}: {error}", error_code=type(error).__name__) from None


def refusal_in(errors: Sequence[str]) -> Refusal | None:
    """What the cloud refused, from Packer's error lines: ``... CODE: message``, several codes in one line
    when one error led to another. Credentials come first: then nothing else that is said is true."""
    found = [
        (kind, match[0], error)
        for error in errors
        for match in re.finditer(r"\b[A-Z][A-Za-z]+(?:\.[A-Z][A-Za-z]+)*\b", error)
        if (kind := kind_of(match[0]))
    ]
    for wanted in ("credentials", "permission", "quota", "capacity"):
        for kind, code, error in found:
            if kind == wanted:
                start = error.index(code)
                line = error[start:].split("\n")[0].strip()
                return Refusal(kind, f"{kind}: {line}", HINTS[kind])  # type: ignore[arg-type]
    return None
