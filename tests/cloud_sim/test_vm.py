"""The VM target: machines, and that nothing is left of them."""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from images import cloud_init, console, remote, sshkey
from images.clouds.local import base, disk, layout
from images.errors import UserError
from images.settings import CHECKOUT
from tests.cloud_sim import qemu, vm
from tests.cloud_sim.qemu import Hardware
from tests.cloud_sim.target import Boot

BOOT = Boot(
    instance_id="i-1",
    image_id="ami-1",
    image=Path("image"),
    address="127.77.0.1",
    region="eu-west-1",
    zone="eu-west-1b",
    instance_type="t3.small",
)


def wait_until(ready: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# The source image


@pytest.fixture(scope="module")
def base_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk that is partitioned as a base disk is, with a few files."""
    folder = tmp_path_factory.mktemp("base")
    root, raw, size = folder / "root", folder / "disk.raw", 96 << 20
    (root / "etc/cloud/cloud.cfg.d").mkdir(parents=True)
    (root / "etc/cloud/cloud.cfg.d/10-local.cfg").write_text("datasource_list: [NoCloud]\n")
    (root / "etc/shadow").write_text("root:*\n")
    (root / "etc/shadow").chmod(0o640)
    with raw.open("wb") as file:
        file.truncate(size)
    table = layout.partition_table(layout.Ids.from_digest("aa"), size)
    subprocess.run(["sfdisk", "--quiet", raw], input=table, text=True, check=True)
    options = ["-q", "-F", "-t", "ext4", "-b", "4096", "-E", f"offset={layout.ROOT_START}", "-d", str(root)]
    blocks = (size - layout.ROOT_START - layout.GPT_BACKUP) // 4096
    subprocess.run(["mke2fs", *options, raw, str(blocks)], check=True)
    image = folder / "disk.qcow2"
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, image], check=True)
    return image


def files_of(image: Path, work: Path) -> dict[str, tuple[int, int, bytes]]:
    """Mode, owner and content of each file; the file system is checked on the way."""
    work.mkdir()
    subprocess.run(["qemu-img", "convert", "-O", "raw", image, work / "disk.raw"], check=True)
    filesystem = disk.root_of(work / "disk.raw")
    check = ["e2fsck", "-fn", f"{filesystem.raw}?offset={filesystem.offset}"]
    subprocess.run(check, check=True, capture_output=True)
    (work / "root").mkdir()
    filesystem.extract(["/"], work / "root")
    return {
        str(path.relative_to(work / "root")): (path.stat().st_mode, path.stat().st_uid, path.read_bytes())
        for path in (work / "root").rglob("*")
        if path.is_file()
    }


def test_a_source_image_is_the_base_disk_and_one_file(base_disk: Path, tmp_path: Path) -> None:
    base = base_disk.read_bytes()
    vm.source_image(base_disk, tmp_path / "image")
    assert base_disk.read_bytes() == base
    assert [path.name for path in (tmp_path / "image").iterdir()] == ["disk.qcow2"]
    before, after = (
        files_of(base_disk, tmp_path / "a"),
        files_of(tmp_path / "image/disk.qcow2", tmp_path / "b"),
    )
    mode, owner, text = after.pop("etc/cloud/cloud.cfg.d/20-ec2.cfg")
    assert after == before and len(before) == 2
    assert (mode, owner) == (0o100644, os.geteuid())
    assert b"\ndatasource_list: [Ec2, None]\n" in text


def test_a_disk_that_is_no_base_disk_is_an_error(tmp_path: Path) -> None:
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", tmp_path / "empty", "1M"], check=True)
    with pytest.raises(UserError, match="no GPT"):
        vm.source_image(tmp_path / "empty", tmp_path / "image")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_file_that_cannot_be_written_is_an_error(
    base_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vm, "DROP_IN", "/no/such/folder/20-ec2.cfg")
    with pytest.raises(UserError, match=r"could not write /no/such/folder"):
        vm.source_image(base_disk, tmp_path / "image")
    assert list(tmp_path.iterdir()) == []


# Machines, on boot sectors instead of operating systems

#: Copies itself to the disk's second sector (INT 13h, AH=3), writes "H" to the first serial port, halts.
HELLO = bytes.fromhex("31c0 8ec0 bb007c b80103 b90200 ba8000 cd13 baf803 b048 ee f4 ebfd")
#: Turns the machine off: SLP_EN in the PIIX4's power management control register.
POWER_OFF = bytes.fromhex("ba0406 b80020 ef f4 ebfd")


def boot_sector(code: bytes) -> bytes:
    return code.ljust(510, b"\0") + b"\x55\xaa"


def image_of(code: bytes, folder: Path) -> Path:
    folder.mkdir()
    (folder / "raw").write_bytes(boot_sector(code).ljust(1 << 20, b"\0"))
    subprocess.run(
        ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", "raw", "disk.qcow2"], cwd=folder, check=True
    )
    (folder / "raw").unlink()
    return folder


def boot_of(image: Path, name: str = "i-1") -> Boot:
    return dataclasses.replace(BOOT, image=image, instance_id=name, address=f"127.77.0.{name[2:]}")


CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


@pytest.fixture
def namespace() -> Iterator[str]:
    """This thread, and those that it starts, in a network that has only loopback."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = "/proc/thread-self/ns/net"
    before = os.open(own, os.O_RDONLY)
    try:
        assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        with socket.socket() as any_socket:  # netdevice(7)
            flags = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
            name, old = struct.unpack_from("16sH", flags)
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", name, old | IFF_UP))
        yield str(Path(own).readlink())
    finally:
        assert libc.setns(before, CLONE_NEWNET) == 0
        os.close(before)


@pytest.fixture
def target(namespace: str, tmp_path: Path) -> Iterator[vm.VmTarget]:
    made = vm.VmTarget(tmp_path / "vms", Hardware(memory_mib=32, cpus=1))
    yield made
    made.close()


def pid_of(target: vm.VmTarget, name: str = "i-1") -> int:
    process = target.machine(name)._process
    assert process
    return process.pid


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def accepts(address: str) -> bool:
    try:
        socket.create_connection((address, 22), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.box
def test_a_machine_from_start_to_end(
    target: vm.VmTarget, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu, "POWER_OFF_PATIENCE", 0.2)  # nobody is there to hear the button
    ended: list[str] = []
    target.on_power_off = ended.append
    starter = threading.Thread(target=target.start, args=[boot_of(image_of(HELLO, tmp_path / "image"))])
    starter.start()
    starter.join()  # the machine lives on without the thread that started it
    first = pid_of(target)
    wait_until(lambda: target.console("i-1") == "H")
    assert str(Path(f"/proc/{first}/ns/net").readlink()) == namespace
    assert accepts("127.77.0.1")
    target.power_off("i-1")
    assert not is_alive(first) and not accepts("127.77.0.1")
    target.power_off("i-1")
    target.resume("i-1")
    target.resume("i-1")
    wait_until(lambda: target.console("i-1") == "HH")
    second = pid_of(target)
    target.destroy("i-1")
    target.destroy("i-1")
    assert not is_alive(second) and not accepts("127.77.0.1")
    assert target.console("i-1") == "HH"
    for method in (target.resume, target.power_off, target.reboot, target.drop_ssh):
        with pytest.raises(KeyError):
            method("i-1")
    target.close()
    assert [path.name for path in (tmp_path / "vms").iterdir()] == ["consoles"]
    assert ended == []


@pytest.mark.box
def test_a_machine_that_turns_itself_off(target: vm.VmTarget, tmp_path: Path) -> None:
    ended: list[str] = []
    target.on_power_off = ended.append
    target.start(boot_of(image_of(POWER_OFF, tmp_path / "image")))
    wait_until(lambda: ended == ["i-1"])
    target.on_power_off = target.destroy  # as for InstanceInitiatedShutdownBehavior=terminate
    target.resume("i-1")
    wait_until(lambda: not (tmp_path / "vms/i-1").exists())
    assert ended == ["i-1"]


@pytest.mark.box
def test_a_reboot_starts_the_machine_again(
    target: vm.VmTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu, "REBOOT_PATIENCE", 0.2)
    ended: list[str] = []
    target.on_power_off = ended.append
    target.start(boot_of(image_of(HELLO, tmp_path / "image")))
    wait_until(lambda: target.console("i-1") == "H")
    first = pid_of(target)
    target.reboot("i-1")
    wait_until(lambda: target.console("i-1") == "HH")
    assert not is_alive(first) and is_alive(pid_of(target))
    assert ended == []


@pytest.mark.box
def test_dropped_ssh_breaks_connections_and_stays_away(
    target: vm.VmTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu, "REBOOT_PATIENCE", 0.2)
    target.start(boot_of(image_of(HELLO, tmp_path / "image")))
    wait_until(lambda: target.console("i-1") == "H")
    with socket.create_connection(("127.77.0.1", 22), timeout=10) as connection:
        target.drop_ssh("i-1")
        assert connection.recv(1) == b""
    assert not accepts("127.77.0.1")
    assert is_alive(pid_of(target))
    target.reboot("i-1")
    wait_until(lambda: target.console("i-1") == "HH")
    assert not accepts("127.77.0.1")


@pytest.mark.box
@pytest.mark.parametrize("running", [True, False])
def test_a_capture_is_an_image_of_its_own(
    target: vm.VmTarget, tmp_path: Path, running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu, "POWER_OFF_PATIENCE", 0.2)
    source = image_of(HELLO, tmp_path / "image")
    before = (source / "disk.qcow2").read_bytes()
    target.start(boot_of(source))
    wait_until(lambda: target.console("i-1") == "H")
    if not running:
        target.power_off("i-1")
    assert (source / "disk.qcow2").read_bytes() == before
    shutil.rmtree(source)  # deregistered: that hurts neither its instances nor what is made of them
    target.capture("i-1", tmp_path / "captured")
    subprocess.run(
        ["qemu-img", "convert", "-O", "raw", tmp_path / "captured/disk.qcow2", tmp_path / "raw"], check=True
    )
    assert (tmp_path / "raw").read_bytes()[:1024] == boot_sector(HELLO) * 2
    if running:
        assert target.machine("i-1").monitor("query-status")["status"] == "running"
    target.destroy("i-1")
    target.start(boot_of(tmp_path / "captured", "i-2"))
    wait_until(lambda: target.console("i-2") == "H")
    with pytest.raises(KeyError):
        target.capture("i-1", tmp_path / "never")
    assert not (tmp_path / "never").exists()


@pytest.mark.box
def test_a_machine_that_cannot_start_leaves_nothing(target: vm.VmTarget, tmp_path: Path) -> None:
    image = image_of(HELLO, tmp_path / "image")
    with socket.socket() as taken:
        taken.bind(("127.77.0.1", 22))
        taken.listen()
        with pytest.raises(UserError, match="did not start") as caught:
            target.start(boot_of(image))
    assert "port 22" in (caught.value.hint or "")
    with pytest.raises(KeyError):
        target.console("i-1")
    assert [path.name for path in (tmp_path / "vms").iterdir()] == ["consoles"]
    target.start(boot_of(image))
    with pytest.raises(ValueError, match="before"):
        target.start(boot_of(image))


@pytest.mark.box
def test_machines_die_with_us_even_when_we_are_killed(namespace: str, tmp_path: Path) -> None:
    image_of(HELLO, tmp_path / "image")
    code = (
        "import pathlib, sys, threading\n"
        "from tests.cloud_sim import qemu, test_vm, vm\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "target = vm.VmTarget(folder / 'vms', qemu.Hardware(memory_mib=32))\n"
        "target.start(test_vm.boot_of(folder / 'image'))\n"
        "print(test_vm.pid_of(target), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as box:
        assert box.stdout
        pid = int(box.stdout.readline())
        assert is_alive(pid)
        os.kill(box.pid, signal.SIGKILL)
        box.wait()
    wait_until(lambda: not is_alive(pid))


# The whole: Debian and its own cloud-init


@pytest.fixture(scope="module")
def real_base() -> Path:
    """The newest base disk in the user's cache, or one that is made now."""
    cache = Path("~/.cache/gpu-image").expanduser()
    bases = sorted((cache / "base").glob("*/base.json"), key=lambda path: path.stat().st_mtime)
    if bases:
        return bases[-1].with_name("disk.qcow2")
    made = base.build_base(
        suite="trixie", kernel_packages={}, cache=cache, size_bytes=4 << 30, index_digests={}
    )
    return made.path


class Guest(remote.SshMachine):
    """An instance as its user sees it: an address, a console."""

    port = 22

    def __init__(self, target: vm.VmTarget, boot: Boot, key: sshkey.KeyPair, folder: Path) -> None:
        self.target = target
        self.name, self.user, self.host = boot.instance_id, "builder", boot.address
        self.ssh_config = folder / f"{self.name}.ssh"
        self.known_hosts = folder / f"{self.name}.known"
        self.control = folder / f"{self.name}.s"
        self.serial_log = target.folder / "consoles" / f"{self.name}.log"
        remote.write_ssh_config(
            self.ssh_config,
            host=self.host,
            port=22,
            user=self.user,
            key=key.private,
            known_hosts=self.known_hosts,
            control=self.control,
        )
        target.start(boot)
        self.started = time.monotonic()

    def serial(self) -> str:
        return self.target.console(self.name)

    def ended(self) -> str | None:
        return None

    def restart(self) -> None:
        self.target.reboot(self.name)

    def settle(self) -> None:
        """Lets the boot come to its end; it must have been one without a complaint."""
        status = json.loads(self.run("cloud-init status --wait --format=json", timeout=300))
        assert (status["status"], status["errors"], status["recoverable_errors"]) == ("done", [], {})
        assert self.run("systemctl is-system-running --wait", timeout=300) == "running\n"

    def identity(self) -> tuple[str, str]:
        machine_id, key = self.run("cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub").splitlines()
        return machine_id, key


FROM_THE_GUEST = """
import socket, urllib.error, urllib.request
try:
    urllib.request.urlopen("http://169.254.169.254/latest/meta-data/", timeout=20)
except urllib.error.HTTPError as error:
    print(error.code)
for address in ("172.16.0.1", "169.254.169.254", "192.0.2.1"):
    try:
        socket.create_connection((address, PORT), timeout=5)
        print("connected")
    except OSError:
        print("no way")
"""


@pytest.mark.full
def test_debian_on_ec2(namespace: str, real_base: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("ec2")
    vm.source_image(real_base, folder / "image")
    key = sshkey.generate(folder, "test")
    boot = dataclasses.replace(
        BOOT,
        instance_id="i-0aaaaaaaaaaaaaaa1",
        image=folder / "image",
        user_data=cloud_init.user_data("builder", key.public).encode(),
        public_keys=(key.public,),
    )
    ended: list[str] = []
    target = vm.VmTarget(folder / "vms")
    target.on_power_off = ended.append
    try:
        guest = Guest(target, boot, key, folder)
        guest.wait_for_ssh(600)
        guest.settle()
        pids = [pid_of(target, guest.name)]

        # The data source, and that it saw this instance.
        assert guest.run("cloud-id") == "aws\n"
        shown = "{{v1.instance_id}} {{v1.region}} {{v1.availability_zone}} {{ds.meta_data.instance_type}}"
        assert guest.run(f"cloud-init query --format '{shown}'").split() == [
            boot.instance_id,
            "eu-west-1",
            "eu-west-1b",
            "t3.small",
        ]
        assert guest.run("hostname").strip() == "ip-172-31-0-1"
        assert "172.31.0.1/" in guest.run("ip -4 -oneline address show scope global")
        assert guest.run("sudo cat /sys/class/dmi/id/product_uuid").startswith("ec2")
        service = target.machine(guest.name).imds
        assert service
        assert service.seen[0][:2] == ("PUT", "/latest/api/token")
        assert [request for request in service.seen if request[2] not in (200, 404)] == []

        # No token, no metadata; and nothing else answers, not even where this machine listens.
        with socket.create_server(("127.0.0.1", 0)) as here:
            script = FROM_THE_GUEST.replace("PORT", str(here.getsockname()[1]))
            assert guest.run(f"python3 -c {shlex.quote(script)}").split() == ["401", *["no", "way"] * 3]

        machine_id, host_key = guest.identity()
        assert host_key.split()[:2] == [*vars(console.host_keys(guest.serial())[-1]).values()]
        guest.reboot(900)  # raises when the boot id stays
        guest.settle()
        assert guest.identity() == (machine_id, host_key)
        pids.append(pid_of(target, guest.name))

        # As every build of an image does: the next machine makes its own.
        guest.run("echo uninitialized | sudo tee /etc/machine-id")
        guest.close_ssh()
        target.power_off(guest.name)
        assert not any(map(is_alive, pids)) and ended == []
        assert "reboot: Power down" in guest.serial()  # it was not killed
        target.capture(guest.name, folder / "captured")
        target.destroy(guest.name)

        second = dataclasses.replace(
            boot, instance_id="i-0bbbbbbbbbbbbbbb2", image=folder / "captured", address="127.77.0.2"
        )
        guest = Guest(target, second, key, folder)
        guest.wait_for_ssh(600)
        guest.settle()
        pids.append(pid_of(target, guest.name))
        assert guest.run("cloud-init query v1.instance_id").strip() == second.instance_id
        assert guest.run("hostname").strip() == "ip-172-31-0-2"
        new = guest.identity()
        assert new[0] != machine_id and new[1] != host_key
        guest.run("sudo systemctl --no-block poweroff")
        wait_until(lambda: ended == [second.instance_id], 120)
        guest.close_ssh()
    finally:
        target.close()
    assert not any(map(is_alive, pids))
    assert not accepts("127.77.0.1") and not accepts("127.77.0.2")
    assert [path.name for path in (folder / "vms").iterdir()] == ["consoles"]
