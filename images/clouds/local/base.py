"""The base disk: a plain Debian that boots on BIOS and UEFI, cached by the hash of its inputs.

``<cache>/base/<digest>/`` holds ``disk.qcow2``, ``base.json`` and ``bootstrap.log``. It is made beside its
place and renamed when complete, under a lock, so an interrupted bootstrap leaves nothing that could be
taken for a base, and two builds side by side bootstrap once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images import mmdebstrap, run
from images.clouds.local import bootstrap, layout
from images.errors import ExitCode, UserError

#: What every build needs and no role is about. Native here, it costs 1/23 of the same in the machine.
BASE_PACKAGES = (
    "init",
    "ca-certificates",
    "cloud-guest-utils",
    "cloud-init",
    "dbus",
    "e2fsprogs",
    "grub-cloud-amd64",
    "grub-efi-amd64-signed",
    "iproute2",
    "libpam-systemd",
    "openssh-server",
    "python3",
    "shim-signed",
    "sudo",
    "systemd-resolved",
    "systemd-timesyncd",
    "udev",
    "zstd",
)


@dataclass(frozen=True)
class Base:
    """A base disk. ``id`` and ``sha256`` are bare hex: the digest of its inputs, and of the disk itself;
    ``packages`` what was observed in it (name -> full version); ``bootstrapped`` whether it was made now."""

    path: Path
    sha256: str
    id: str
    packages: Mapping[str, str]
    bootstrapped: bool


def inputs_digest(
    *,
    suite: str,
    kernel_packages: Mapping[str, str],
    base_packages: Sequence[str],
    size_bytes: int,
    index_digests: Mapping[str, str],
) -> str:
    """The identity of a base: everything that its content depends on, our own code included. Bare hex."""
    here = Path(__file__)
    code = bootstrap.code_digest(
        here,
        here.with_name("bootstrap.py"),
        Path(mmdebstrap.__file__),
        here.with_name("layout.py"),
        here.with_name("base_customize.sh"),
    )
    inputs = {
        "suite": suite,
        "kernel_packages": dict(kernel_packages),
        "base_packages": sorted(set(base_packages)),
        "size_bytes": size_bytes,
        "indexes": dict(index_digests),
        "code": code,
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def build_base(
    *,
    suite: str,
    kernel_packages: Mapping[str, str],
    cache: Path,
    size_bytes: int,
    index_digests: Mapping[str, str],
    base_packages: Sequence[str] = (*BASE_PACKAGES, "linux-image-amd64"),
    note: Callable[[str], None] = lambda _: None,
) -> Base:
    """The base disk with these inputs, from the cache or bootstrapped now (about 100 s).

    ``kernel_packages`` (name -> full version) are the locked ones: they are only downloaded into the base's
    package cache; what it boots is the kernel in ``base_packages``. ``size_bytes`` is the disk's virtual
    size. Raises ``UserError`` for no network, a full disk, a vanished package or a missing tool.
    """
    digest = inputs_digest(
        suite=suite,
        kernel_packages=kernel_packages,
        base_packages=base_packages,
        size_bytes=size_bytes,
        index_digests=index_digests,
    )
    bases = cache / "base"
    bases.mkdir(parents=True, exist_ok=True)
    place = bases / digest
    if (place / "base.json").exists():
        return read_base(place, bootstrapped=False)
    with locked(bases / f"{digest}.lock", note):
        if (place / "base.json").exists():
            return read_base(place, bootstrapped=False)
        for stale in bases.glob(f".{digest}.*"):  # whoever made it is dead: we hold the lock
            mmdebstrap.remove_dead(stale)
        if place.exists():
            mmdebstrap.remove_tree(place)
        check_space(cache)
        with new_folder(bases / f".{digest}.{os.getpid()}") as folder:
            ids = layout.Ids.from_digest(digest)
            note(f"bootstrapping {suite}")
            tar, log = folder / "root.tar", folder / "bootstrap.log"
            with mmdebstrap.scratch_folder(folder) as scratch:
                bootstrap.make_root(
                    tar,
                    suite=suite,
                    packages=base_packages,
                    kernel_packages=kernel_packages,
                    root_uuid=ids.root,
                    esp_id=ids.esp,
                    scratch=scratch,
                    log=log,
                    note=note,
                )
            note("writing the disk")
            packages = _write(tar, folder, ids=ids, size_bytes=size_bytes)
            (folder / "base.json").write_text(
                json.dumps(
                    {
                        "id": digest,
                        "suite": suite,
                        "sha256": sha256_of(folder / "disk.qcow2"),
                        "packages": packages,
                    },
                    indent=2,
                    sort_keys=True,
                )
            )
            _sync(folder)
            folder.rename(place)
            _sync(place, only_folder=True)
            _sync(bases, only_folder=True)
    return read_base(place, bootstrapped=True)


def _write(tar: Path, folder: Path, *, ids: layout.Ids, size_bytes: int) -> dict[str, str]:
    """Turns the tar into ``disk.qcow2``; returns the packages that are installed in it."""
    raw, work = folder / "disk.raw", folder / "work"
    work.mkdir()
    try:
        root = layout.write_disk(tar, raw, ids=ids, size_bytes=size_bytes, work=work)
        packages = installed((root / "var/lib/dpkg/status").read_text())
        run.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, folder / "disk.qcow2"])
    except run.CommandFailed as error:
        if "No space left" in error.message:
            raise mmdebstrap.explain(error.message) from None
        raise
    mmdebstrap.remove_tree(work)
    raw.unlink()
    tar.unlink()
    return packages


def read_base(place: Path, *, bootstrapped: bool) -> Base:
    """The base disk in a folder of the cache."""
    data = json.loads((place / "base.json").read_text())
    return Base(place / "disk.qcow2", data["sha256"], data["id"], data["packages"], bootstrapped)


def installed(status: str) -> dict[str, str]:
    """Installed packages (name -> full version) from dpkg's status file."""
    found: dict[str, str] = {}
    for stanza in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): (.+)$", stanza, re.MULTILINE))
        if fields.get("Status", "").endswith(" ok installed"):
            found[fields["Package"]] = fields["Version"]
    return found


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, bare hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_space(cache: Path) -> None:
    """Raises ``UserError`` when the cache's file system cannot hold a bootstrap."""
    free = shutil.disk_usage(cache).free
    if free < mmdebstrap.NEEDED_BYTES:
        raise UserError(
            f"{cache} has {free / (1 << 30):.1f} GiB free; making a base disk needs "
            f"{mmdebstrap.NEEDED_BYTES >> 30} GiB",
            hint="./inv clean frees images and caches; cache in site.yaml moves the cache elsewhere",
            code=ExitCode.FAILED,
        )


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A new folder; removed when the body raises."""
    path.mkdir()
    try:
        yield path
    except BaseException:
        mmdebstrap.remove_tree(path)
        raise


@contextlib.contextmanager
def locked(path: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Holds an exclusive lock on ``path``; the kernel lets go of a dead holder's."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note("another build is making this base disk: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(folder: Path, *, only_folder: bool = False) -> None:
    """Forces a folder, and the files in it, to the disk."""
    for path in [folder] if only_folder else [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
