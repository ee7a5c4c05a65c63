"""The real Target: each instance is a QEMU machine, and its guest finds itself on EC2.

DMI says Amazon, the metadata service answers at 169.254.169.254, and the disk comes from an image's folder:
what runs is the guest's own cloud-init with its Ec2 data source. Not as on EC2: disk and network card are
virtio (no NVMe, no ENA), the firmware is a BIOS, and the subnet's mask is /5 (see qemu.py).
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from images import run
from images.clouds.local import disk
from images.errors import ExitCode, UserError
from tests.cloud_sim.qemu import Hardware, Machine
from tests.cloud_sim.target import Boot

#: What ``source_image`` adds to a base disk: where cloud-init looks for its data, as in Debian's own AMIs.
DROP_IN = "/etc/cloud/cloud.cfg.d/20-ec2.cfg"
DROP_IN_TEXT = "# On EC2.\ndatasource_list: [Ec2, None]\n"


def source_image(base_disk: Path, folder: Path) -> None:
    """Makes the image folder of a source AMI from a base disk (images/clouds/local/base.py).

    One file is added (``DROP_IN``); no mount, no boot. Raises ``UserError`` when it is not in the disk then.
    """
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        raw, text = new / "disk.raw", new / "drop-in"
        text.write_text(DROP_IN_TEXT)
        run.run(["qemu-img", "convert", "-O", "raw", base_disk, raw])
        write_file(disk.root_of(raw), text, DROP_IN)
        run.run(["qemu-img", "convert", "-O", "qcow2", raw, new / "disk.qcow2"])
        raw.unlink()
        text.unlink()
        new.rename(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def write_file(filesystem: disk.Filesystem, source: Path, path: str) -> None:
    """Writes a new file of root's into a clean ext4 file system that nobody has mounted."""
    filesystem.check_clean()
    name = disk.quoted(path)
    script = [f"write {disk.quoted(str(source.absolute()))} {name}"]
    script += [f"set_inode_field {name} {field}" for field in ("mode 0100644", "uid 0", "gid 0")]
    device = f"{filesystem.raw.absolute()}?offset={filesystem.offset}"
    # debugfs ends with 0 whatever happens.
    run.run(["debugfs", "-w", "-f", "-", device], input="".join(line + "\n" for line in script))
    if not filesystem.debugfs([f"cat {name}"]).endswith(source.read_text()):
        raise UserError(f"{filesystem.raw}: debugfs could not write {path}", code=ExitCode.FAILED)


class VmTarget:
    """A Target (tests/cloud_sim/target.py) whose machines are real.

    ``folder`` is on a disk with room, and belongs to the target: ``close`` leaves only ``consoles/`` in it.
    QEMU listens on the instance's address in the network namespace of the thread that calls ``start`` or
    ``resume``.
    """

    def __init__(self, folder: Path, hardware: Hardware | None = None) -> None:
        self.folder = folder.absolute()
        self.hardware = hardware or Hardware()
        self.on_power_off: Callable[[str], None] = lambda instance_id: None
        self._lock = threading.Lock()
        self._machines: dict[str, Machine] = {}
        self._closed = False
        (self.folder / "consoles").mkdir(parents=True, exist_ok=True)

    def start(self, boot: Boot) -> None:
        """Boots an overlay of the image's disk. Raises ``UserError`` when QEMU does not run."""
        with self._lock:
            if self._closed:
                raise UserError("this target is closed")
            if boot.instance_id in self._machines:
                raise ValueError(f"{boot.instance_id} has been started before")
            new = self._machines[boot.instance_id] = Machine(
                boot,
                folder=self.folder / boot.instance_id,
                console_log=self.folder / "consoles" / f"{boot.instance_id}.log",
                hardware=self.hardware,
                on_power_off=lambda: self.on_power_off(boot.instance_id),
            )
        try:
            new.prepare()
            new.launch()
        except BaseException:
            new.destroy()
            with self._lock:
                del self._machines[boot.instance_id]
            raise

    def machine(self, instance_id: str) -> Machine:
        """The machine of an instance that is there; ``KeyError`` for a destroyed one too."""
        found = self._machines[instance_id]
        if found.gone:
            raise KeyError(instance_id)
        return found

    def console(self, instance_id: str) -> str:
        return self._machines[instance_id].console()

    def reboot(self, instance_id: str) -> None:
        self.machine(instance_id).reboot()

    def power_off(self, instance_id: str) -> None:
        self.machine(instance_id).power_off()

    def resume(self, instance_id: str) -> None:
        self.machine(instance_id).launch()

    def destroy(self, instance_id: str) -> None:
        self._machines[instance_id].destroy()

    def drop_ssh(self, instance_id: str) -> None:
        self.machine(instance_id).drop_ssh()

    def capture(self, instance_id: str, image: Path) -> None:
        """Flattens the disk, so that an image needs no other. A machine that runs is frozen meanwhile, like
        EC2's CreateImage with NoReboot: what its kernel has not written yet is not in the image."""
        self.machine(instance_id).capture(image)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for each in self._machines.values():
            each.destroy()
