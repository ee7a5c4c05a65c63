"""The documents of the manifest: the release here, what changes after it in ``later.py``.

What must not be said without proof is refused by the shape of the document, so that the JSON Schemas in
``schemas/`` refuse it too: "validated" exists only together with evidence from real hardware, "not run"
only together with a reason. Fields are only ever added, and only optional ones; anything else is a new
major version. The words are those of DESIGN.md section 2.

To add a document: a subclass of ``Document`` and its name in ``ALL`` here, its key in ``keys.py``, then
``python -m images.manifest.json_schema``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from images.manifest.later import Channel, Record, Revocations, Statement
from images.manifest.parts import Arch, Digest, Document, Level, Name, Part, Sha256, Text, Time, Version

__all__ = ["ALL", "Channel", "Document", "Record", "Release", "Revocations", "Statement"]

# --- release: one image build on one cloud and architecture -----------------------------------------


class DiskFile(Part):
    """The image as a file."""

    format: Literal["qcow2", "raw", "vhd"]
    digest: Digest
    size: int = Field(gt=0, description="bytes")


class NoDisk(Part):
    """The image exists only inside its cloud; nobody can hash its disk."""

    format: Literal["none"]


class Region(Part):
    """The image in one region."""

    id: Text = Field(
        description="what a provisioner passes to the cloud; on the local cloud the disk's path"
    )


class Image(Part):
    """The image itself."""

    name: Text
    min_disk_gib: int = Field(gt=0, description="smallest disk that a machine may have, GiB")
    disk: Annotated[DiskFile | NoDisk, Field(discriminator="format")]
    regions: dict[Name, Region] = Field(min_length=1)


class Os(Part):
    """``id`` and ``version`` as in os-release; ``kernel`` is what uname -r printed on a booted machine."""

    id: Name
    version: Text
    kernel: Text


class Software(Part):
    """Versions by component: what was asked for, and what was seen on a machine booted from the image."""

    package_origin: Literal["distribution", "vendor", "fixture"]
    requested: dict[str, Text]
    observed: dict[str, Text | None] = Field(description="null: nobody looked")

    @model_validator(mode="after")
    def _every_request_is_answered(self) -> Self:
        if missing := sorted(set(self.requested) - set(self.observed)):
            raise ValueError(f"observed says nothing of {', '.join(missing)} (null: nobody looked)")
        return self


class Validated(Part):
    """Checked on real hardware of this family."""

    state: Literal["validated"]
    level: Literal["gpu_hardware"]
    evidence: list[Digest] = Field(min_length=1, description="blobs that are among the release's links")
    at: Time
    on: Text = Field(description="the machine type it ran on")


class NotValidated(Part):
    """Nobody checked this family."""

    state: Literal["not_validated"]
    reason: Text


class ValidationFailed(Part):
    """Checked on this family, and it does not work."""

    state: Literal["failed"]
    reason: Text
    evidence: list[Digest] = Field(min_length=1, description="blobs that are among the release's links")
    at: Time
    on: Text = Field(description="the machine type it ran on")


Validation = Annotated[Validated | NotValidated | ValidationFailed, Field(discriminator="state")]


class GpuFamily(Part):
    """What is known of the image on one GPU family."""

    support: Literal["intended", "unsupported"]
    validation: Validation


class Gpu(Part):
    """GPU families by name. One that is not listed is unknown, never inherited from another."""

    families: dict[Name, GpuFamily]


class BootCheckFile(Part):
    """One file of the bundle, whole: a provisioner can compare it with what a machine runs."""

    path: str = Field(pattern=r"^/[^\n\x00]+$", description="absolute, on the machine")
    mode: str = Field(pattern=r"^0[0-7]{3}$")
    sha256: Sha256
    size: int = Field(ge=0, description="bytes")
    content: str

    @model_validator(mode="after")
    def _is_its_content(self) -> Self:
        content = self.content.encode()
        if len(content) != self.size or hashlib.sha256(content).hexdigest() != self.sha256:
            raise ValueError(f"{self.path}: the content is not what sha256 and size say")
        return self


class BootChecks(Part):
    """The bundle baked into the image."""

    bundle_digest: Digest = Field(description="sha256 over the sorted lines 'MODE SHA256 PATH' of the items")
    items: list[BootCheckFile] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_the_digest_of_its_items(self) -> Self:
        if self.bundle_digest != bundle_digest(self.items):
            raise ValueError("bundle_digest is not the digest of the items")
        return self


def bundle_digest(items: Iterable[BootCheckFile]) -> str:
    """The digest that a machine with exactly these files reports.

    Computed here on purpose, and not by the code that builds the bundle: this is how a reader checks it.
    """
    lines = sorted(f"{item.mode} {item.sha256} {item.path}\n" for item in items)
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


class GateFacts(Part):
    """What every result of the gate says: which check, on which image and machine."""

    id: Text
    phase: Literal["build", "first_boot", "reboot", "capture"]
    seconds: float = Field(ge=0)
    script_sha256: Sha256
    image: Text
    machine: Text
    degraded: list[Text] = Field(default=[], description="what the machine gives less of, and passed")
    data: dict[str, JsonValue] = Field(default={}, description="figures and facts, as the check names them")


class Passed(GateFacts):
    """A check that any virtual machine can run."""

    result: Literal["pass"]
    tier: Literal["any_vm"]
    level: Level
    reason: str | None = None


class PassedOnGpu(GateFacts):
    """A check of the GPU tiers passes on a GPU or on a simulated one, and says on which."""

    result: Literal["pass"]
    tier: Literal["gpu", "nvswitch"]
    level: Literal["gpu_hardware", "gpu_simulated"]
    reason: str | None = None


class DidNotPass(GateFacts):
    """Anything but a pass says why."""

    result: Literal["fail", "unknown", "not_run"]
    tier: Literal["any_vm", "gpu", "nvswitch"]
    level: Level
    reason: Text


Pass = Annotated[Passed | PassedOnGpu, Field(discriminator="tier")]
Gate = Annotated[Pass | DidNotPass, Field(discriminator="result")]


class Source(Part):
    """The checkout that built the image."""

    commit: str | None = Field(description="null outside a git repository")
    dirty: bool


class BuildBase(Part):
    """What the build started from."""

    id: Text
    name: str | None = None
    digest: Digest | None = None


class Build(Part):
    """How the image was made. The releases of one build on several clouds share its id."""

    id: Text
    tools: dict[str, Text] = Field(description="program -> version")
    source: Source
    base: BuildBase
    inputs_digest: Digest
    lock_digest: Digest
    overrides: list[str] = Field(default=[], description="what --set changed in the spec")
    simulation: Text | None = Field(
        default=None, description="what was simulated; null: nothing. Such a release is never promoted"
    )
    started: Time
    finished: Time


class Link(Part):
    """A blob that belongs to the release."""

    rel: Name = Field(description="what it is: gate, boots, packages, serial-log, sbom")
    name: Text = Field(description="file name, for people")
    digest: Digest
    size: int = Field(ge=0, description="bytes")
    media_type: str = Field(pattern=r"^[a-z]+/[a-z0-9.+-]+$")


class Release(Document):
    """One image build: family, version, cloud and architecture. Never changes."""

    kind = "release"
    schema_: Literal["gpu-image/release/v1"] = Field(default="gpu-image/release/v1", alias="schema")
    family: Name
    version: Version
    cloud: Name
    arch: Arch
    created: Time
    image: Image
    os: Os
    software: Software
    gpu: Gpu
    boot_checks: BootChecks
    gates: list[Gate] = Field(min_length=1)
    build: Build
    parents: list[Digest] = Field(default=[], description="releases that this one was built from")
    links: list[Link] = Field(default=[])

    @model_validator(mode="after")
    def _evidence_is_linked(self) -> Self:
        linked = {link.digest for link in self.links}
        for name, family in self.gpu.families.items():
            if missing := set(getattr(family.validation, "evidence", [])) - linked:
                raise ValueError(f"{name}: evidence {missing.pop()} is not among the links")
        return self


ALL: tuple[type[Document], ...] = (Release, Statement, Record, Channel, Revocations)
