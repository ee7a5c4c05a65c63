"""Documents to bytes and back, and their digests.

A document's digest is the sha256 of exactly the bytes that are stored. Writers are strict. Readers ignore
fields they do not know, since a newer writer may have added them, and refuse another major version, since
there a field they know may mean something else.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn, TypeVar

from pydantic import ValidationError

from images.errors import ExitCode, UserError
from images.manifest.parts import Document

Doc = TypeVar("Doc", bound=Document)

#: Largest document, bytes. A release with the content of its boot checks has about 100 kB.
MAX_BYTES = 8 * 1024**2


class BadDocument(UserError):
    """A document that is damaged, or says what it must not say."""

    def __init__(self, name: str, problem: str, *, hint: str | None = None) -> None:
        super().__init__(f"{name}: {problem}", hint=hint, code=ExitCode.FAILED)


def digest_of(content: bytes) -> str:
    """``sha256:`` and 64 hex digits."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def make(model: type[Doc], data: Mapping[str, Any]) -> Doc:
    """A new document from plain data. Raises ``BadDocument`` that names what is wrong."""
    return _validate(model, dict(data), name=f"the new {model.kind} document", extra="forbid")


def dump(document: Document) -> bytes:
    """The bytes to store: checked once more, sorted keys, a newline at the end. Raises ``BadDocument``."""
    name = f"the new {document.kind} document"
    data = document.model_dump(mode="json", by_alias=True)
    _validate(type(document), data, name=name, extra="forbid")
    return _encode(data, name)


def revise(model: type[Document], content: bytes, edit: Callable[[dict[str, Any]], None]) -> bytes:
    """The bytes of a document that ``load`` has read, after ``edit`` changed its plain data in place.

    For the documents that change: what a newer program wrote and this one does not know stays in it.
    """
    name = f"the new {model.kind} document"
    data = _parse(content, name)
    edit(data)
    _validate(model, data, name=name, extra="ignore")
    return _encode(data, name)


def _encode(data: Mapping[str, Any], name: str) -> bytes:
    try:
        text = json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
        content = text.encode() + b"\n"
    except (ValueError, RecursionError) as error:
        raise BadDocument(name, f"cannot be written as JSON: {error}") from None
    if len(content) > MAX_BYTES:
        raise BadDocument(name, f"has {len(content)} bytes; a document has at most {MAX_BYTES}")
    return content


def load(model: type[Doc], content: bytes, *, name: str) -> Doc:
    """The document in ``content``; ``name`` stands for it in messages. Raises ``BadDocument``."""
    data = _parse(content, name)
    found = str(data.get("schema"))[:100]
    known = re.fullmatch(r"gpu-image/([a-z-]+)/v([0-9]{1,9})", found)
    if not known or known[1] != model.kind:
        raise BadDocument(name, f"is no {model.kind} document: its schema is {found!r}")
    if known[2] != "1":
        raise BadDocument(
            name, f"has schema {found}; this program reads v1", hint="use a newer version of this program"
        )
    return _validate(model, data, name=name, extra="ignore")


def _parse(content: bytes, name: str) -> dict[str, Any]:
    """JSON as a dict: a key that comes twice, NaN and excessive size or depth are errors."""
    if len(content) > MAX_BYTES:
        raise BadDocument(name, f"has {len(content)} bytes; a document has at most {MAX_BYTES}")
    try:
        data = json.loads(content.decode(), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except RecursionError:
        raise BadDocument(name, "is not valid JSON: nested too deeply") from None
    except ValueError as error:
        raise BadDocument(name, f"is not valid JSON: {error}"[:400]) from None
    if not isinstance(data, dict):
        raise BadDocument(name, "is not a JSON object")
    return data


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = {}
    for key, value in pairs:
        if key in data:
            raise ValueError(f"the key {key!r} comes twice")
        data[key] = value
    return data


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _validate(model: type[Doc], data: Any, *, name: str, extra: Literal["forbid", "ignore"]) -> Doc:
    try:
        return model.model_validate(data, extra=extra)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, item['loc'])) or 'document'}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_url=False, include_input=False)[:4]
        ]
        raise BadDocument(name, "; ".join(problems)[:1000]) from None
    except RecursionError:
        raise BadDocument(name, "nested too deeply") from None
