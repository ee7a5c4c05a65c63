"""What every document of the manifest is made of: its base classes, and the types of common fields."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, JsonValue
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
