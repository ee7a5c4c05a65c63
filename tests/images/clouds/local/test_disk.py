from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from images.clouds.local import disk, layout
from images.errors import UserError
from tests.images.clouds.local.conftest import CANARY, Made


def test_partitions(made: Made) -> None:
    with made.raw.open("rb") as file:
        table = disk.read_gpt(file.read(64 * 512))
    assert [(part.number, part.name, part.start) for part in table] == [
        (1, "root", 66 << 20),
        (14, "bios", 1 << 20),
        (15, "efi", 2 << 20),
    ]
    assert table[0].kind == layout.TYPE_ROOT


def test_a_disk_without_gpt_is_an_error() -> None:
    with pytest.raises(UserError, match="no GPT"):
        disk.read_gpt(bytes(64 * 512))


def test_a_disk_without_a_root_partition_is_an_error(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(8 << 20))
    subprocess.run(["sfdisk", "--quiet", raw], input=b"label: gpt\nsize=1MiB\n", check=True)
    with pytest.raises(UserError, match="0 root partitions"):
        disk.root_of(raw)


def test_extracts_trees_with_their_modes(made: Made, tmp_path: Path) -> None:
    filesystem = disk.root_of(made.raw)
    filesystem.check_clean()
    filesystem.extract(["/etc", "/var/log", "/not/there"], tmp_path)
    assert (tmp_path / "etc/shadow").read_bytes() == b"root:*:1::::::\n"
    assert (tmp_path / "etc/with space/file").read_bytes() == b"secret\n"
    assert (tmp_path / "etc/ssh").is_dir()
    assert CANARY in (tmp_path / "var/log/canary.log").read_bytes()
    assert not (tmp_path / "var/lib/dpkg").exists()
    assert (tmp_path / "etc/shadow").stat().st_mode & 0o7777 == 0o640


def test_reading_changes_nothing_on_the_disk(made: Made, tmp_path: Path) -> None:
    before = made.raw.read_bytes()
    made.raw.chmod(0o444)
    disk.root_of(made.raw).extract(["/etc"], tmp_path)
    assert made.raw.read_bytes() == before


def test_a_damaged_file_system_is_an_error(made: Made, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    shutil.copyfile(made.raw, raw)
    with raw.open("r+b") as file:
        file.seek(layout.ROOT_START)
        file.write(bytes(64 << 10))
    with pytest.raises(UserError, match="cannot be read"):
        disk.root_of(raw).check_clean()


def test_a_file_system_that_was_not_unmounted_is_an_error(made: Made, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    shutil.copyfile(made.raw, raw)
    device = f"{raw}?offset={layout.ROOT_START}"
    subprocess.run(["debugfs", "-w", "-R", "feature needs_recovery", device], check=True)
    with pytest.raises(UserError, match="not unmounted cleanly"):
        disk.root_of(raw).check_clean()


def test_inspect_finds_a_canary_and_keeps_no_raw_disk(made: Made, tmp_path: Path) -> None:
    image = tmp_path / "image.qcow2"
    subprocess.run(["qemu-img", "convert", "-c", "-O", "qcow2", made.raw, image], check=True)
    found = disk.inspect(image, work=tmp_path, needles={"canary": CANARY, "absent": b"not-on-the-disk"})
    assert found.found is not None and set(found.found) == {"canary"}
    assert made.raw.read_bytes()[found.found["canary"] :].startswith(CANARY)
    assert found.root == tmp_path / "disk-root"
    assert (tmp_path / "disk-root/etc/shadow").exists()
    assert not (tmp_path / "disk.raw").exists()


def test_needles_are_found_across_chunks_holes_and_in_each_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "CHUNK", 4096)
    raw = tmp_path / "raw"
    places = [0, 4094, 1 << 20, (1 << 20) + 4090, (64 << 20) - 6]
    with raw.open("wb") as file:
        file.truncate(64 << 20)
        for place in places:
            file.seek(place)
            file.write(b"needle")
    with raw.open("rb") as file:
        extents = list(disk.data_extents(file.fileno()))
    assert sum(end - start for start, end in extents) < 1 << 20
    assert disk.find_bytes(raw, [b"needle", b"eed", b"absent"]) == sorted(
        [(b"needle", place) for place in places] + [(b"eed", place + 1) for place in places],
        key=lambda hit: hit[1],
    )


def test_overlapping_needles_are_all_found(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(b"aaaa")
    assert disk.find_bytes(raw, [b"aa"]) == [(b"aa", 0), (b"aa", 1), (b"aa", 2)]


def test_a_file_of_nothing_but_a_hole_has_no_data(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    with raw.open("wb") as file:
        file.truncate(1 << 30)
    assert disk.find_bytes(raw, [b"x"]) == []
    assert raw.stat().st_blocks == 0


@pytest.mark.parametrize("needle", [b"", b"\0a", b"a\0"])
def test_needles_that_holes_could_hide_are_refused(tmp_path: Path, needle: bytes) -> None:
    with pytest.raises(ValueError, match="needle"):
        disk.find_bytes(tmp_path / "raw", [needle])


def test_a_copy_of_what_is_used_has_the_files_and_not_the_deleted_ones(made: Made, tmp_path: Path) -> None:
    """The deleted file's block is still on the disk; its copy has only what the file system uses."""
    source = tmp_path / "source.raw"
    shutil.copyfile(made.raw, source)
    root = disk.root_of(source)
    subprocess.run(
        ["debugfs", "-w", "-R", "rm /var/log/canary.log", f"{source}?offset={root.offset}"],
        check=True,
        capture_output=True,
    )
    assert disk.find_bytes(source, [CANARY])
    copy = tmp_path / "copy.raw"
    disk.copy_used(source, copy)
    assert disk.find_bytes(copy, [CANARY]) == []
    assert copy.stat().st_size == source.stat().st_size
    assert disk.root_of(copy).debugfs(["cat /etc/shadow"]).endswith("root:*:1::::::\n")
    head = 66 << 20
    with source.open("rb") as old, copy.open("rb") as new:
        assert old.read(head) == new.read(head)
    fsck = subprocess.run(
        ["e2fsck", "-fn", f"{copy}?offset={root.offset}"], capture_output=True, text=True, check=False
    )
    assert fsck.returncode == 0, fsck.stdout
    # The kernel complains about each missing backup when the file system grows at the first boot.
    places = disk.read_backups(
        subprocess.run(
            ["dumpe2fs", f"{source}?offset={root.offset}"], capture_output=True, text=True, check=True
        ).stdout
    )
    assert places
    for first, last in places:
        backup = ["dumpe2fs", "-h", "-o", f"superblock={first // 4096}", "-o", "blocksize=4096"]
        subprocess.run([*backup, f"{copy}?offset={root.offset}"], capture_output=True, check=True)
        with copy.open("rb") as new:
            new.seek(root.offset + first)
            data = new.read(last - first)
        assert data[0x38:0x3A] == b"\x53\xef", "the magic number of ext4, at byte 56 of a superblock"
        assert len(data) == 4096 or data[4096:].strip(b"\0")
