"""What the simulated account starts with: the distributions' public images, as a real account sees them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

import botocore.session

from tests.cloud_sim.ec2 import Backend, Device, Image

REGIONS = ("us-east-1", "us-west-2", "eu-west-1")
DEBIAN = "136693071363"  # https://wiki.debian.org/Cloud/AmazonEC2Image
CANONICAL = "099720109477"  # https://documentation.ubuntu.com/aws/aws-how-to/instances/find-ubuntu-images/


@dataclass(frozen=True)
class Seed:
    """A public image."""

    name: str
    owner: str
    architecture: str
    created: str
    description: str
    root: str
    default_user: str
    imds_support: str | None = None


def _debian(arch: str, architecture: str, date: str) -> Seed:
    created = f"{date[:4]}-{date[4:6]}-{date[6:]}T06:00:00"
    text = f"Debian 13 ({date}-0001)"
    return Seed(f"debian-13-{arch}-{date}-0001", DEBIAN, architecture, created, text, "/dev/xvda", "admin")


def _ubuntu(arch: str, architecture: str, date: str) -> Seed:
    return Seed(
        f"ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-{arch}-server-{date}",
        CANONICAL,
        architecture,
        f"{date[:4]}-{date[4:6]}-{date[6:]}T05:00:00",
        f"Canonical, Ubuntu, 24.04, {arch} noble image",
        "/dev/sda1",
        "ubuntu",
        "v2.0",
    )


SEEDS = (
    _debian("amd64", "x86_64", "20260915"),
    _debian("amd64", "x86_64", "20261101"),
    _debian("arm64", "arm64", "20260915"),
    _debian("arm64", "arm64", "20261101"),
    _ubuntu("amd64", "x86_64", "20261101"),
    _ubuntu("arm64", "arm64", "20261101"),
)


@cache
def known_regions() -> frozenset[str]:
    """The regions that botocore knows EC2 in."""
    return frozenset(botocore.session.get_session().get_available_regions("ec2"))


def image_id(seed: Seed, region: str) -> str:
    """The id of a seed in a region: the same in each account, another in each region."""
    return "ami-0" + hashlib.sha256(f"{seed.name} {region}".encode()).hexdigest()[:16]


def plant(backend: Backend, folder: Path) -> None:
    """Puts the source images into a region. All boot from ``folder``."""
    for seed in SEEDS:
        image = Image(
            backend,
            image_id=image_id(seed, backend.region_name),
            folder=folder,
            name=seed.name,
            description=seed.description,
            owner_id=seed.owner,
            public=True,
            architecture=seed.architecture,
            creation_date=datetime.fromisoformat(seed.created),
            root_device_name=seed.root,
            boot_mode="uefi" if seed.architecture == "arm64" else "uefi-preferred",
            default_user=seed.default_user,
            imds_support=seed.imds_support,
        )
        snapshot = backend.snapshot(seed.name, size=8, image=image)
        image.devices.append(Device(seed.root, 8, snapshot))
        backend.add(image)
