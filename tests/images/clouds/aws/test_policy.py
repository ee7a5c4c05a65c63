"""The policy for the builder's role: what it names exists, it is as narrow as EC2 checks, a build passes.

What EC2 can check comes from two sources that are not ours: botocore's model of the API (the actions) and
cfn-lint's copy of the service authorization reference (the resource types of an action, and the condition
keys of a resource type).
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any

import pytest
import yaml
from botocore import xform_name
from botocore.loaders import Loader

from images.settings import CHECKOUT

POLICY = json.loads((CHECKOUT / "images/clouds/aws/policy.json").read_text())
STATEMENTS: list[dict[str, Any]] = POLICY["Statement"]
EC2 = json.loads((resources.files("cfnlint") / "data/AdditionalSpecs/Policies.json").read_text())["ec2"]

CATALOG = [yaml.safe_load(path.read_text()) for path in (CHECKOUT / "images/catalog").glob("*.yaml")]
SECTIONS = [image["clouds"]["aws"] for image in CATALOG if "aws" in image["clouds"]]

TAG = "gpu-image:build-id"
ACCOUNT = "111122223333"

#: Condition keys that belong to the request or to one action, so the table of resource types lacks them.
REQUEST_KEYS = {"aws:RequestedRegion", "ec2:CreateAction"}

#: Statements with a write action that no tag limits, and why none can.
WITHOUT_TAG = {
    "LaunchOnlyFromDebianUbuntuAmazonOrOwnImages": "the base image is somebody else's: its owner is checked",
    "LaunchIntoTheNetworkThatIsThere": "the subnet is the site's; Packer 1.6.6 tags no interface",
    "MakeGroupsInTheVpcThatIsThere": "the VPC is the site's; the group in it needs the tag",
    "CaptureIntoImagesThatPacker166TagsLater": "Packer 1.6.6 sends no tags; the machine must have it",
    "CopyFromOwnImages": "EC2 reads no tag of the source: its owner is checked; the target needs it",
    "TagAtCreation": "only together with an action that makes something; that action is limited by itself",
    "RulesOfGroupsOfABuild": "a new rule has no tags; the group that it goes to is limited by itself",
}

#: Statements that tag what is there already.
LATER_TAGS = {
    "TagCapturesLaterBecausePacker166DoesSo": "Packer 1.6.6 tags what is available, a sweep what never was",
    "ChangeTagsOfWhatHasTheBuildTag": "what is published is marked so; a copy is tagged again",
}

#: What only Packer's newer plugins look up: the default VPC, and which of its zones has a machine type.
READ_BY_PACKER = {"ec2:DescribeInstanceTypeOfferings", "ec2:DescribeVpcs"}

#: What our code calls and no role needs, and why.
NOT_GRANTED = {
    "ec2:DeleteKeyPair": "nobody here makes key pairs: it is for those of others (`./inv sweep --packers`)",
}


def listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


#: Everything that the policy allows on some resource, as ``service:Action``; other tests read it too.
ACTIONS = frozenset(action for item in STATEMENTS for action in listed(item["Action"]))


def actions() -> Iterator[tuple[str, str, str]]:
    for statement in STATEMENTS:
        for action in listed(statement["Action"]):
            yield (statement["Sid"], *action.split(":"))


def reads(action: str) -> bool:
    return action.startswith(("ec2:Describe", "ec2:Get", "sts:Get"))


def writes() -> Iterator[dict[str, Any]]:
    return (item for item in STATEMENTS if not all(map(reads, listed(item["Action"]))))


def keys(statement: dict[str, Any]) -> set[str]:
    return {key for operands in statement.get("Condition", {}).values() for key in operands}


def type_of(arn: str) -> str:
    return arn.split(":", 5)[5].split("/")[0]


def test_document() -> None:
    assert POLICY["Version"] == "2012-10-17"
    sids = [statement["Sid"] for statement in STATEMENTS]
    assert len(set(sids)) == len(sids) and all(re.fullmatch("[A-Za-z0-9]+", sid) for sid in sids)
    assert {statement["Effect"] for statement in STATEMENTS} == {"Allow"}
    # IAM's quota for a managed policy, which does not count white space.
    # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
    assert len(re.sub(r"\s", "", json.dumps(POLICY))) <= 6144


@pytest.mark.parametrize("service", ["ec2", "sts"])
def test_every_action_is_an_operation_of_the_service(service: str) -> None:
    named = {action for _, prefix, action in actions() if prefix == service}
    assert named <= set(Loader().load_service_model(service, "service-2")["operations"])
    assert {prefix for _, prefix, _ in actions()} == {"ec2", "sts"}


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda item: item["Sid"])
def test_resources_are_those_that_ec2_checks(statement: dict[str, Any]) -> None:
    names = [action.removeprefix("ec2:").lower() for action in listed(statement["Action"])]
    if statement["Resource"] == "*":
        assert all(map(reads, listed(statement["Action"])))
        assert not [name for name in names if EC2["Actions"].get(name, {}).get("Resources")]
        return
    types = set()
    for arn in listed(statement["Resource"]):
        (form,) = EC2["Resources"][type_of(arn)]["ARNFormats"]
        wanted = form.replace("${Partition}", "aws").replace("${Region}", "*").replace("${Account}", "*")
        assert arn == wanted.replace("/.*", "/*")
        types.add(type_of(arn))
    supported = {name: types & set(EC2["Actions"][name]["Resources"]) for name in names}
    assert all(supported.values()), supported
    assert set().union(*supported.values()) == types


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda item: item["Sid"])
def test_condition_keys_are_known_for_every_resource(statement: dict[str, Any]) -> None:
    for key in keys(statement) - REQUEST_KEYS:
        form = re.sub(r"^(aws:(?:Request|Resource)Tag)/.*", r"\1/${TagKey}", key)
        for arn in listed(statement["Resource"]):
            assert form in EC2["Resources"][type_of(arn)]["ConditionKeys"], (key, arn)


def test_every_write_is_limited_to_the_regions_of_the_catalog() -> None:
    wanted = {name for section in SECTIONS for name in (section["region"], *section.get("replicas", []))}
    for statement in writes():
        assert set(statement["Condition"]["StringEquals"]["aws:RequestedRegion"]) == wanted


def test_base_images_of_the_catalog_can_be_launched() -> None:
    for section in SECTIONS:
        owner = section["base"]["owner"].replace("self", ACCOUNT)
        assert allows("ec2:RunInstances", IMAGE, {**HOME, "ec2:Owner": owner})


def test_every_write_is_limited_by_the_build_tag_or_listed_with_a_reason() -> None:
    tags = {f"aws:RequestTag/{TAG}": "false", f"aws:ResourceTag/{TAG}": "false"}
    untagged = {
        item["Sid"] for item in writes() if not tags.items() & item["Condition"].get("Null", {}).items()
    }
    assert untagged == set(WITHOUT_TAG)


def test_tags_are_made_at_creation_or_listed_with_a_reason() -> None:
    tagging = [item for item in STATEMENTS if "ec2:CreateTags" in listed(item["Action"])]
    assert all(listed(item["Action"]) == ["ec2:CreateTags"] for item in tagging)
    later = {item["Sid"] for item in tagging if "ec2:CreateAction" not in keys(item)}
    assert later == set(LATER_TAGS)
    makers = {action for item in tagging for action in creates(item)}
    allowed = {action for _, _, action in actions()}
    assert makers == {name for name in allowed if name.startswith(("Create", "Copy", "Run"))} - {
        "CreateTags"
    }


def creates(statement: dict[str, Any]) -> list[str]:
    return listed(statement["Condition"]["StringEquals"].get("ec2:CreateAction", []))


def test_the_manual_explains_what_packer_1_6_6_needs() -> None:
    manual = (CHECKOUT / "docs/operators.md").read_text()
    sids = {item["Sid"] for item in STATEMENTS}
    special = [sid for sid in sids if "Packer166" in sid]
    assert special and not [sid for sid in special if sid not in manual]
    changed = set(re.findall(r'\.Sid == "(\w+)"', manual))
    assert changed and changed <= sids


def test_our_code_may_do_what_it_asks_for_and_looks_up_nothing_else() -> None:
    """All that is named in our modules like an operation of the API; what Packer writes is in ``BUILD``."""
    names = {
        xform_name(name): f"{service}:{name}"
        for service in ("ec2", "sts")
        for name in Loader().load_service_model(service, "service-2")["operations"]
    }
    asked = set()
    for path in (CHECKOUT / "images/clouds/aws").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            word = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
            if isinstance(word, str) and word in names:
                asked.add(names[word])
    assert asked - ACTIONS == set(NOT_GRANTED)
    assert {action for action in ACTIONS - asked if reads(action)} == READ_BY_PACKER


# A reader of policies, for what is used here: every resource of a request needs a statement that allows it.
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html


def holds(operator: str, wanted: Any, given: Any) -> bool:
    values = [item.replace("${aws:PrincipalAccount}", ACCOUNT) for item in listed(wanted)]
    match operator:
        case "Null":
            return (given is None) == (values == ["true"])
        case "StringEquals":
            return given in values
        case "ForAllValues:StringLike":
            return all(any(fnmatchcase(item, value) for value in values) for item in listed(given or []))
    raise AssertionError(f"{operator} is not read here")


def allows(action: str, arn: str, context: Mapping[str, Any]) -> bool:
    """Whether a statement allows ``action`` on one resource with the condition keys of ``context``."""
    return any(
        action in listed(statement["Action"])
        and any(fnmatchcase(arn, pattern) for pattern in listed(statement["Resource"]))
        and all(
            holds(operator, wanted, context.get(key))
            for operator, operands in statement.get("Condition", {}).items()
            for key, wanted in operands.items()
        )
        for statement in STATEMENTS
    )


HOME = {"aws:RequestedRegion": "us-east-1"}
OURS = {f"aws:ResourceTag/{TAG}": "b"}
KEYS = ["Name", TAG, "gpu-image:expires", "gpu-image:family"]
NEW = {f"aws:RequestTag/{TAG}": "b", "aws:TagKeys": KEYS}
COPIED = {**NEW, "aws:TagKeys": [*KEYS, "gpu-image:source"]}
MACHINE = f"arn:aws:ec2:us-east-1:{ACCOUNT}:instance/i-1"
VOLUME = f"arn:aws:ec2:us-east-1:{ACCOUNT}:volume/vol-1"
GROUP = f"arn:aws:ec2:us-east-1:{ACCOUNT}:security-group/sg-1"
INTERFACE = f"arn:aws:ec2:us-east-1:{ACCOUNT}:network-interface/eni-1"
IMAGE = "arn:aws:ec2:us-east-1::image/ami-1"
SNAPSHOT = "arn:aws:ec2:us-east-1::snapshot/snap-1"
VPC = f"arn:aws:ec2:us-east-1:{ACCOUNT}:vpc/vpc-1"
RULE = f"arn:aws:ec2:us-east-1:{ACCOUNT}:security-group-rule/sgr-1"
DEBIAN = {"ec2:Owner": "136693071363"}

#: What a build with Packer 1.6.6 and our own code ask for, in their order: action, resource, condition keys.
BUILD: list[tuple[str, str, dict[str, Any]]] = [
    # A group for the build machine, and later one for each of the gate's.
    ("ec2:CreateSecurityGroup", GROUP, NEW),
    ("ec2:CreateSecurityGroup", VPC, {}),
    ("ec2:CreateTags", GROUP, {**NEW, "ec2:CreateAction": "CreateSecurityGroup"}),
    ("ec2:AuthorizeSecurityGroupIngress", GROUP, OURS),
    ("ec2:AuthorizeSecurityGroupIngress", RULE, {}),
    # Packer: the build machine, and what becomes of it.
    ("ec2:RunInstances", MACHINE, NEW),
    ("ec2:RunInstances", VOLUME, NEW),
    ("ec2:RunInstances", IMAGE, DEBIAN),
    ("ec2:RunInstances", GROUP, OURS),
    ("ec2:RunInstances", f"arn:aws:ec2:us-east-1:{ACCOUNT}:subnet/subnet-1", {}),
    ("ec2:RunInstances", INTERFACE, {}),
    ("ec2:CreateTags", MACHINE, {**NEW, "ec2:CreateAction": "RunInstances"}),
    ("ec2:CreateTags", VOLUME, {**NEW, "ec2:CreateAction": "RunInstances"}),
    ("ec2:ModifyInstanceMetadataOptions", MACHINE, OURS),
    ("ec2:StopInstances", MACHINE, OURS),
    ("ec2:ModifyInstanceAttribute", MACHINE, OURS),
    ("ec2:CreateImage", MACHINE, OURS),
    ("ec2:CreateImage", IMAGE, {}),
    ("ec2:CreateImage", SNAPSHOT, {}),
    ("ec2:CreateTags", IMAGE, NEW),
    ("ec2:CreateTags", SNAPSHOT, NEW),
    ("ec2:TerminateInstances", MACHINE, OURS),
    # The capture: IMDSv2 and the description, after the tags.
    ("ec2:ModifyImageAttribute", IMAGE, OURS),
    # The gate's machines.
    ("ec2:RunInstances", IMAGE, {**OURS, "ec2:Owner": ACCOUNT}),
    ("ec2:RunInstances", INTERFACE, NEW),
    ("ec2:CreateTags", INTERFACE, {**NEW, "ec2:CreateAction": "RunInstances"}),
    ("ec2:GetConsoleOutput", MACHINE, OURS),
    ("ec2:RebootInstances", MACHINE, OURS),
    ("ec2:DeleteSecurityGroup", GROUP, OURS),
    # Published, copied, shared.
    ("ec2:CreateTags", IMAGE, {**OURS, "aws:TagKeys": ["gpu-image:release"]}),
    ("ec2:CreateTags", SNAPSHOT, {**OURS, "aws:TagKeys": ["gpu-image:release"]}),
    ("ec2:CopyImage", IMAGE, {**OURS, "ec2:Owner": ACCOUNT}),
    ("ec2:CopyImage", IMAGE, COPIED),
    ("ec2:CopyImage", SNAPSHOT, COPIED),
    ("ec2:CreateTags", IMAGE, {**COPIED, "ec2:CreateAction": "CopyImage"}),
    ("ec2:CreateTags", SNAPSHOT, {**COPIED, "ec2:CreateAction": "CopyImage"}),
    ("ec2:CreateTags", IMAGE, {**COPIED, **OURS}),
    ("ec2:CreateTags", SNAPSHOT, {**COPIED, **OURS}),
    ("ec2:DescribeImageAttribute", IMAGE, OURS),
    ("ec2:ModifySnapshotAttribute", SNAPSHOT, {**OURS, "ec2:Add/userId": "444455556666"}),
    # A sweep. What was pending has no tags: it is made ours before it is deleted.
    ("ec2:CreateTags", IMAGE, {f"aws:RequestTag/{TAG}": "swept", "aws:TagKeys": [TAG]}),
    ("ec2:CreateTags", SNAPSHOT, {f"aws:RequestTag/{TAG}": "swept", "aws:TagKeys": [TAG]}),
    ("ec2:DeregisterImage", IMAGE, OURS),
    ("ec2:DeleteSnapshot", SNAPSHOT, OURS),
    ("ec2:DeleteVolume", VOLUME, OURS),
    # Newer plugins tag an image when they make it.
    ("ec2:CreateImage", IMAGE, NEW),
    ("ec2:CreateTags", IMAGE, {**NEW, "ec2:CreateAction": "CreateImage"}),
    ("ec2:CreateTags", SNAPSHOT, {**NEW, "ec2:CreateAction": "CreateImage"}),
]

#: What somebody with the builder's credentials may not do.
REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("ec2:TerminateInstances", MACHINE, {}),
    ("ec2:TerminateInstances", MACHINE, {"aws:ResourceTag/Name": "web"}),
    ("ec2:StopInstances", MACHINE, {}),
    ("ec2:DeleteVolume", VOLUME, {}),
    ("ec2:DeregisterImage", IMAGE, {}),
    ("ec2:DeleteSnapshot", SNAPSHOT, {}),
    ("ec2:ModifyInstanceAttribute", MACHINE, {}),
    ("ec2:GetConsoleOutput", MACHINE, {}),
    ("ec2:CreateImage", MACHINE, {}),
    ("ec2:ModifyImageAttribute", IMAGE, {}),
    ("ec2:RunInstances", MACHINE, {}),
    ("ec2:RunInstances", VOLUME, {}),
    ("ec2:RunInstances", IMAGE, {"ec2:Owner": "999988887777"}),
    ("ec2:CopyImage", SNAPSHOT, {}),
    ("ec2:CopyImage", IMAGE, {"ec2:Owner": "999988887777"}),
    # A foreign machine cannot be made ours by tagging it.
    ("ec2:CreateTags", MACHINE, NEW),
    ("ec2:CreateTags", VOLUME, NEW),
    # Nor can a group: an untagged one cannot be made, opened, used, deleted, or tagged later.
    ("ec2:CreateSecurityGroup", GROUP, {}),
    ("ec2:CreateSecurityGroup", GROUP, {"aws:RequestTag/Name": "web", "aws:TagKeys": ["Name"]}),
    ("ec2:AuthorizeSecurityGroupIngress", GROUP, {}),
    ("ec2:RunInstances", GROUP, {}),
    ("ec2:DeleteSecurityGroup", GROUP, {}),
    ("ec2:CreateTags", GROUP, NEW),
    ("ec2:CreateTags", INTERFACE, NEW),
    ("ec2:DeleteKeyPair", f"arn:aws:ec2:us-east-1:{ACCOUNT}:key-pair/key-1", {}),
    ("ec2:CreateTags", IMAGE, {**OURS, "aws:TagKeys": ["aws-backup"]}),
    ("ec2:ModifySnapshotAttribute", SNAPSHOT, {**OURS, "ec2:Add/group": "all"}),
    ("ec2:ModifySnapshotAttribute", SNAPSHOT, {"ec2:Add/userId": "444455556666"}),
    ("ec2:RunInstances", MACHINE, {**NEW, "aws:RequestedRegion": "ap-southeast-2"}),
    ("ec2:DeleteVpc", VPC, OURS),
    ("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/admin", {}),
]


@pytest.mark.parametrize(("action", "arn", "context"), BUILD)
def test_a_build_gets_what_it_asks_for(action: str, arn: str, context: dict[str, Any]) -> None:
    assert allows(action, arn, {**HOME, **context})
    assert not allows(action, arn, {**HOME, **context, "aws:RequestedRegion": "ap-southeast-2"})


@pytest.mark.parametrize(("action", "arn", "context"), REFUSED)
def test_a_stolen_role_does_not_get(action: str, arn: str, context: dict[str, Any]) -> None:
    assert not allows(action, arn, {**HOME, **context})


def test_every_write_action_of_the_policy_is_one_that_a_build_needs() -> None:
    assert {action for action in ACTIONS if not reads(action)} == {
        action for action, _, _ in BUILD if not reads(action)
    }
