"""The documents of what comes after a release: statements, records, channels, revocations.

A release never changes. What becomes true later is a statement, which never changes either; records and
channels are the small documents that do change, and lead to what is true now.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from images.manifest.parts import Arch, Digest, Document, Name, Part, Text, Time, Version

ValidationState = Literal["validated", "not_validated", "failed"]


# --- statement: one later fact about one release ------------------------------------------------------


class AnyBody(Part):
    """What every body has: its kind. A reader passes over a kind that it does not know."""

    kind: str = Field(pattern=r"^[a-z][a-z_]{0,62}$")


class Replicated(AnyBody):
    """The image was copied to a region, and the cloud says that it can be used there."""

    kind: Literal["replicated"]
    region: Name
    id: Text = Field(description="what a provisioner passes to the cloud in this region")
    snapshots: list[Text] = Field(default=[], description="the copy's own snapshots")
    replaces: Text | None = Field(default=None, description="id of an earlier copy that is gone")


class ReplicationFailed(AnyBody):
    """An attempt to copy the image to a region came to nothing."""

    kind: Literal["replication_failed"]
    region: Name
    reason: Text


class Shared(AnyBody):
    """Others may use the image in these regions."""

    kind: Literal["shared"]
    images: dict[Name, Text] = Field(min_length=1, description="region -> the id that was shared there")
    grantees: list[Text] = Field(
        min_length=1, description="account ids, or ARNs of organisations and their units"
    )


class Validated(AnyBody):
    """The image was judged on a machine with real GPUs of this family; all that must pass did."""

    kind: Literal["validated"]
    family: Name = Field(description="GPU family, as in the release")
    level: Literal["gpu_hardware"] = Field(description="simulated GPUs validate nothing")
    gpus: int = Field(ge=1, description="how many the machine has")
    on: Text = Field(description="the machine: its type where it has one, and the GPU's name")
    evidence: list[Digest] = Field(
        min_length=1, description="blobs: the results of the gate, and raw outputs"
    )


#: The kinds that this program knows. Another one was made by a newer program, and is passed over.
STATEMENT_KINDS = frozenset({"replicated", "replication_failed", "shared", "validated"})


class StatementHead(Document):
    """A statement as far as every reader understands it."""

    kind = "statement"
    schema_: Literal["gpu-image/statement/v1"] = Field(default="gpu-image/statement/v1", alias="schema")
    release: Digest = Field(description="what the statement is about")
    made: Time
    actor: Text
    body: AnyBody


class Statement(StatementHead):
    """One fact about one release that came after it. Never changes."""

    body: Annotated[Replicated | ReplicationFailed | Shared | Validated, Field(discriminator="kind")]


# --- record: what is known of one build by now --------------------------------------------------------


class AvailableRegion(Part):
    """The image is there."""

    state: Literal["available"]
    id: Text
    statement: Digest = Field(description="the statement that says so")
    updated: Time


class PendingRegion(Part):
    """The image is wanted there, or on its way: an intention, so no statement."""

    state: Literal["pending"]
    id: Text | None = Field(default=None, description="the unfinished copy; null: not begun")
    updated: Time


class FailedRegion(Part):
    """The last attempt to bring the image there failed."""

    state: Literal["failed"]
    reason: Text
    statement: Digest = Field(description="the statement that says so")
    updated: Time


RecordRegion = Annotated[AvailableRegion | PendingRegion | FailedRegion, Field(discriminator="state")]


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
    regions: dict[Name, RecordRegion] = Field(
        default={}, description="the regions that came after the release: a summary of the statements"
    )
    gpu: dict[Name, Digest] = Field(
        default={}, description="GPU families validated after the release: the last statement that says so"
    )

    @model_validator(mode="after")
    def _its_statements_are_listed(self) -> Self:
        for name, digest in self.gpu.items():
            if digest not in self.statements:
                raise ValueError(f"gpu: the statement of {name} is not among the statements")
        for name, region in self.regions.items():
            if not isinstance(region, PendingRegion) and region.statement not in self.statements:
                raise ValueError(f"regions: the statement of {name} is not among the statements")
        return self


# --- channel: the pointer that provisioners read ------------------------------------------------------


class Lagging(Part):
    """What is true in a region that still has an older release, where the target says otherwise."""

    version: Version
    gpu: dict[Name, ValidationState]
    bundle_digest: Digest


class TargetRegion(Part):
    """The image to launch in one region, and the release it belongs to: a region may lag behind."""

    id: Text
    release: Digest
    statement: Digest | None = Field(
        default=None, description="the statement that has the id; null: the release itself has it"
    )
    lagging: Lagging | None = Field(
        default=None,
        description="exactly where release is not the target's: read these instead of the target's own",
    )


class Target(Part):
    """What a channel points to: all that a launch needs."""

    release: Digest
    version: Version
    regions: dict[Name, TargetRegion] = Field(min_length=1)
    gpu: dict[Name, ValidationState]
    bundle_digest: Digest = Field(description="what a machine booted from the image reports")

    @model_validator(mode="after")
    def _who_lags_behind_says_so(self) -> Self:
        for name, region in self.regions.items():
            if (region.release != self.release) != (region.lagging is not None):
                raise ValueError(f"regions.{name}: lagging must be there exactly where the release differs")
        return self


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
    fallback: Target | None = Field(default=None, description="the target before this release")

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
