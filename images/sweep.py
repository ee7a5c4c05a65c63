"""What may go: leftovers of dead builds (sweep), and old images, builds and bases (clean)."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from images import builds, clouds
from images.builds import Past
from images.clouds import Cloud
from images.clouds.model import Removable, Scope
from images.errors import ExitCode, UserError
from images.manifest.named import channel_images, named_images
from images.manifest.store import open_store
from images.settings import Settings

#: A temporary folder of ours that no build folder names any more is old enough to be nobody's.
ORPHAN_SECONDS = 24 * 3600


def dead(settings: Settings) -> list[str]:
    """Cleans up after our own dead builds and expired machines on this host; returns what was removed, a
    line each. What they left in a cloud is ``leftovers``' business: it may be slow, and cost an account."""
    past = builds.past(settings.build_dir)
    published = _published(settings, past)
    gone = [item for item in past if _is_dead(item)]
    return [f"{item.id}: {line}" for item in gone for line in builds.clean_up(item, keep=published)]


def _is_dead(item: Past) -> bool:
    return not item.alive and (item.expired or (item.status == "died" and "swept" not in item.state))


def _published(settings: Settings, past: Sequence[Past]) -> set[str]:
    """The images of these builds that the manifest names; those of a build that died after it was published
    stay. Raises ``UserError`` when the manifest cannot be read: then it is not known what may go."""
    found = []
    for item in past:
        with contextlib.suppress(KeyError):  # a build that died before it knew its name
            state = item.state
            found.append((state["family"], state["version"], state["cloud"], state["arch"]))
    return set(named_images(open_store(settings.manifest), found))


def leftovers(settings: Settings, cloud: Cloud, *, anybodys: bool = False) -> list[Removable]:
    """What dead builds and expired machines left, here and in ``cloud``. Live builds and what the manifest
    names are not in it."""
    past = builds.past(settings.build_dir)
    return _local(settings, past) + cloud.leftovers(_scope(settings, cloud, past, anybodys))


def _scope(settings: Settings, cloud: Cloud, past: Sequence[Past], anybodys: bool) -> Scope:
    mine = [item for item in past if item.state.get("cloud") == cloud.name]
    live = [item for item in mine if item.alive or (item.status == "kept" and not item.expired)]
    gone = [item for item in mine if item not in live]
    return Scope(
        settings=settings,
        keep=set(named_images(open_store(settings.manifest))),
        live=[item.id for item in live],
        dead=[item.id for item in gone],
        anybodys=anybodys,
        names=sorted({name for item in gone for name in item.state.get("names", [])}),
    )


def _local(settings: Settings, past: Sequence[Past]) -> list[Removable]:
    """Processes, temporary folders and disks of dead builds on this host."""
    published = _published(settings, past)
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


def _orphans(past: Sequence[Past]) -> list[Removable]:
    """Temporary folders of builds whose folder is gone (a checkout that was deleted)."""
    known = {item.state.get("temporary") for item in past}
    found = []
    for path in {*Path(tempfile.gettempdir()).glob("gpu-image-*"), *Path("/tmp").glob("gpu-image-*")}:
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
    named = channel_images(open_store(settings.manifest))
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
    scope = Scope(settings=settings, keep=(), dead=[identifier], only=identifier)
    if not configs or not clouds.load(str(item.state["cloud"])).running(scope):
        raise UserError(f"the machine of {identifier} is gone", code=ExitCode.NOTHING)
    words = ["ssh", "-F", str(configs[-1]), "vm", *([command] if command else [])]
    os.execvp(words[0], words)
