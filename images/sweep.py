"""What may go: leftovers of dead builds (sweep), and old images, builds and bases (clean)."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from images import builds
from images.builds import Past
from images.errors import ExitCode, UserError
from images.manifest import codec, documents
from images.manifest.store import open_store
from images.release import published_images
from images.settings import Settings

#: A temporary folder of ours that no build folder names any more is old enough to be nobody's.
ORPHAN_SECONDS = 24 * 3600


@dataclass(frozen=True)
class Removable:
    """Something that may go; ``remove`` deletes it."""

    kind: str
    name: str
    reason: str
    remove: Callable[[], object] = field(repr=False)


def dead(settings: Settings) -> list[str]:
    """Cleans up after our own dead builds and expired machines; returns what was removed, a line each."""
    past = builds.past(settings.build_dir)
    published = published_images(settings, past)
    lines = []
    for item in past:
        if _is_dead(item):
            lines += [f"{item.id}: {line}" for line in _clean_up(item, published)]
    return lines


def _is_dead(item: Past) -> bool:
    return not item.alive and (item.expired or (item.status == "died" and "swept" not in item.state))


def _clean_up(item: Past, published: set[str]) -> list[str]:
    """As ``builds.clean_up``; a build that died after it was published keeps its image."""
    return builds.clean_up(item, keep=published)


def leftovers(settings: Settings) -> list[Removable]:
    """What dead builds and expired machines left. Live builds and what the manifest names are not in it."""
    past = builds.past(settings.build_dir)
    published = published_images(settings, past)
    found = []
    for item in past:
        if item.alive or (item.status == "kept" and not item.expired):
            continue
        reason = "its time is over" if item.expired else f"its build {item.status}"
        for pid, command in builds.processes(item.id).items():
            found.append(
                Removable(
                    "process",
                    f"{pid} {command[:70]}",
                    reason,
                    partial(builds.end_processes, item.id),
                )
            )
        temporary = Path(item.state.get("temporary") or "/nonexistent")
        disks = [] if item.status == "done" else builds.disks(item.folder, keep=published)
        for path in [temporary, *disks]:
            if path.exists() and (path is not temporary or path.name.startswith("gpu-image-")):
                found.append(Removable("path", str(path), reason, partial(_remove, path)))
    return found + _orphans(past)


def _orphans(past: list[Past]) -> list[Removable]:
    """Temporary folders of builds whose folder is gone (a checkout that was deleted)."""
    known = {item.state.get("temporary") for item in past}
    found = []
    for path in Path(tempfile.gettempdir()).glob("gpu-image-*"):
        try:
            old = time.time() - path.stat().st_mtime > ORPHAN_SECONDS and path.owner()
        except (OSError, KeyError):
            continue
        if old and path.stat().st_uid == os.getuid() and str(path) not in known:
            found.append(Removable("path", str(path), "no build folder names it", partial(_remove, path)))
    return found


def retention(settings: Settings, *, everything: bool = False) -> list[Removable]:
    """What the retention lets go: images that no channel names, failed builds, cached base disks."""
    keep = settings.retention
    past = [item for item in builds.past(settings.build_dir) if not item.alive and item.status != "kept"]
    named = channel_images(settings)
    done = [item for item in past if item.status == "done"]
    failed = [item for item in past if item.status != "done"]
    found = []
    for family in sorted({str(item.state.get("family")) for item in done}):
        mine = [item for item in done if item.state.get("family") == family]
        for item in _oldest(mine, 0 if everything else keep.images):
            if not any(str(path) in named for path in item.folder.glob("*.qcow2")):
                found.append(_folder(item.folder, "image", "older than the newest ones, in no channel"))
    for item in _oldest(failed, 0 if everything else keep.failed_builds):
        if any(str(path) in named for path in item.folder.glob("*.qcow2")):
            continue  # it failed after it was published
        found.append(_folder(item.folder, "build", f"build {item.status}"))
    bases = [path for path in (settings.cache / "base").glob("*") if path.is_dir() and path.name[0] != "."]
    bases.sort(key=lambda path: path.stat().st_mtime)
    for path in bases[: len(bases) - (0 if everything else keep.bases)]:
        found.append(_folder(path, "base", "cached base disk"))
    return found


def _oldest(items: list[Past], keep: int) -> list[Past]:
    return items[: max(len(items) - keep, 0)]


def _folder(path: Path, kind: str, reason: str) -> Removable:
    return Removable(kind, str(path), reason, lambda: _remove(path))


def channel_images(settings: Settings) -> set[str]:
    """Ids of all images that a channel names, as target or as fallback."""
    store = open_store(settings.manifest)
    named: set[str] = set()
    for key in store.list("channels/"):
        channel = codec.load(documents.Channel, store.get(key)[0], name=key)
        for target in (channel.target, channel.fallback):
            named |= {region.id for region in target.regions.values()} if target else set()
    return named


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def enter(settings: Settings, identifier: str, command: str | None) -> None:
    """Becomes an SSH session on the machine that a failed build left. Raises ``UserError``."""
    item = builds.find(settings.build_dir, identifier)
    if item.status != "kept":
        raise UserError(
            f"build {identifier} {item.status}: it left no machine",
            hint="build with --on-error=keep to keep the machine of a failed build",
            code=ExitCode.NOTHING,
        )
    configs = sorted(Path(item.state["temporary"]).glob("ssh_config-*"))
    if not configs or not builds.processes(identifier):
        raise UserError(f"the machine of {identifier} is gone", code=ExitCode.NOTHING)
    words = ["ssh", "-F", str(configs[-1]), "vm", *([command] if command else [])]
    os.execvp(words[0], words)
