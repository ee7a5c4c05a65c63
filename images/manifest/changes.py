"""Changing a record: the statement first, then the record that lists it. Writers may meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from images.manifest import codec, keys
from images.manifest.later import Record, Statement
from images.manifest.resolve import check_identity, read_release
from images.manifest.store import Store
from images.manifest.writing import put, until_written

#: Changes the record's data in place; gets the new statement's digest, None where there is no statement.
Edit = Callable[[dict[str, Any], str | None], None]


@dataclass(frozen=True)
class Change:
    """What to write: a statement with ``body``, if there is one, and what ``edit`` makes of the record."""

    body: Mapping[str, Any] | None = None
    edit: Edit | None = None


def change_record(
    store: Store, release: str, decide: Callable[[Record], Change | None], *, actor: str, at: str
) -> Record:
    """Reads the record of ``release`` and asks ``decide``; writes the statement, then the record.

    Returns the record as it is then. ``decide`` is asked again after a lost race; None changes nothing.
    Raises ``UserError``: 3 when there is no such release, 1 when a document is damaged.
    """
    document = read_release(store, release)
    key = keys.record(document.family, document.version, document.cloud, document.arch)

    def attempt() -> Record:
        content, tag = store.get(key)
        record = codec.load(Record, content, name=key)
        check_identity(record, key, release=release)
        if not (change := decide(record)):
            return record
        digest = None
        if change.body:
            data = {"release": release, "made": at, "actor": actor, "body": change.body}
            statement = codec.dump(codec.make(Statement, data))
            digest = codec.digest_of(statement)
            put(store, keys.statement(digest), statement)

        def edit(data: dict[str, Any]) -> None:
            data["updated"] = at
            if digest:
                data["statements"] = [*data.get("statements", []), digest]
            if change.edit:
                change.edit(data, digest)

        changed = codec.revise(Record, content, edit)
        store.replace(key, changed, tag)
        return codec.load(Record, changed, name=key)

    return until_written(attempt, what=key, hint="do it again")
