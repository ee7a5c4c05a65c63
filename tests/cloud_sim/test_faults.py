"""The fault table: what goes wrong while an image is built for AWS, what the user sees, and what is left.

Quick builds (``checkout.py``) by real Packer, real Ansible and the production template in the box, in a
network namespace that has only a loopback interface. After each fault, with at most one ``inv sweep``, the
account has only what the manifest names, and no process or key file of the build is left.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from images import builds
from images.manifest.named import named_images
from images.manifest.store import open_store
from tests.cloud_sim import checkout
from tests.cloud_sim.box import quick_box
from tests.cloud_sim.faults import Call, Fault
from tests.cloud_sim.proxy import Proxy
from tests.cloud_sim.quick_build import CACHE, Quick
from tests.conftest import FaultTable
from tests.images.clouds.aws.test_policy import ACTIONS

pytestmark = pytest.mark.box


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One quick checkout for all builds: they only read it."""
    return checkout.make(tmp_path_factory.mktemp("quick") / "checkout")


@pytest.fixture
def quick(tmp_path: Path, sources: Path) -> Iterator[Quick]:
    with quick_box(tmp_path / "box", cache=CACHE, isolated=True) as box:
        yield Quick(box, tmp_path, sources)
    assert box.errors == []


@dataclass
class Outcome:
    """What a build printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The first line of the error."""
        found = re.search(r"^error: (.*)$", self.err, re.MULTILINE)
        return found[1] if found else ""


def run(quick: Quick, *arguments: str) -> Outcome:
    result = quick.build(*arguments)
    return Outcome(result.returncode, result.stdout, result.stderr)


def nothing_left(quick: Quick, *, sweeps: int = 0) -> None:
    """After ``sweeps`` sweeps the account has only the manifest's images, and no process or key is left."""
    for _ in range(sweeps):
        swept = quick.inv("sweep", "--cloud=aws", "--yes")
        assert swept.returncode == 0, swept.stdout + swept.stderr
    named = set(named_images(open_store(quick.root / "manifest")))
    left: dict[str, Any] = {}
    for region, kinds in quick.box.leftovers().items():
        kept = {"images": named, "snapshots": snapshots(quick, region, named)}
        for kind, found in kinds.items():
            if rest := sorted(set(found) - kept.get(kind, set())):
                left[f"{region} {kind}"] = rest
    assert left == {}
    for state in quick.states():
        assert builds.processes(state["build_id"]) == {}
        assert not Path(state["temporary"]).exists(), "the build's key is left"


def snapshots(quick: Quick, region: str, images: set[str]) -> set[str]:
    """The snapshots behind ``images``."""

    def look() -> set[str]:
        found = quick.box.client("ec2", region).describe_images(Owners=["self"])["Images"]
        return {
            mapping["Ebs"]["SnapshotId"]
            for image in found
            if image["ImageId"] in images
            for mapping in image["BlockDeviceMappings"]
        }

    return quick.box.inside(look)


def machine_types(quick: Quick) -> list[tuple[str, str | None]]:
    """What was asked for and how EC2 answered, in order."""
    return [
        (call.parameters["InstanceType"], call.error) for call in quick.box.faults.actions("RunInstances")
    ]


# --- what the cloud refuses ---------------------------------------------------------------------------


def test_no_fault(quick: Quick, fault_table: FaultTable) -> None:
    found = run(quick)
    assert found.code == 0, found.err
    outcome = json.loads(found.out)
    assert sorted(outcome["regions"]) == ["us-east-1", "us-west-2"]
    for region in outcome["regions"]:
        answer = quick.inv("manifest.resolve", "--cloud=aws", "--family=gpu-debian", f"--region={region}")
        assert answer.stdout.strip() == outcome["regions"][region]
    nothing_left(quick)
    assert any("a real cloud" in line for line in outcome["not_tested"])
    # Whatever was asked of AWS is in the policy of the builder's role.
    asked = {f"{call.service}:{call.action}" for call in quick.box.calls}
    assert asked <= ACTIONS
    again = run(quick)
    assert json.loads(again.out)["status"] == "unchanged"
    fault_table.add("none", found.code, "published in two regions; resolve answers for both")


@dataclass(frozen=True)
class Refused:
    """A refusal, what the user is told, and what was asked of EC2."""

    name: str
    faults: tuple[Fault, ...]
    code: int
    error: str
    types: tuple[tuple[str, str | None], ...] | None = None


CAPACITY = "InsufficientInstanceCapacity"
QUOTA = "VcpuLimitExceeded"
GOOD = (("c7i.2xlarge", None), ("g6.xlarge", None), ("c7i.2xlarge", None))


@pytest.mark.parametrize(
    "case",
    [
        Refused(
            "no capacity for the first type",
            (Fault("RunInstances", CAPACITY, where={"InstanceType": "c7i.2xlarge"}, times=1),),
            0,
            "",
            (("c7i.2xlarge", CAPACITY), ("m7i.2xlarge", None)),
        ),
        Refused(
            "no capacity for any build machine",
            (Fault("RunInstances", CAPACITY),),
            1,
            "build: no capacity for a build machine: c7i.2xlarge in us-east-1, m7i.2xlarge in us-east-1, "
            "c6i.2xlarge in us-east-1",
            (("c7i.2xlarge", CAPACITY), ("m7i.2xlarge", CAPACITY), ("c6i.2xlarge", CAPACITY)),
        ),
        Refused(
            "quota for the build machine",
            (Fault("RunInstances", QUOTA),),
            1,
            "build: quota: VcpuLimitExceeded",
            (("c7i.2xlarge", QUOTA),),
        ),
        Refused(
            "no capacity for the first GPU",
            (Fault("RunInstances", CAPACITY, where={"InstanceType": "g6.xlarge"}),),
            0,
            "",
        ),
        Refused(
            "no capacity for any GPU",
            (Fault("RunInstances", CAPACITY, where={"InstanceType": re.compile("^g")}),),
            1,
            "gate: no capacity for the gate's machine first-gate: g6.xlarge in us-east-1",
        ),
        Refused(
            "quota for the GPU",
            (Fault("RunInstances", QUOTA, where={"InstanceType": re.compile("^g")}),),
            1,
            "gate: starting a g6.xlarge in us-east-1: VcpuLimitExceeded",
        ),
        Refused(
            "throttling",
            (
                Fault("RunInstances", "RequestLimitExceeded", status=503, times=2),
                Fault("DescribeInstances", "RequestLimitExceeded", status=503, times=2),
                Fault("DescribeImages", "RequestLimitExceeded", status=503, times=2),
            ),
            0,
            "",
        ),
        Refused(
            "API 500, for a moment",
            (Fault("CreateImage", "InternalError", status=500, times=1),),
            0,
            "",
        ),
        Refused(
            "API 500, for good",
            (Fault("CreateImage", "InternalError", status=500),),
            1,
            "build: Error creating AMI: InternalError",
        ),
        Refused(
            "not permitted",
            (Fault("RunInstances", "UnauthorizedOperation", status=403),),
            1,
            "build: permission: UnauthorizedOperation",
        ),
    ],
    ids=lambda case: case.name,
)
def test_refused(quick: Quick, fault_table: FaultTable, case: Refused) -> None:
    for fault in case.faults:
        quick.box.faults.add(fault)
    found = run(quick)
    assert found.code == case.code, found.err
    assert found.error.startswith(case.error), found.err
    if case.types:
        asked = tuple(machine_types(quick))
        assert asked[: len(case.types)] == case.types
        assert case.code == 0 or len(asked) == len(case.types)
    quick.box.faults.clear()
    nothing_left(quick)
    fault_table.add(case.name, found.code, found.error or "published")


@pytest.mark.parametrize("expired", [False, True], ids=["unknown", "expired"])
def test_credentials_that_are_no_good(quick: Quick, fault_table: FaultTable, expired: bool) -> None:
    bad = quick.box.account.session(expired=True)
    extra = {"AWS_SESSION_TOKEN": bad.token} if expired else {}
    environment = {
        **quick.environment,
        "AWS_ACCESS_KEY_ID": bad.access_key if expired else "AKIANOBODY0000000000",
        "AWS_SECRET_ACCESS_KEY": bad.secret_key,
        **extra,
    }
    result = quick.inv_with(environment, *quick.build_words())
    assert result.returncode == 2, result.stderr
    assert ("ExpiredToken" if expired else "InvalidClientTokenId") in result.stderr
    assert quick.box.faults.actions("RunInstances") == []
    nothing_left(quick)
    name = "expired" if expired else "unknown"
    fault_table.add(f"{name} credentials", result.returncode, result.stderr.splitlines()[-2].strip())


def test_credentials_that_expire_while_it_builds(quick: Quick, fault_table: FaultTable) -> None:
    """Then not even the clean-up is possible: it is said, and a sweep with new credentials does it."""

    def expire(_: Call) -> None:
        for action in ("CreateImage", "TerminateInstances", "DescribeInstances", "DeleteSecurityGroup"):
            quick.box.faults.add(Fault(action, "ExpiredToken"))
        for action in ("DescribeImages", "DescribeRegions", "DescribeVolumes"):
            quick.box.faults.add(Fault(action, "ExpiredToken"))

    quick.box.faults.after("StopInstances", expire)
    found = run(quick)
    assert found.code == 1
    assert "ExpiredToken" in found.err
    assert "./inv sweep --cloud=aws" in found.err
    quick.box.faults.clear()
    nothing_left(quick, sweeps=1)
    fault_table.add("credentials expire in the build", found.code, found.error + "; swept")


def test_the_captured_image_fails(quick: Quick, fault_table: FaultTable) -> None:
    quick.box.faults.image_fails(copied=False)
    found = run(quick)
    assert found.code == 1, found.err
    assert found.error.startswith("build: Error waiting for AMI: Failed with ResourceNotReady")  # Packer's
    quick.box.faults.clear()
    nothing_left(quick)
    fault_table.add("the image goes to failed", found.code, found.error)


def test_one_region_fails_and_the_next_run_finishes(quick: Quick, fault_table: FaultTable) -> None:
    quick.box.faults.image_fails(region="us-west-2", copied=True)
    found = run(quick)
    assert found.code == 1
    assert "us-west-2" in found.err and "./inv replicate sha256:" in found.err
    home = quick.inv("manifest.resolve", "--cloud=aws", "--family=gpu-debian", "--region=us-east-1")
    assert home.returncode == 0
    away = quick.inv("manifest.resolve", "--cloud=aws", "--family=gpu-debian", "--region=us-west-2")
    assert away.returncode == 3
    nothing_left(quick)
    quick.box.faults.clear()
    release = re.search(r"replicate (sha256:[0-9a-f]{64})", found.err)
    assert release
    again = quick.inv("replicate", release[1])
    assert again.returncode == 0, again.stderr
    away = quick.inv("manifest.resolve", "--cloud=aws", "--family=gpu-debian", "--region=us-west-2")
    assert away.stdout.strip() in again.stdout
    nothing_left(quick)
    fault_table.add("one region's copy fails", found.code, "published at home; inv replicate finished it")


def test_ssh_drops_while_it_builds(quick: Quick, fault_table: FaultTable) -> None:
    quick.box.faults.after("ModifyInstanceMetadataOptions", lambda call: drop(quick, call))
    found = run(quick)
    assert found.code == 1
    nothing_left(quick)
    fault_table.add("SSH drops in the build", found.code, found.error)


def drop(quick: Quick, call: Call) -> None:
    quick.box.account.machines.target.drop_ssh(call.parameters["InstanceId"])


def test_the_endpoint_dies(quick: Quick, fault_table: FaultTable) -> None:
    """Packer alone would try for seven minutes to delete what it cannot reach."""
    quick.box.faults.after("ModifyInstanceMetadataOptions", lambda _: quick.box.faults.endpoint_dies())
    found = run(quick)
    assert found.code == 1
    assert "cannot be asked any more" in found.error and "./inv sweep --cloud=aws" in found.err
    assert builds.processes(quick.states()[0]["build_id"]) == {}

    def revive() -> None:
        quick.box.proxy = Proxy(quick.root / "tls", {"*.amazonaws.com": quick.box.account})

    quick.box.inside(revive)
    nothing_left(quick, sweeps=1)
    fault_table.add("the endpoint dies", found.code, found.error + "; swept")


def test_a_failed_check_stops_the_capture(quick: Quick, fault_table: FaultTable) -> None:
    found = run(quick, "--set", "min_free_mib=999999999")
    assert found.code == 1
    assert found.error.startswith("build: the gate inside the build failed: quick.space (fail)")
    assert quick.box.faults.actions("CreateImage") == []
    nothing_left(quick)
    fault_table.add("a check fails in the build", found.code, found.error)


def test_a_machine_is_kept_entered_and_swept_when_its_time_is_over(
    quick: Quick, fault_table: FaultTable
) -> None:
    found = run(quick, "--set", "min_free_mib=999999999", "--on-error=keep")
    assert found.code == 1
    (state,) = quick.states()
    entered = quick.inv("ssh", state["build_id"], "--command", "id -un")
    assert entered.stdout.strip() == "packer", entered.stderr
    swept = quick.inv("sweep", "--cloud=aws", "--yes")
    assert "nothing is left over" in swept.stdout
    expire(quick, state["build_id"])
    again = quick.inv("sweep", "--cloud=aws")
    assert "would remove  instance" in again.stdout and "security group" in again.stdout
    nothing_left(quick, sweeps=1)
    fault_table.add("a check fails, --on-error=keep", found.code, "entered by inv ssh, swept at its expiry")


def expire(quick: Quick, build: str) -> None:
    """The kept machine's time is over."""
    path = quick.builds / build / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "expires": 0}))


# --- whoever ends the builder -------------------------------------------------------------------------

#: When the builder is told to end: the API call after which it happens, which call of that kind, and whether
#: the answer has reached it.
MOMENTS: dict[str, Callable[[Quick, Callable[[Call], None]], None]] = {
    "build machine starts": lambda quick, hook: quick.box.faults.after("RunInstances", hook),
    "provisioning": lambda quick, hook: quick.box.faults.after("ModifyInstanceMetadataOptions", hook),
    "image pending": lambda quick, hook: pending(quick, hook),
    "gate machines start": lambda quick, hook: later(quick, "RunInstances", 2, hook),
    "copy begun": lambda quick, hook: slow_copy(quick, hook),
}


def pending(quick: Quick, hook: Callable[[Call], None]) -> None:
    quick.box.account.machines.image_seconds = 30
    quick.box.faults.after("CreateImage", hook)


def slow_copy(quick: Quick, hook: Callable[[Call], None]) -> None:
    def slow(_: Call) -> None:
        quick.box.account.machines.image_seconds = 5

    quick.box.faults.before("CopyImage", slow)
    quick.box.faults.after("CopyImage", hook)


def later(quick: Quick, action: str, number: int, hook: Callable[[Call], None]) -> None:
    """Calls ``hook`` after the ``number``-th call of ``action``."""
    seen: list[Call] = []

    def count(call: Call) -> None:
        seen.append(call)
        if len(seen) == number:
            hook(call)

    quick.box.faults.after(action, count, times=None)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    "signum",
    [
        signal.SIGINT,
        # The same handler as SIGINT: not worth its minutes every time.
        pytest.param(signal.SIGTERM, marks=pytest.mark.full),
        signal.SIGKILL,
    ],
    ids=lambda s: s.name,
)
def test_the_builder_is_ended(
    quick: Quick, fault_table: FaultTable, moment: str, signum: signal.Signals
) -> None:
    running: list[subprocess.Popen[str]] = []
    MOMENTS[moment](quick, lambda _: running[0].send_signal(signum))
    running.append(quick.start(*quick.build_words()))
    _, err = running[0].communicate()
    code = running[0].returncode
    quick.box.account.machines.image_seconds = 0.2
    if signum is signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 130, err
    published = moment == "copy begun"
    if published:  # the release is there; only the copy is not, and the same command finishes it
        release = next((quick.root / "manifest" / "releases").rglob("*.json")).stem
        again = quick.inv("replicate", f"sha256:{release}")
        assert again.returncode == 0, again.stderr
        assert len(quick.box.faults.actions("CopyImage")) == 1, "a second copy was begun"
    nothing_left(quick, sweeps=1 if signum is signal.SIGKILL or published else 0)
    fault_table.add(f"{signum.name}: {moment}", code, "replicate finished it" if published else "clean")
