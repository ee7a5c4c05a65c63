"""The simulated account: a WSGI application that answers as ``*.amazonaws.com`` does.

It checks credentials and signatures, applies the faults, keeps a record of every call, and hands the rest to
moto in this process. EC2 is ours (``ec2.py``, ``ec2_api.py``); STS, IAM, SSM and S3 are moto's as they are.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, quote
from xml.sax.saxutils import escape

from moto.backends import get_backend
from moto.core.request import Request

from tests.cloud_sim import faults, seeds
from tests.cloud_sim.ec2 import ACCOUNT_ID, Backend
from tests.cloud_sim.ec2_api import Response
from tests.cloud_sim.faults import Call, Faults
from tests.cloud_sim.machines import Machines
from tests.cloud_sim.target import Target

SERVICES = ("ec2", "iam", "s3", "ssm", "sts")
GLOBAL_HOSTS = ("ec2", "iam", "s3", "*.s3", "sts")
AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, ?"
    r"SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})"
)


@dataclass(frozen=True)
class Credentials:
    """An access key; with ``token`` one of a session."""

    access_key: str
    secret_key: str
    token: str = ""
    expired: bool = False


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


class Account:
    """``source`` is the folder of the image that all source images boot from."""

    def __init__(self, *, target: Target, source: Path, folder: Path) -> None:
        self.faults = Faults()
        self.credentials = Credentials("AKIA" + secrets.token_hex(8).upper(), secrets.token_hex(20))
        self.lock = threading.RLock()  # moto is not made for threads
        self.machines = Machines(target, folder, self.faults, self.lock)
        self._source = source
        self._keys = {self.credentials.access_key: self.credentials}
        self._backends: dict[str, Backend] = {}
        for region in seeds.REGIONS:
            self.backend(region)

    def backend(self, region: str) -> Backend:
        """EC2 of a region. Raises ``ApiError`` when there is no such region."""
        with self.lock:
            if region not in self._backends:
                if region not in seeds.known_regions():
                    raise ApiError("InvalidParameterValue", f"Invalid region {region}")
                self._backends[region] = Backend(region)
                seeds.plant(self._backends[region], self._source)
            return self._backends[region]

    def hosts(self) -> list[str]:
        """Patterns of the hosts that this account answers as. A region that does not exist has none."""
        names = [*GLOBAL_HOSTS, *(f"*.{region}" for region in sorted(seeds.known_regions()))]
        return [f"{name}.amazonaws.com" for name in names]

    def session(self, *, expired: bool = False) -> Credentials:
        """Credentials of a session, as a role gives them."""
        made = Credentials(
            "ASIA" + secrets.token_hex(8).upper(), secrets.token_hex(20), secrets.token_hex(40), expired
        )
        self._keys[made.access_key] = made
        return made

    def leftovers(self) -> dict[str, dict[str, list[str]]]:
        """What is in the account and costs or clutters: by region and kind, ids; only what is there.

        Kinds: ``instances`` (not terminated), ``volumes``, ``network_interfaces``, ``key_pairs``,
        ``security_groups`` (but ``default``), ``images``, ``snapshots`` (both ours).
        """
        with self.lock:
            found = {region: _leftovers(backend) for region, backend in sorted(self._backends.items())}
        return {region: kinds for region, kinds in found.items() if kinds}

    def close(self) -> None:
        """Ends the machines."""
        self.machines.close()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body: bytes = environ["wsgi.input"].read()
        call = self._arrived(environ, body)
        status, headers, content = self._answer(environ, body, call)
        if status >= 400 and call.error is None:
            found = re.search(
                r"<Code>([^<]*)</Code>|\"__type\": *\"(?:[^\"]*#)?([^\"]*)\"", content.decode()
            )
            call.error = (found[1] or found[2]) if found else str(status)
        self._hooks("done", call)
        start_response(f"{status} -", list(headers.items()))
        return _Answer(content, lambda: self._hooks("after", call))

    def _hooks(self, moment: str, call: Call) -> None:
        """A hook that fails must not pass unnoticed."""
        try:
            self.faults.run_hooks(moment, call)
        except Exception:
            self.machines.errors.append(traceback.format_exc())

    def _arrived(self, environ: dict[str, Any], body: bytes) -> Call:
        """Reads what the call is, and records it."""
        host = environ["HTTP_HOST"].partition(":")[0]
        scope = AUTHORIZATION.match(environ.get("HTTP_AUTHORIZATION", ""))
        # s3 puts the bucket first; global services have no region in their name.
        names = host.removesuffix(".amazonaws.com").split(".")
        service = next((name for name in names if name in SERVICES), names[0])
        region = names[-1] if names[-1] in seeds.known_regions() else scope[3] if scope else "us-east-1"
        parameters: dict[str, str] = {}
        if target := environ.get("HTTP_X_AMZ_TARGET"):
            action = target.rpartition(".")[2]
            parameters = {name: str(value) for name, value in json.loads(body or b"{}").items()}
        elif service == "s3":
            action = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        else:
            query = environ["QUERY_STRING"] or body.decode()
            parameters = dict(parse_qsl(query, keep_blank_values=True))
            action = parameters.pop("Action", "")
        if action == "RunInstances" and (zone := self._zone(region, parameters)):
            parameters["AvailabilityZone"] = zone
        call = faults.call(service, region, action, parameters, environ.get("HTTP_USER_AGENT", ""))
        self.faults.record(call)
        return call

    def _zone(self, region: str, parameters: dict[str, str]) -> str | None:
        subnet = parameters.get("SubnetId") or parameters.get("NetworkInterface.1.SubnetId")
        with self.lock:
            for zone, subnets in self.backend(region).subnets.items() if subnet else ():
                if subnet in subnets:
                    return zone
        return parameters.get("Placement.AvailabilityZone")

    def _answer(self, environ: dict[str, Any], body: bytes, call: Call) -> tuple[int, dict[str, str], bytes]:
        try:
            self._authenticate(environ, body, call)
            self._hooks("before", call)
            if fault := self.faults.strike(call):
                raise ApiError(fault.code, fault.message, fault.status)
            with self.lock:
                return self._moto(environ, body, call)
        except ApiError as error:
            call.error = error.code
            return error.status, *_error(call.service, error)
        except NotImplementedError as error:
            # Not 501: SDKs repeat calls that end with 5xx.
            missing = ApiError("UnsupportedOperation", f"not simulated: {error}")
            call.error = missing.code
            return missing.status, *_error(call.service, missing)
        except Exception:
            self.machines.errors.append(traceback.format_exc())
            broken = ApiError("InternalError", "the simulation is broken: see Box.errors", 500)
            call.error = broken.code
            return broken.status, *_error(call.service, broken)

    def _authenticate(self, environ: dict[str, Any], body: bytes, call: Call) -> None:
        """Raises EC2's error, or that of the other services."""
        ec2 = call.service == "ec2"
        refused = (
            ApiError("AuthFailure", "AWS was not able to validate the provided access credentials", 401)
            if ec2
            else ApiError(
                "InvalidClientTokenId", "The security token included in the request is invalid.", 403
            )
        )
        signed = AUTHORIZATION.match(environ.get("HTTP_AUTHORIZATION", ""))
        if not signed:
            raise ApiError("MissingAuthenticationToken", "Request is missing Authentication Token", 403)
        key = self._keys.get(signed[1])
        if key is None or key.token != environ.get("HTTP_X_AMZ_SECURITY_TOKEN", ""):
            raise refused
        if not hmac.compare_digest(signature(environ, body, key.secret_key), signed[6]):
            if ec2:
                raise refused
            raise ApiError(
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided. "
                "Check your AWS Secret Access Key and signing method.",
                403,
            )
        if key.expired:
            if ec2:
                raise ApiError("RequestExpired", "Request has expired.")
            raise ApiError("ExpiredToken", "The security token included in the request is expired", 403)

    def _moto(self, environ: dict[str, Any], body: bytes, call: Call) -> tuple[int, dict[str, str], bytes]:
        query = f"?{environ['QUERY_STRING']}" if environ["QUERY_STRING"] else ""
        url = f"https://{environ['HTTP_HOST']}{environ['RAW_URI'].partition('?')[0]}{query}"
        names = {key: key[5:].replace("_", "-").title() for key in environ if key.startswith("HTTP_")}
        headers = {name: environ[key] for key, name in names.items()}
        headers["Content-Type"] = environ.get("CONTENT_TYPE", "")
        request = Request.from_primitives(environ["REQUEST_METHOD"], url, headers, body)
        if call.service == "ec2":
            answer = Response(self)._dispatch(request, url, request.headers)
        else:
            path = environ["RAW_URI"].partition("?")[0] or "/"
            answer = _handler(call.service, path)(request, url, request.headers)
        status, raw, content = answer
        data = content if isinstance(content, bytes) else str(content or "").encode()
        return int(status), {name: str(value) for name, value in raw.items() if name != "status"}, data


class _Answer:
    """The body of an answer; ``close`` is called when it has been sent (PEP 3333)."""

    def __init__(self, content: bytes, sent: Callable[[], None]) -> None:
        self._content = content
        self.close = sent

    def __iter__(self) -> Iterator[bytes]:
        yield self._content


def _handler(service: str, path: str) -> Any:
    """moto's function for a path of a service. Raises ``ApiError`` when it has none."""
    if service in SERVICES:
        backends: Any = get_backend(cast(Any, service))[ACCOUNT_ID]
        backend = backends["us-east-1" if "us-east-1" in backends else "aws"]
        for pattern, handler in backend.url_paths.items():
            if re.match(pattern, path):
                return handler
    raise ApiError("UnknownService", f"{service} is not simulated", 404)


def signature(environ: dict[str, Any], body: bytes, secret: str) -> str:
    """The signature that the request should carry, by AWS Signature Version 4.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
    """
    signed = AUTHORIZATION.match(environ["HTTP_AUTHORIZATION"])
    assert signed
    _, date, region, service, names, _ = signed.groups()
    headers = ""
    for name in names.split(";"):
        key = name.upper().replace("-", "_")
        value = environ.get(key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}", "")
        headers += f"{name}:{' '.join(value.split())}\n"
    path = environ["RAW_URI"].partition("?")[0] or "/"
    query = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(environ["QUERY_STRING"], keep_blank_values=True)
    )
    canonical = "\n".join(
        [
            environ["REQUEST_METHOD"],
            path if service == "s3" else quote(path, safe="/-_.~"),
            "&".join(f"{name}={value}" for name, value in query),
            headers,
            names,
            environ.get("HTTP_X_AMZ_CONTENT_SHA256") or hashlib.sha256(body).hexdigest(),
        ]
    )
    scope = f"{date}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{environ.get('HTTP_X_AMZ_DATE', '')}\n{scope}\n{digest}"
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def _error(service: str, error: ApiError) -> tuple[dict[str, str], bytes]:
    """The error in the service's own form: EC2's, JSON, S3's, or that of the Query protocol."""
    code, message, request_id = escape(error.code), escape(error.message), secrets.token_hex(16)
    xml = {"Content-Type": "text/xml;charset=UTF-8"}
    inner = f"<Code>{code}</Code><Message>{message}</Message>"
    if service == "ec2":
        end = f"<RequestID>{request_id}</RequestID></Response>"
        text = f"<Response><Errors><Error>{inner}</Error></Errors>{end}"
    elif service == "ssm":
        text = json.dumps({"__type": error.code, "message": error.message})
        return {"Content-Type": "application/x-amz-json-1.1"}, text.encode()
    elif service == "s3":
        text = f"<Error>{inner}<RequestId>{request_id}</RequestId></Error>"
    else:
        side = "Receiver" if error.status >= 500 else "Sender"
        text = (
            f"<ErrorResponse><Error><Type>{side}</Type>{inner}</Error>"
            f"<RequestId>{request_id}</RequestId></ErrorResponse>"
        )
    return xml, text.encode()


def _leftovers(backend: Backend) -> dict[str, list[str]]:
    found = {
        "instances": [i.id for i in backend.instances() if i.state != "terminated"],
        "volumes": list(backend.volumes),
        "network_interfaces": list(backend.enis),
        "key_pairs": list(backend.key_pairs),
        "security_groups": [
            group.name
            for groups in backend.groups.values()
            for group in groups.values()
            if group.name != "default"
        ],
        "images": [image.id for image in backend.amis.values() if image.owner_id == ACCOUNT_ID],
        "snapshots": [s.id for s in backend.snapshots.values() if s.owner_id == ACCOUNT_ID],
    }
    return {kind: sorted(ids) for kind, ids in found.items() if ids}
