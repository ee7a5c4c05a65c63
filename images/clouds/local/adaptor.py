"""The local cloud's side of the ``Cloud`` protocol."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from images import archive, cloud_init, run
from images import lock as locks
from images.clouds import Machine
from images.clouds.defaults import Defaults
from images.clouds.local import accel, base, disk
from images.clouds.local import machine as machines
from images.clouds.model import Base, BuildRequest, Context, Image, Inspection, LaunchRequest, Note
from images.errors import ExitCode, UserError
from images.lock import Lock
from images.settings import Settings
from images.spec import Loaded, PackageName
from images.yaml_source import Strict

#: Distributions that the base disk's bootstrap knows.
BOOTSTRAPPABLE = ("debian",)

SSH_SECONDS = 600.0  # from power-on; a busy host without KVM has taken 235

PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "xorriso": "xorriso",
    "mke2fs": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "e2image": "e2fsprogs",
    "mcopy": "mtools",
    "sfdisk": "fdisk",
    "setpriv": "util-linux",
    "/usr/share/OVMF/OVMF_CODE.fd": "ovmf",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}
PROGRAMS_OF_A_USER = {"newuidmap": "uidmap", "fakeroot": "fakeroot"}

#: What the base disk's image may grow to on the machines of the gate: more than the captured disk has.
GATE_DISK_EXTRA = 2 * 1024**3


class BaseDisk(Strict):
    """The disk a build starts from: another kernel flavour than the locked one, on purpose."""

    kernel_package: PackageName


class BuildMachine(Strict):
    """The virtual machine that Packer builds in, and the gate boots."""

    cpus: int = Field(default=2, ge=1, le=64)
    memory_mib: int = Field(default=2048, ge=1024)


class Section(Strict):
    """``clouds.local`` of a spec."""

    base: BaseDisk
    kernel_package: PackageName = Field(description="meta package of the kernel flavour")
    build_machine: BuildMachine = BuildMachine()


class LocalCloud(Defaults):
    """Builds and boots disk images with QEMU. Has one region, ``local``; an image's id is its path."""

    name = "local"
    section = Section
    folder = Path(__file__).parent

    @property
    def programs(self) -> Mapping[str, str]:
        """What a build needs; an ordinary user bootstraps in a user namespace."""
        return PROGRAMS if os.geteuid() == 0 else {**PROGRAMS, **PROGRAMS_OF_A_USER}

    def architectures(self, loaded: Loaded) -> Sequence[str]:
        """The base disk is bootstrapped, and its kernel's boot loader made, for this one only."""
        return [arch for arch in loaded.spec.arch if arch == "amd64"]

    def choose_accelerator(self, wanted: str | None) -> tuple[str, str]:
        """KVM where a guest really runs with it, else TCG."""
        return accel.choose(wanted)

    def resolve(self, loaded: Loaded, arch: str, *, settings: Settings, note: Note) -> Lock:
        """Asks the distribution's archive which kernel the flavour's meta package stands for now."""
        section = loaded.section(self.name, Section)
        system = loaded.spec.os
        if system.id not in BOOTSTRAPPABLE:
            raise UserError(
                f"{loaded.source.place(('os',))}: the local cloud bootstraps Debian only, not {system.id}",
                hint="build gpu-debian locally; for this image give a lock with --lock=FILE to render it",
            )
        note(f"asking the archive of {system.codename}")
        resolved = archive.resolve(
            distribution=system.id,
            suite=system.codename,
            arch=arch,
            kernel_package=section.kernel_package,
            release=loaded.spec.kernel.release,
            note=note,
        )
        return _lock(loaded, arch, section, resolved)

    def base_id(self, loaded: Loaded, lock: Lock) -> str:
        """The digest of everything the base disk depends on."""
        return base.inputs_digest(**_base_inputs(loaded, lock))

    def prepare_base(self, loaded: Loaded, lock: Lock, *, settings: Settings, note: Note) -> Base:
        """The base disk, from the cache or bootstrapped now."""
        made = base.build_base(**_base_inputs(loaded, lock), cache=settings.cache, note=note)
        how = "bootstrapped" if made.bootstrapped else "from the cache"
        return Base(
            id=made.id,
            artifact=str(made.path),
            sha256=made.sha256,
            name=f"{lock.base.name} {made.id[:12]} ({how})",
        )

    def render_context(self, loaded: Loaded, lock: Lock) -> Mapping[str, Any]:
        """Size of the build machine."""
        machine = loaded.section(self.name, Section).build_machine
        return {"cpus": machine.cpus, "memory_mib": machine.memory_mib, "ssh_timeout": "10m"}

    def placeholders(self, file: Path) -> dict[str, Any]:
        """Any readable file passes for a disk."""
        return {
            "base_disk": str(file),
            "base_checksum": "sha256:" + "0" * 64,
            "output_directory": str(file.parent / "output"),
            "seed_files": [str(file)],
            "serial_log": str(file),
            "accelerator": "tcg",
            "accelerator_arguments": [],
        }

    def packer_variables(self, base: Base, request: BuildRequest) -> dict[str, Any]:
        """Disk, seed and processor of the build machine."""
        seed = request.temporary / "seed"
        seed.mkdir()
        (seed / "user-data").write_text(cloud_init.user_data(request.user, request.key.public))
        # Not named after the machine: cloud-init makes a link with the id in it, and the text of a deleted
        # link stays in its inode, which a copy of used blocks still has.
        (seed / "meta-data").write_text(
            f"instance-id: gpu-image-build\nlocal-hostname: {request.hostname}\n"
        )
        return {
            "base_disk": base.artifact,
            "base_checksum": f"sha256:{base.sha256}",
            "output_directory": str(request.work / "packer"),
            "seed_files": [str(seed / "user-data"), str(seed / "meta-data")],
            "serial_log": str(request.work / "serial-build.log"),
            "accelerator": request.accelerator,
            "accelerator_arguments": machines.ACCELERATOR_ARGUMENTS[request.accelerator],
        }

    def capture(
        self, artifacts: Sequence[str], context: Context, *, work: Path, name: str, note: Note
    ) -> Image:
        """Flattens the build machine's overlay into one compressed disk image of its own."""
        source = next((Path(path) for path in artifacts if path.endswith(".qcow2")), None)
        if source is None or not source.exists():
            raise UserError(f"Packer's artifact has no disk: {artifacts}", code=ExitCode.FAILED)
        image = work / f"{name}.qcow2"
        partial = work / f".{name}.partial.qcow2"
        note("flattening and compressing the disk")
        options = ["-c", "-W", "-o", "compression_type=zstd"]
        raw, used = work / ".capture.raw", work / ".used.raw"
        try:
            run.run(["qemu-img", "convert", "-O", "raw", source, raw])
            disk.copy_used(raw, used)
            run.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", *options, used, partial])
        finally:
            raw.unlink(missing_ok=True)
            used.unlink(missing_ok=True)
        note("hashing the image")
        digest = base.sha256_of(partial)
        partial.chmod(0o444)
        partial.rename(image)
        return Image(
            id=str(image),
            region="local",
            name=name,
            sha256=digest,
            size=image.stat().st_size,
            format="qcow2",
        )

    def inspect(self, image: Image, *, work: Path, needles: Mapping[str, bytes], note: Note) -> Inspection:
        """Extracts files from the captured disk and searches all of it, without booting or mounting it."""
        return disk.inspect(Path(image.id), work=work, needles=needles, note=note)

    def first_boots(self) -> Sequence[str]:
        """One boot by BIOS, one by UEFI: the image must start with both."""
        return ("first-bios", "first-uefi")

    @contextmanager
    def launch(self, image: Image, request: LaunchRequest) -> Iterator[Machine]:
        """Boots the image in plain QEMU on a throw-away overlay, on a disk bigger than the image."""
        work = request.evidence / "disk"
        work.mkdir(exist_ok=True)
        config = machines.Config(
            image=Path(image.id),
            name=request.name,
            user=request.user,
            private_key=request.private_key,
            public_key=request.public_key,
            work=work,
            serial_log=request.evidence / f"serial-{request.name}.log",
            disk_bytes=machines.virtual_size(Path(image.id)) + GATE_DISK_EXTRA,
            firmware="uefi" if request.name.endswith("uefi") else "bios",
            accelerator=request.accelerator,
            outlive=request.outlive,
        )
        with machines.Machine(config) as machine:
            machine.wait_for_ssh(SSH_SECONDS)
            yield machine

    def image_state(self, image_id: str, region: str, settings: Settings) -> str:
        """Whether the file is there."""
        return "available" if Path(image_id).is_file() else "missing"

    def delete(self, image_id: str, region: str, settings: Settings) -> None:
        """Deletes the file."""
        Path(image_id).unlink(missing_ok=True)

    def how_to_boot(self, image: Image) -> str:
        """The QEMU command that boots it to its console; to log in, see README, "Boot it yourself"."""
        disk_option = shlex.quote(f"file={image.id},if=virtio")
        return f"qemu-system-x86_64 -cpu max -m 2048 -nographic -snapshot -drive {disk_option} -nic none"


def _lock(loaded: Loaded, arch: str, section: Section, resolved: archive.Resolved) -> Lock:
    """A lock from what the archive answered."""
    spec = loaded.spec
    release, packages = archive.kernel_of(
        resolved,
        section.kernel_package,
        series=spec.kernel.series,
        release=spec.kernel.release,
        where=loaded.source.place(("kernel", "series")),
    )
    return Lock(
        origin="resolved",
        image=spec.family,
        cloud=LocalCloud.name,
        arch=arch,
        resolved=locks.now(),
        inputs=locks.inputs_digest(loaded, LocalCloud.name, arch),
        indexes=[locks.Index(**vars(index)) for index in resolved.indexes],
        base=locks.BaseImage(name=f"{spec.os.id} {spec.os.version} with {section.base.kernel_package}"),
        kernel=locks.LockedKernel(
            release=release, packages=[locks.LockedPackage(**vars(p)) for p in packages]
        ),
    )


def _base_inputs(loaded: Loaded, lock: Lock) -> dict[str, Any]:
    """What the base disk is made from."""
    section = loaded.section(LocalCloud.name, Section)
    return {
        "suite": loaded.spec.os.codename,
        "kernel_packages": {package.name: package.version for package in lock.kernel.packages},
        "base_packages": (*base.BASE_PACKAGES, section.base.kernel_package),
        "size_bytes": loaded.spec.disk_gib * 1024**3,
        "index_digests": {index.suite: index.sha256 for index in lock.indexes},
    }
