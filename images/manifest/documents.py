"""The documents of the manifest.

What must not be said without proof is refused by the shape of the document, so that the JSON Schemas in
``schemas/`` refuse it too: "validated" exists only together with evidence from real hardware, "not run"
only together with a reason. Fields are only ever added, and only optional ones; anything else is a new
major version. The words are those of DESIGN.md section 2.

To add a document: a subclass of ``Document`` and its name in ``ALL`` here, its key in ``keys.py``, then
``python -m images.manifest.json_schema``.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    model_validator,
)
from pydantic_core import CoreSchema


def _real_time(value: str) -> str:
    datetime.datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ")
    return value


Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
#: UTC, to the second: such times compare as text.
Time = Annotated[
    str,
    Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"),
    AfterValidator(_real_time),
]
#: YYYY.MMDD.HHMMSS as three integers.
Version = Annotated[str, Field(pattern=r"^[0-9]{4}\.[1-9][0-9]{2,3}\.(0|[1-9][0-9]{0,5})$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Text = Annotated[str, Field(pattern=r"\S", max_length=4000)]
Arch = Literal["amd64", "arm64"]
Level = Literal["gpu_hardware", "gpu_simulated", "vm_no_gpu", "static"]


class Part(BaseModel):
    """A part of a document: unknown keys and values of another type are errors, nothing is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class Document(Part):
    """A whole document. ``schema`` says its kind and major version; ``ext`` is for a site's own data."""

    kind: ClassVar[str]
    ext: dict[str, JsonValue] = {}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Requires ``schema``: it has a default only for who makes a document in Python."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        schema["required"] = ["schema", *schema.get("required", [])]
        return schema


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
ValidationState = Literal["validated", "not_validated", "failed"]


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


# --- record: what is known of one build by now --------------------------------------------------------


class Record(Document):
    """Finds the release of a version; later facts are added to it as statements. Mutable."""

    kind = "record"
    schema_: Literal["gpu-image/record/v1"] = Field(default="gpu-image/record/v1", alias="schema")
    family: Name
    version: Version
    cloud: Name
    arch: Arch
    release: Digest
    lifecycle: Literal["candidate", "active", "deprecated", "revoked", "deleted"]
    updated: Time
    statements: list[Digest] = Field(default=[])


# --- channel: the pointer that provisioners read ------------------------------------------------------


class TargetRegion(Part):
    """The image to launch in one region, and the release it belongs to: a region may lag behind."""

    id: Text
    release: Digest


class Target(Part):
    """What a channel points to: all that a launch needs."""

    release: Digest
    version: Version
    regions: dict[Name, TargetRegion] = Field(min_length=1)
    gpu: dict[Name, ValidationState]
    bundle_digest: Digest = Field(description="what a machine booted from the image reports")


class Channel(Document):
    """A pointer to the release to launch. Mutable: each version has the next serial and names its parent."""

    kind = "channel"
    schema_: Literal["gpu-image/channel/v1"] = Field(default="gpu-image/channel/v1", alias="schema")
    family: Name
    cloud: Name
    arch: Arch
    channel: Name
    serial: int = Field(ge=1, description="one more than the parent's; never goes down")
    parent: Digest | None = Field(description="digest of the version before this one; null for the first")
    updated: Time
    expires: Time | None = Field(default=None, description="not to be used from then on")
    action: Literal["create", "promote", "rollback", "hold", "resume", "backfill", "refresh"]
    actor: Text
    reason: Text
    target: Target
    fallback: Target | None = Field(default=None, description="the target before this one")

    @model_validator(mode="after")
    def _only_the_first_has_no_parent(self) -> Self:
        if (self.serial == 1) != (self.parent is None):
            raise ValueError(f"serial {self.serial} with parent {self.parent}")
        return self


# --- revocations: what must not be launched any more --------------------------------------------------


class Revocation(Part):
    """One revoked release with every image id it has anywhere."""

    release: Digest
    version: Version
    images: list[Text]
    reason: Text
    severity: Literal["stop_new", "drain", "terminate"]
    effective: Time = Field(description="a time to come is a schedule, not a revocation yet")
    replacement: Digest | None = None


class Revocations(Document):
    """The revoked releases of a family. Mutable; no document means that nothing was revoked."""

    kind = "revocations"
    schema_: Literal["gpu-image/revocations/v1"] = Field(default="gpu-image/revocations/v1", alias="schema")
    family: Name
    serial: int = Field(ge=1)
    updated: Time
    entries: list[Revocation]


ALL: tuple[type[Document], ...] = (Release, Record, Channel, Revocations)
