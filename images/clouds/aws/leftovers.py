"""What dead builds left in an account: machines, volumes, key pairs, security groups, images, snapshots.

What carries our tags is judged by its build id, else by the expiry in the tag. An image whose build was
stopped while it was pending has no tags yet: it is known by its name, and is a leftover when it is old or a
dead build used the name. Packer's own temporary key pairs and security groups may be anybody's who uses
Packer in the account (we make none): they count only when they are old and somebody asks for them.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from images import spec
from images.clouds.aws import ami, api, machine
from images.clouds.aws.api import explained
from images.clouds.aws.section import NAME, site_of
from images.clouds.model import Removable, Scope

BUILD_TAG = "gpu-image:build-id"
EXPIRES_TAG = "gpu-image:expires"

#: Packer's temporary names: the first eight hexadecimal digits are the Unix time of their making.
PACKER_NAME = re.compile(r"^packer_([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
#: FAMILY-YYYY.MMDD.HHMMSS, as the pipeline names images.
IMAGE_NAME = re.compile(r"^(?P<family>[a-z][a-z0-9-]+)-[0-9]{4}\.[0-9]{3,4}\.[0-9]{1,6}$")
#: How EC2 describes the snapshot of an image.
SNAPSHOT_OF = re.compile(r"CreateImage\((?P<instance>i-[0-9a-f]+)\) for (?P<image>ami-[0-9a-f]+)")


@dataclass(frozen=True)
class Judge:
    """Decides whether something may go, and says why."""

    scope: Scope
    now: float

    @property
    def max_age(self) -> float:
        """No build takes longer, seconds."""
        settings = self.scope.settings
        return (settings.build_hours + settings.keep_hours) * 3600.0

    def reason(self, tags: Mapping[str, str], *, name: str = "", made: float | None = None) -> str | None:
        """Why this is a leftover; None when it is not, or when it cannot be told.

        ``name`` and ``made`` (Unix time) count only for what has no tags of ours.
        """
        build = tags.get(BUILD_TAG)
        if self.scope.only:
            mine = build == self.scope.only or (not build and name in self.scope.names)
            return f"made by build {self.scope.only}" if mine else None
        if build in self.scope.live:
            return None
        if build in self.scope.dead:
            return f"build {build} is over"
        if build:
            expires = _time(tags.get(EXPIRES_TAG, ""))
            if expires is None:
                return self._by_age(made, f"build {build}, without a readable expiry")
            return f"build {build} expired at {tags[EXPIRES_TAG]}" if expires < self.now else None
        if name in self.scope.names:
            return "a dead build made it"
        if PACKER_NAME.match(name) and not self.scope.anybodys:
            return None
        return self._by_age(made, "no build is known") if name else None

    def _by_age(self, made: float | None, what: str) -> str | None:
        if made is None or self.now - made < self.max_age:
            return None
        return f"{what}, {(self.now - made) / 3600:.0f} h old"


def find(scope: Scope) -> list[Removable]:
    """The leftovers in all regions that any spec names, machines first: what they use can go after them."""
    judge = Judge(scope, time.time())
    found: list[Removable] = []
    for region in regions():
        for look in (_instances, _images, _snapshots, _volumes, _key_pairs, _groups):
            found += look(region, judge)
    return found


def regions() -> list[str]:
    """The regions of all images in the catalog, where they are built and where they are copied to."""
    found = set()
    for image in spec.names():
        section = spec.load(image).spec.clouds.get(NAME, {})
        found |= {section["region"], *section.get("replicas", [])} if "region" in section else set()
    return sorted(found)


def running(scope: Scope) -> bool:
    """Whether an instance of the build ``scope.only`` has not been ended."""
    judge = Judge(scope, time.time())
    return any(_instances(region, judge) for region in regions())


def _time(text: str) -> float | None:
    """A tag's time as Unix time; None when it is none."""
    try:
        return datetime.datetime.strptime(text + "+0000", "%Y-%m-%dT%H:%M:%SZ%z").timestamp()
    except ValueError:
        return None


def _pages(region: str, operation: str, key: str, **parameters: Any) -> Iterator[dict[str, Any]]:
    """All items of a ``describe_…`` operation."""
    with explained(f"listing {key} in {region}"):
        for page in api.client("ec2", region).get_paginator(operation).paginate(**parameters):
            yield from page[key]


def _instances(region: str, judge: Judge) -> list[Removable]:
    states = {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}
    found = []
    for reservation in _pages(region, "describe_instances", "Reservations", Filters=[states]):
        for item in reservation["Instances"]:
            identifier, tags = item["InstanceId"], ami.tags_of(item)
            if reason := judge.reason(tags):
                poll = site_of(judge.scope.settings).poll_seconds
                remove = partial(machine.end, identifier, "", region, poll=poll)
                label = f"{identifier} {region} {item['InstanceType']} {item['State']['Name']}"
                found.append(Removable("instance", label, reason, remove))
    return found


def _images(region: str, judge: Judge) -> list[Removable]:
    families = set(spec.names())
    found = []
    for item in _pages(region, "describe_images", "Images", Owners=["self"]):
        identifier, tags = item["ImageId"], ami.tags_of(item)
        if identifier in judge.scope.keep or ami.RELEASE_TAG in tags:
            continue
        name = IMAGE_NAME.match(item.get("Name") or "")
        ours = item["Name"] if name and name["family"] in families else ""
        if judge.scope.only and ours in judge.scope.names:
            reason: str | None = f"made by build {judge.scope.only}"
        else:
            reason = judge.reason(tags, name=ours, made=_time((item.get("CreationDate") or "")[:19] + "Z"))
        if reason:
            label = f"{identifier} {region} {item.get('Name')} {item['State']}"
            remove = partial(_remove_image, identifier, region)
            found.append(Removable("image", label, reason, remove))
    return found


def _remove_image(identifier: str, region: str) -> None:
    """Also the snapshots of an image that is pending: they are not in its description yet."""
    described = [
        item["SnapshotId"]
        for item in _pages(region, "describe_snapshots", "Snapshots", OwnerIds=["self"])
        if (match := SNAPSHOT_OF.search(item.get("Description") or "")) and match["image"] == identifier
    ]
    # An image that was pending has no tags yet, and a policy may let us delete only what has ours.
    ami.tag(identifier, region, {BUILD_TAG: "swept"})
    with explained(f"tagging {described}"):
        if described:
            tags = ami.tag_list({BUILD_TAG: "swept"})
            api.client("ec2", region).create_tags(Resources=described, Tags=tags)
    ami.delete(identifier, region)
    for snapshot in described:
        ami.delete_snapshot(snapshot, region)


def _snapshots(region: str, judge: Judge) -> list[Removable]:
    """Snapshots of ours behind which no image stands any more."""
    used = set()
    for image in _pages(region, "describe_images", "Images", Owners=["self"]):
        used |= {image["ImageId"], *ami.snapshots_of(image)}
    found = []
    for item in _pages(region, "describe_snapshots", "Snapshots", OwnerIds=["self"]):
        identifier = item["SnapshotId"]
        match = SNAPSHOT_OF.search(item.get("Description") or "")
        if identifier in used or (match and match["image"] in used):
            continue
        if reason := judge.reason(ami.tags_of(item)):
            remove = partial(ami.delete_snapshot, identifier, region)
            found.append(Removable("snapshot", f"{identifier} {region}", reason, remove))
    return found


def _volumes(region: str, judge: Judge) -> list[Removable]:
    found = []
    free = {"Name": "status", "Values": ["available", "error"]}
    for item in _pages(region, "describe_volumes", "Volumes", Filters=[free]):
        if reason := judge.reason(ami.tags_of(item)):
            remove = partial(_delete_volume, item["VolumeId"], region)
            found.append(Removable("volume", f"{item['VolumeId']} {region}", reason, remove))
    return found


def _delete_volume(identifier: str, region: str) -> None:
    with explained(f"deleting {identifier}", ignore=["InvalidVolume.NotFound"]):
        api.client("ec2", region).delete_volume(VolumeId=identifier)


def _key_pairs(region: str, judge: Judge) -> list[Removable]:
    found = []
    with explained(f"listing key pairs in {region}"):
        pairs = api.client("ec2", region).describe_key_pairs()["KeyPairs"]
    for item in pairs:
        name = item["KeyName"]
        if reason := judge.reason(ami.tags_of(item), **_packer(name)):
            remove = partial(_delete_key_pair, name, region)
            found.append(Removable("key pair", f"{name} {region}", reason, remove))
    return found


def _delete_key_pair(name: str, region: str) -> None:
    with explained(f"deleting the key pair {name}", ignore=["InvalidKeyPair.NotFound"]):
        api.client("ec2", region).delete_key_pair(KeyName=name)


def _groups(region: str, judge: Judge) -> list[Removable]:
    found = []
    for item in _pages(region, "describe_security_groups", "SecurityGroups"):
        name, identifier = item["GroupName"], item["GroupId"]
        if reason := judge.reason(ami.tags_of(item), **_packer(name)):
            poll = site_of(judge.scope.settings).poll_seconds
            remove = partial(machine.delete_security_group, identifier, region, poll=poll)
            found.append(Removable("security group", f"{name} {identifier} {region}", reason, remove))
    return found


def _packer(name: str) -> dict[str, Any]:
    """What a temporary name of Packer's says: the name, and when it was made; nothing for other names."""
    match = PACKER_NAME.match(name)
    return {"name": name, "made": float(int(match[1], 16))} if match else {}
