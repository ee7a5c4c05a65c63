"""The bundle: what of ``validation/`` is baked into an image, and the digest over it.

Which parts go in is decided here and nowhere else: everything that runs on the machine, that is all of
``validation/`` but what ``EXCLUDED`` names. Modes come from the place a file has on the machine, never
from the checkout, whose bits depend on the umask it was cloned with.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from images.errors import UserError
from validation.boot_checks import bundle, image

CHECKOUT = Path(__file__).resolve().parents[1]
# Not for the machine: the gate runs beside the build and reaches the machine over SSH.
EXCLUDED = frozenset({"gate", "__pycache__"})
# Folders of validation/boot_checks that lie at the top of the bundle; all that is in them is executable.
PROGRAMS = ("bin", "boot-checks.d")
ARCHIVE = "gpu-image.tar"


@dataclass(frozen=True)
class BundleFile:
    """One file of the bundle: absolute path on the machine, mode ("0755"), SHA-256 in hex, content."""

    path: str
    mode: str
    sha256: str
    content: bytes


def collect(root: Path = CHECKOUT) -> tuple[BundleFile, ...]:
    """The bundle of the checkout at ``root``, sorted by path.

    Raises ``UserError`` for anything that is neither a file nor a folder (a link could lead anywhere), and
    for what is not text: the manifest carries the scripts as text.
    """
    return tuple(sorted(_files(root / "validation", root), key=lambda file: file.path))


def digest(files: Iterable[BundleFile]) -> str:
    """``sha256:<hex>`` over paths, modes and contents; the machine computes the same from its disk."""
    return bundle.digest(bundle.Entry(file.path, file.mode, file.sha256) for file in files)


def write(files: Iterable[BundleFile], target: Path) -> None:
    """Writes the bundle as a tree, ``target``/usr/lib/gpu-image/..., in place of one that is there.

    Beside it comes the same as ``target``/gpu-image.tar, to be unpacked in /usr/lib: one transfer.
    """
    files = tuple(files)
    top = target / image.BUNDLE.lstrip("/")
    if top.exists():
        shutil.rmtree(top)
    for file in files:
        path = target / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(int(file.mode, 8))
    for folder in (top, *(path for path in top.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    with tarfile.open(target / ARCHIVE, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(top, arcname=top.name, filter=_owned_by_root)


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _files(folder: Path, root: Path) -> Iterator[BundleFile]:
    for path in folder.iterdir():
        if path.name in EXCLUDED or path.name.startswith(".") or path.name.endswith("~"):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path, root)
        elif path.is_file() and not path.is_symlink():
            yield _file(path, path.relative_to(root))
        else:
            raise UserError(
                f"{path} is neither a file nor a folder, so it cannot be baked into an image",
                hint="put a copy there instead of a link",
            )


def _file(source: Path, name: Path) -> BundleFile:
    """``validation/boot_checks/bin/X`` -> ``/usr/lib/gpu-image/bin/X``; all else keeps its path below it."""
    match name.parts:
        case ("validation", "boot_checks", folder, *_) if folder in PROGRAMS:
            place, mode = name.relative_to("validation/boot_checks"), "0755"
        case _:
            place, mode = name, "0644"
    content = source.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError:
        raise UserError(
            f"{source} is not UTF-8 text, so the manifest cannot carry it",
            hint="bake in scripts, not programs",
        ) from None
    path = PurePosixPath(image.BUNDLE) / place.as_posix()
    return BundleFile(str(path), mode, hashlib.sha256(content).hexdigest(), content)
