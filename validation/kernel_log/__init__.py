"""Reads faults of GPUs out of a kernel log, whatever the transport; text in, events out.

The steps, each of which knows nothing of the others:

``transport``  bytes or lines -> raw records (``needles`` finds the few that matter)
``record``     raw record -> text, writer, time (formats: ``heads``, ``journal``; times: ``when``)
``reader``     record -> findings (``xid``, ``driver`` know the messages, ``quotes`` who may say them)
``grouping``   findings -> events, one a fault (``fault`` is one of them while it is open)

``python -m validation.kernel_log`` is the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from validation.kernel_log import transport
from validation.kernel_log.model import Event, Writer

__all__ = ["Event", "events", "events_of_stream"]


def events(lines: Iterable[bytes] | Iterable[str]) -> Iterator[Event]:
    """The events in the lines of a log, or in its records; a binary file is read as a stream, much faster.

    Works in constant memory and as the lines come: an event is given out when a later line shows that it is
    over (a pause of a minute, see ``grouping``), at the latest at the end. Raises nothing for what it reads.
    """
    readinto = getattr(lines, "readinto1", None) or getattr(lines, "readinto", None)
    return events_of_stream(readinto) if readinto else _events(transport.from_lines(lines))


def events_of_stream(readinto: Callable[[memoryview], int | None]) -> Iterator[Event]:
    """The events in a stream of bytes, about as fast as ``grep``; for the rest as ``events``.

    ``readinto`` is that of a raw binary file: fills a buffer, returns how many bytes, 0 at the end.
    """
    return _events(transport.from_stream(readinto))


def _events(raw_records: Iterator[bytes]) -> Iterator[Event]:
    first = next(raw_records, None)
    if first is None:
        return
    # Not loaded for a log that has nothing of ours, as almost all have.
    from validation.kernel_log.grouping import Groups
    from validation.kernel_log.reader import Reader
    from validation.kernel_log.record import parse

    reader, groups = Reader(), Groups()
    groups.uuids = reader.uuids
    for raw in chain((first,), raw_records):
        for record in parse(raw):
            injected = record.writer is Writer.USER
            for finding in reader.findings(record):
                yield from groups.add(finding, record.when, record.times, injected=injected)
    yield from groups.close()
