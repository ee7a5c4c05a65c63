"""A release as text for people. What was not looked at or not run stands there as plainly as what was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from images.manifest import later
from images.manifest.documents import Channel, DiskFile, Gate, Release, Validated
from images.manifest.regions import RegionState

RESULTS = ("pass", "fail", "unknown", "not_run")


def render(
    release: Release,
    digest: str,
    *,
    regions: Mapping[str, RegionState],
    shares: Mapping[str, Mapping[str, str]],
    validations: Mapping[str, tuple[str, later.Validated]],
    pointer: Channel | None = None,
) -> RenderableType:
    """The summary of a release. ``pointer`` is the channel through which it was found.

    ``validations`` are those that came after it, with the time they were made.
    """
    return Group(
        _pairs(_identity(release, digest, pointer)),
        _table(["region", "state", "id", ""], list(_regions(regions, pointer))),
        _table(["shared with", "in", "id"], list(_shares(shares, regions))),
        _table(
            ["software", "requested", "observed"],
            [
                [name, release.software.requested.get(name, "-"), seen or "null (nobody looked)"]
                for name, seen in sorted(release.software.observed.items())
            ],
        ),
        _table(["GPU family", "state", ""], list(_gpu(release, validations))),
        _table(["gate", "on", *RESULTS], list(_gates(release.gates))),
        _table(["not passed", "result", "reason"], list(_not_passed(release.gates))),
    )


def _identity(release: Release, digest: str, pointer: Channel | None) -> Iterator[tuple[str, str]]:
    yield "image", f"{release.family} {release.version} on {release.cloud} {release.arch}"
    yield "release", digest
    if pointer:
        expires = f", expires {pointer.expires}" if pointer.expires else ""
        yield "channel", f"{pointer.channel}, serial {pointer.serial}, {pointer.updated}{expires}"
    disk = release.image.disk
    if isinstance(disk, DiskFile):
        yield "disk", f"{disk.format}, {disk.size / 1024**2:.0f} MiB, {disk.digest}"
    yield "os", f"{release.os.id} {release.os.version}, kernel {release.os.kernel}"
    yield "bundle", f"{release.boot_checks.bundle_digest}, {len(release.boot_checks.items)} files"
    yield "packages", f"origin {release.software.package_origin}"
    source = release.build.source
    dirty = ", with changes that are not committed" if source.dirty else ""
    yield "build", f"{release.build.id}, {release.build.finished}"
    yield "source", (source.commit or "no git repository") + dirty
    for override in release.build.overrides:
        yield "override", override


def _regions(regions: Mapping[str, RegionState], pointer: Channel | None) -> Iterator[list[str]]:
    """Each region of the release; with a channel also those it still serves with an older release."""
    target = pointer.target.regions if pointer else {}
    for name in sorted({*regions, *target}):
        known, there, notes = regions.get(name), target.get(name), []
        if known and known.reason:
            notes.append(f"{known.updated}: {known.reason}")
        if there and there.lagging:
            notes.append(f"the channel has {there.id} of {there.lagging.version} here")
        elif pointer and known and known.state == "available" and not (there and there.id == known.id):
            notes.append("not in the channel yet: replicate again")
        state = "lagging" if there and there.lagging and not known else known.state if known else "-"
        yield [name, state, (known.id if known else None) or "-", "; ".join(notes)]


def _shares(
    shares: Mapping[str, Mapping[str, str]], regions: Mapping[str, RegionState]
) -> Iterator[list[str]]:
    """Each share; one of an image that was replaced since then says so."""
    for grantee, images in sorted(shares.items()):
        for name, image in sorted(images.items()):
            current = name in regions and regions[name].id == image
            yield [grantee, name, image if current else f"{image} (not the image there now)"]


def _gpu(release: Release, validations: Mapping[str, tuple[str, later.Validated]]) -> Iterator[list[str]]:
    """Each GPU family of the release and of what came after it, which counts where both speak."""
    for name in sorted({*release.gpu.families, *validations}):
        if name in validations:
            at, found = validations[name]
            gpus = f"{found.gpus} GPU{'s' if found.gpus > 1 else ''}"
            yield [name, "validated", f"on {found.on} ({gpus}), {at}"]
            continue
        claim = release.gpu.families[name].validation
        detail = f"on {claim.on}, {claim.at}" if isinstance(claim, Validated) else claim.reason
        yield [name, claim.state, detail]


def _gates(gates: Iterable[Gate]) -> Iterator[list[str]]:
    """A line for each phase and machine, with the number of checks by result."""
    groups: dict[tuple[str, str], list[str]] = {}
    for gate in gates:
        groups.setdefault((gate.phase, gate.machine), []).append(gate.result)
    for (phase, machine), results in groups.items():
        yield [phase, machine, *(str(results.count(result) or "") for result in RESULTS)]


def _not_passed(gates: Iterable[Gate]) -> list[list[str]]:
    """Each check that did not pass, once for each reason."""
    found = {
        (RESULTS.index(gate.result), gate.id, gate.reason or "") for gate in gates if gate.result != "pass"
    }
    return [[check, RESULTS[result], reason] for result, check, reason in sorted(found)]


def _pairs(pairs: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in pairs:
        table.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    return table


def _table(head: list[str], rows: list[list[str]]) -> RenderableType:
    """Nothing for no rows. Values are never read as markup."""
    if not rows:
        return Group()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title=" ")
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(value) for value in row))
    return table
