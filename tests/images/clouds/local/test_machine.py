"""What a machine does around a guest: here a boot sector that halts, so no operating system is needed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from images import remote
from images.clouds.local import machine
from images.errors import UserError

HALT = b"\xf4\xeb\xfd".ljust(510, b"\0") + b"\x55\xaa"
#: Writes "H" to the first serial port (0x3f8), then halts for ever.
HELLO = bytes.fromhex("ba f803 b0 48 ee f4 ebfd").ljust(510, b"\0") + b"\x55\xaa"


@pytest.fixture
def config(tmp_path: Path) -> machine.Config:
    raw = tmp_path / "disk.raw"
    raw.write_bytes(HELLO.ljust(1 << 20, b"\0"))
    image = tmp_path / "image.qcow2"
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", raw, image], check=True)
    raw.unlink()
    return machine.Config(
        image=image,
        name="halting",
        user="packer",
        private_key=tmp_path / "key",
        public_key="ssh-ed25519 AAAA test\n",
        work=tmp_path,
        serial_log=tmp_path / "serial, with a comma.log",
        disk_bytes=2 << 20,
        memory_mib=64,
        cpus=1,
    )


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def left_in(config: machine.Config) -> list[str]:
    return sorted(path.name for path in config.work.iterdir() if path != config.serial_log)


def wait_until(ready: object, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_machine_runs_and_leaves_only_its_serial_log(config: machine.Config) -> None:
    before = config.image.read_bytes()
    with machine.Machine(config) as vm:
        assert vm._process and vm._short
        pid, short = vm._process.pid, vm._short
        assert len(str(short / "qmp")) < 108
        assert machine.qmp(short / "qmp", "query-status")["status"] == "running"
        assert f"Port {vm.port}\n" in vm.ssh_config.read_text()
        # proc_net(5): local addresses in hexadecimal, 127.0.0.1 is 0100007F; 0A is LISTEN
        sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        listening = [row[1] for row in sockets if row[3] == "0A" and row[1].endswith(f":{vm.port:04X}")]
        assert listening == [f"0100007F:{vm.port:04X}"]
        wait_until(lambda: vm.serial().endswith("H"))
    assert not is_alive(pid)
    assert not short.exists()
    assert left_in(config) == ["image.qcow2"]
    assert config.image.read_bytes() == before


def test_the_seed_is_one_that_cloud_init_knows(config: machine.Config) -> None:
    with machine.Machine(config) as vm:
        seed = vm.folder / "seed.iso"
        label = subprocess.run(["blkid", "-p", "-s", "LABEL", "-o", "value", seed], capture_output=True)
        assert label.stdout == b"cidata\n"
        extract = ["xorriso", "-osirrox", "on", "-indev", seed, "-extract", "/user-data", config.work / "u"]
        subprocess.run(extract, check=True, capture_output=True)
    text = (config.work / "u").read_text()
    assert text.startswith("#cloud-config\n")
    (user,) = json.loads(text.split("\n", 1)[1])["users"]
    assert user["name"] == "packer"
    assert user["ssh_authorized_keys"] == ["ssh-ed25519 AAAA test"]


def test_a_machine_without_ssh_is_given_up_with_its_last_words(config: machine.Config) -> None:
    with machine.Machine(config) as vm:
        assert vm._process
        pid = vm._process.pid
        wait_until(lambda: vm.serial().endswith("H"))
        with pytest.raises(UserError, match=r"SSH server does not answer; .*\n  .*H") as caught:
            vm.wait_for_ssh(0.1)
        assert str(config.serial_log) in (caught.value.hint or "")
    assert not is_alive(pid)


def test_a_machine_that_ends_is_noticed_at_once(config: machine.Config) -> None:
    with machine.Machine(config) as vm:
        assert vm._process
        vm._process.send_signal(signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(UserError, match="QEMU has ended"):
            vm.wait_for_ssh(300)
        assert time.monotonic() - started < 30


def test_a_machine_that_ignores_the_power_button_is_killed(config: machine.Config) -> None:
    with machine.Machine(config) as vm:
        assert vm._process
        pid = vm._process.pid
        with pytest.raises(UserError, match="did not shut down within"):
            vm.power_off(0.2)
        assert not is_alive(pid)


def test_a_broken_image_is_an_error_and_leaves_nothing(config: machine.Config) -> None:
    config.image.write_bytes(b"not an image")
    with pytest.raises(UserError, match=r"qemu-img|QEMU"), machine.Machine(config):
        pytest.fail("started")
    assert left_in(config) == ["image.qcow2"]


def test_another_port_is_taken_when_one_is_not_free(
    config: machine.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free = machine.free_port()
        ports = [taken.getsockname()[1], free]
        monkeypatch.setattr(machine, "free_port", lambda: ports.pop(0))
        with machine.Machine(config) as vm:
            assert vm.port == free
    assert ports == []


def test_no_free_port_at_all_is_an_error(config: machine.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(machine, "free_port", lambda: taken.getsockname()[1])
        with pytest.raises(UserError, match="no free port"), machine.Machine(config):
            pytest.fail("started")
    assert left_in(config) == ["image.qcow2"]


def test_an_exception_in_the_body_ends_the_machine(config: machine.Config) -> None:
    with pytest.raises(KeyboardInterrupt), machine.Machine(config) as vm:
        assert vm._process
        pid = vm._process.pid
        raise KeyboardInterrupt
    assert not is_alive(pid)
    assert left_in(config) == ["image.qcow2"]


def test_the_machine_dies_with_us_even_when_we_are_killed(config: machine.Config) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from images.clouds.local import machine\n"
        "def path(name): return pathlib.Path(sys.argv[1]) / name\n"
        "config = machine.Config(image=path('image.qcow2'), name='x', user='u', private_key=path('k'),\n"
        "    public_key='k', work=path('.'), serial_log=path('s.log'), disk_bytes=2 << 20, memory_mib=64)\n"
        "with machine.Machine(config) as vm:\n"
        "    print(vm._process.pid, vm._short, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    root = Path(__file__).parents[4]
    with subprocess.Popen(
        [sys.executable, "-c", code, config.work],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as builder:
        assert builder.stdout
        pid, short = builder.stdout.readline().split()
        assert is_alive(int(pid))
        os.kill(builder.pid, signal.SIGKILL)
        builder.wait()
    wait_until(lambda: not is_alive(int(pid)))
    machine.shutil.rmtree(short)


def test_restricted_unless_asked_otherwise(config: machine.Config) -> None:
    assert any("restrict=on" in word for word in machine.Machine(config).command())
    open_config = machine.Config(**{**vars(config), "restrict": False})
    assert not any("restrict=" in word for word in machine.Machine(open_config).command())


def test_paths_with_commas_percents_and_spaces() -> None:
    assert machine.escape(Path("/a,b")) == "/a,,b"
    assert remote.quote(Path("/a %h")) == '"/a %%h"'


def test_ssh_reads_the_configuration(config: machine.Config) -> None:
    with machine.Machine(config) as vm:
        text = subprocess.run(
            ["ssh", "-F", vm.ssh_config, "-G", "vm"], check=True, capture_output=True, text=True
        ).stdout
    options = dict(line.split(" ", 1) for line in text.splitlines())
    assert options["hostname"] == "127.0.0.1"
    assert options["port"] == str(vm.port)
    assert options["stricthostkeychecking"] == "true"
    assert options["userknownhostsfile"] == f"{vm.folder}/known_hosts"


def test_no_firmware_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "OVMF", ((tmp_path / "code", tmp_path / "vars"),))
    with pytest.raises(UserError, match="no UEFI firmware"):
        machine.ovmf()
