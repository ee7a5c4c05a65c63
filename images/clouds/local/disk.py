"""Looks at a captured disk from outside: never mounted, never opened for writing, never booted.

The image is converted to a sparse raw file, on which ``debugfs`` reads the root file system and every
allocated byte is searched, those of deleted files included.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images import run
from images.clouds.local.layout import SECTOR, TYPE_ROOT
from images.clouds.model import Inspection
from images.errors import ExitCode, UserError

#: What the hygiene checks look at. One that the image does not have is passed over.
TREES = (
    "/boot",
    "/etc",
    "/home",
    "/opt",
    "/root",
    "/srv",
    "/tmp",
    "/usr/lib/gpu-image",
    "/usr/local",
    "/var",
)
CHUNK = 8 << 20


@dataclass(frozen=True)
class Partition:
    """A partition: ``start`` and ``size`` in bytes, ``kind`` its type's GUID in capitals."""

    number: int
    kind: str
    name: str
    start: int
    size: int


def inspect(
    image: Path,
    *,
    work: Path,
    needles: Mapping[str, bytes],
    note: Callable[[str], None] = lambda _: None,
    trees: Sequence[str] = TREES,
) -> Inspection:
    """Extracts ``trees`` to ``work/disk-root`` and searches the whole disk for ``needles`` (name -> bytes).

    The extracted files' owners are the image's only when we are root. ``found`` has the first offset of each
    needle that is there. Raises ``UserError`` when the root file system is missing or not clean.
    """
    raw = work / "disk.raw"
    note("reading the captured disk")
    run.run(["qemu-img", "convert", "-O", "raw", image, raw])
    try:
        filesystem = root_of(raw)
        filesystem.check_clean()
        root = work / "disk-root"
        root.mkdir(mode=0o700)
        note("extracting files")
        filesystem.extract(trees, root)
        note("searching every block")
        hits = find_bytes(raw, list(needles.values()))
    finally:
        raw.unlink(missing_ok=True)
    first: dict[bytes, int] = {}
    for needle, offset in hits:
        first.setdefault(needle, offset)
    found = {name: first[needle] for name, needle in needles.items() if needle in first}
    return Inspection(root=root, found=found)


def copy_used(source: Path, target: Path) -> None:
    """Copies a raw disk to ``target`` without the blocks that its root file system does not use.

    Those still hold what was deleted: a trim in the machine frees only whole clusters of the overlay.
    ``e2image -ra`` copies the blocks in use (e2image(8)), but not the backups of superblock and group
    descriptors; those and what is around the partition are copied here.
    """
    partition = root_partition(source)
    offset, size = str(partition.start), source.stat().st_size
    run.run(["e2image", "-ra", "-o", offset, "-O", offset, source, target])
    backups = [
        (partition.start + first, partition.start + last)
        for first, last in read_backups(run.run(["dumpe2fs", f"{source}?offset={offset}"]).stdout)
    ]
    # Afterwards: it cuts the target off behind the file system.
    with source.open("rb") as old, target.open("r+b") as new:
        new.truncate(size)
        around = [(0, partition.start), (partition.start + partition.size, size)]
        for first, last in (*around, *backups):
            for position in range(first, last, CHUNK):
                data = os.pread(old.fileno(), min(CHUNK, last - position), position)
                if data.strip(b"\0"):
                    os.pwrite(new.fileno(), data, position)


def read_backups(output: str) -> list[tuple[int, int]]:
    """Where dumpe2fs says that the backups of superblock and group descriptors are: byte ranges (first,
    behind the last) from the file system's start."""
    block_size = int(re.findall(r"^Block size: +(\d+)$", output, re.MULTILINE)[0])
    places = re.findall(r"Backup superblock at (\d+)(?:, Group descriptors at \d+-(\d+))?", output)
    return [(int(first) * block_size, (int(last or first) + 1) * block_size) for first, last in places]


def root_of(raw: Path) -> Filesystem:
    """The root file system of a raw disk, by its partition's type."""
    return Filesystem(raw, root_partition(raw).start)


def root_partition(raw: Path) -> Partition:
    """The root partition of a raw disk, by its type. Raises ``UserError`` when there is not just one."""
    with raw.open("rb") as file:
        table = read_gpt(file.read(64 * SECTOR))
    roots = [partition for partition in table if partition.kind == TYPE_ROOT]
    if len(roots) != 1:
        raise UserError(f"{raw} has {len(roots)} root partitions", code=ExitCode.FAILED)
    return roots[0]


def read_gpt(head: bytes) -> tuple[Partition, ...]:
    """The partitions of a disk whose first sectors (at least 34) are ``head``.

    UEFI specification 2.10, section 5.3. Raises ``UserError`` when there is no GPT.
    """
    header = head[SECTOR : 2 * SECTOR]
    if header[:8] != b"EFI PART":
        raise UserError("the disk has no GPT", code=ExitCode.FAILED)
    entries_lba, count, size = struct.unpack_from("<QII", header, 72)
    found = []
    for index in range(count):
        entry = head[entries_lba * SECTOR + index * size :][:size]
        if len(entry) < 128 or entry[:16] == bytes(16):
            continue
        first, last = struct.unpack_from("<QQ", entry, 32)
        found.append(
            Partition(
                number=index + 1,
                kind=str(uuid.UUID(bytes_le=entry[:16])).upper(),
                name=entry[56:128].decode("utf-16-le").rstrip("\0"),
                start=first * SECTOR,
                size=(last - first + 1) * SECTOR,
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class Filesystem:
    """An ext4 file system at byte ``offset`` of ``raw``, read with debugfs (which opens it read-only)."""

    raw: Path
    offset: int

    def debugfs(self, commands: Sequence[str]) -> str:
        """Runs commands and returns what they print, each after a line ``debugfs: COMMAND``.

        A path that is not there is no error: debugfs says so on stderr and goes on.
        """
        script = "".join(command + "\n" for command in commands)
        result = run.run(
            ["debugfs", "-f", "-", f"{self.raw.absolute()}?offset={self.offset}"],
            input=script,
            env={"DEBUGFS_PAGER": "__none__", "LC_ALL": "C.UTF-8"},
            check=False,
        )
        problem = re.search(r"(Bad magic number|Filesystem not open|Can't read|corrupt).*", result.stderr)
        if result.returncode or problem:
            why = problem[0] if problem else result.stderr.strip()
            raise UserError(f"{self.raw}: the file system cannot be read: {why}", code=ExitCode.FAILED)
        return result.stdout

    def check_clean(self) -> None:
        """Raises ``UserError`` when the journal was not replayed: then what is read here may be old."""
        output = self.debugfs(["stats -h"])
        features = re.search(r"^Filesystem features:\s+(.*)$", output, re.MULTILINE)
        state = re.search(r"^Filesystem state:\s+(.*)$", output, re.MULTILINE)
        if not features or not state or "needs_recovery" in features[1] or state[1].strip() != "clean":
            raise UserError(
                "the captured file system was not unmounted cleanly",
                hint="the machine was cut off instead of shut down; see the serial log of the build",
                code=ExitCode.FAILED,
            )

    def extract(self, trees: Sequence[str], target: Path) -> None:
        """Copies trees to the same paths below ``target``; one that is not there is passed over."""
        commands = []
        for tree in trees:
            parent = target / Path(tree).parent.relative_to("/")
            parent.mkdir(parents=True, exist_ok=True)
            commands.append(f"rdump {quoted(tree)} {quoted(str(parent))}")
        self.debugfs(commands)


def quoted(path: str) -> str:
    """A path as one word of a debugfs command (libss: a quote is doubled)."""
    return '"' + path.replace('"', '""') + '"'


def find_bytes(raw: Path, needles: Sequence[bytes]) -> list[tuple[bytes, int]]:
    """Every place of every needle on a raw disk, as (needle, byte offset), sorted by offset.

    Searches all of it, free blocks included, but skips the file's holes, which are zeros: a needle must not
    begin or end with a zero byte. Text that is compressed or encoded is not found, nor one that a
    fragmented file splits between two blocks.
    """
    if any(not needle or needle[0] == 0 or needle[-1] == 0 for needle in needles):
        raise ValueError("a needle is empty, or begins or ends with a zero byte")
    overlap = max((len(needle) for needle in needles), default=1) - 1
    found: set[tuple[int, bytes]] = set()
    with raw.open("rb", buffering=0) as file:
        for start, end in data_extents(file.fileno()):
            position, tail = start, b""
            while position < end:
                chunk = os.pread(file.fileno(), min(CHUNK, end - position), position)
                if not chunk:
                    break
                block, base = tail + chunk, position - len(tail)
                for needle in needles:
                    at = block.find(needle)
                    while at >= 0:
                        found.add((base + at, needle))
                        at = block.find(needle, at + 1)
                position += len(chunk)
                tail = block[-overlap:] if overlap else b""
    return [(needle, offset) for offset, needle in sorted(found)]


def data_extents(descriptor: int) -> Iterator[tuple[int, int]]:
    """The parts of a sparse file that hold data, as (start, end); the whole file where holes are unknown."""
    end = os.fstat(descriptor).st_size
    position = 0
    while position < end:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        position = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, position
