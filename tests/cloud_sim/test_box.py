"""The box as a whole: real Packer, real SSH and the chroot target, in a network of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from images import console, settings, sshkey
from tests.cloud_sim.box import Box, quick_box
from tests.cloud_sim.test_account import debian, image_reaches, instance, launch, reaches
from tests.images.test_run import gone, wait_for

pytestmark = [
    pytest.mark.box,
    pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own and the chroot target need root"),
]

CACHE = settings.Settings().cache / "box"
TEMPLATE = """
source "amazon-ebs" "image" {
  region        = "us-east-1"
  instance_type = "m7i.large"
  ami_name      = "NAME"
  ami_regions   = ["us-west-2"]
  source_ami_filter {
    filters = {
      name                = "SOURCE"
      root-device-type    = "ebs"
      virtualization-type = "hvm"
    }
    owners      = ["OWNER"]
    most_recent = true
  }
  aws_polling {
    delay_seconds = 1
    max_attempts  = 120
  }
  ssh_username    = "admin"
  ssh_timeout     = "2m"
  tags            = { family = "of-images" }
  snapshot_tags   = { family = "of-snapshots" }
  run_tags        = { family = "of-instances" }
}

build {
  sources = ["source.amazon-ebs.image"]
  provisioner "shell" {
    inline = ["cloud-init status --wait", "sudo systemctl is-system-running --wait", "SCRIPT"]
  }
  post-processor "manifest" {
    output = "manifest.json"
  }
}
"""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with quick_box(tmp_path / "box", cache=CACHE, isolated=True) as box:
        yield box
    assert box.errors == []
    assert processes(tmp_path) == []


def processes(folder: Path) -> list[str]:
    """The command lines that name the folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def template(**values: str) -> str:
    text = TEMPLATE
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def packer(box: Box, folder: Path, text: str) -> subprocess.Popen[str]:
    (folder / "build.pkr.hcl").write_text(text)
    return subprocess.Popen(
        box.command(["packer", "build", "-color=false", "build.pkr.hcl"]),
        cwd=folder,
        env={**box.environment(), "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


FROM_DEBIAN = {"SOURCE": "debian-13-amd64-*", "OWNER": "136693071363"}


def test_packer_builds_an_image_and_another_from_it(box: Box, tmp_path: Path) -> None:
    first = packer(
        box,
        tmp_path,
        template(NAME="first", SCRIPT="echo made by the first | sudo tee /trace", **FROM_DEBIAN),
    )
    output, _ = first.communicate()
    assert first.returncode == 0, output
    (made,) = json.loads((tmp_path / "manifest.json").read_text())["builds"]
    images = dict(part.split(":") for part in made["artifact_id"].split(","))
    left = box.leftovers()
    assert {region: kinds["images"] for region, kinds in left.items()} == {r: [i] for r, i in images.items()}
    assert {kind for kinds in left.values() for kind in kinds} == {"images", "snapshots"}
    used = {call.agent.split("/")[0] for call in box.calls}
    assert used == {"aws-sdk-go"}
    described = box.inside(lambda: box.client("ec2", "us-west-2").describe_images(Owners=["self"])["Images"])
    assert described[0]["Tags"] == [{"Key": "family", "Value": "of-images"}]

    second = packer(box, tmp_path, template(NAME="second", SCRIPT="cat /trace", SOURCE="fir*", OWNER="self"))
    output, _ = second.communicate()
    assert second.returncode == 0, output
    assert "amazon-ebs.image: made by the first" in output
    assert box.proxy.refused == []


def test_packer_is_cancelled_exactly_while_the_machine_starts(box: Box, tmp_path: Path) -> None:
    build = packer(box, tmp_path, template(NAME="first", SCRIPT="true", **FROM_DEBIAN))
    box.faults.after("RunInstances", lambda _call: os.killpg(build.pid, signal.SIGINT))
    output, _ = build.communicate()
    assert build.returncode == 1
    assert "Cleanly cancelled builds" in output
    assert box.faults.actions("TerminateInstances")
    assert box.leftovers() == {}


def test_packer_fails_and_cleans_up_when_the_image_fails(box: Box, tmp_path: Path) -> None:
    box.faults.image_fails(copied=False)
    build = packer(box, tmp_path, template(NAME="first", SCRIPT="true", **FROM_DEBIAN))
    output, _ = build.communicate()
    assert build.returncode == 1
    assert "Error waiting for AMI" in output
    assert not box.leftovers()["us-east-1"].keys() & {"instances", "volumes", "security_groups", "key_pairs"}


def test_nothing_outside_can_be_reached(box: Box) -> None:
    def network(words: list[str]) -> list[Any]:
        found: list[Any] = json.loads(subprocess.check_output(["ip", "-json", *words]))
        return found

    links = box.inside(lambda: network(["link"]))
    assert [link["ifname"] for link in links] == ["lo"]
    assert box.inside(lambda: network(["route"])) == []
    assert json.loads(subprocess.check_output(box.command(["ip", "-json", "link"]))) == links
    assert len(network(["link"])) > 1


# Machines. SSH as a user has it: strict about the host key that the console shows.


class Shell:
    """Runs commands on an instance by SSH, with the host key of its console."""

    def __init__(self, box: Box, folder: Path, instance_id: str, user: str, key: Path) -> None:
        self.box, self.instance_id = box, instance_id
        self.address = instance(box.client("ec2"), instance_id)["PublicIpAddress"]
        self.known_hosts = folder / f"known-{instance_id}"
        self.words = ["ssh", "-F", "none", "-i", str(key), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
        self.words += ["-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "StrictHostKeyChecking=yes"]
        self.words += [f"{user}@{self.address}"]

    def console(self) -> str:
        answer = self.box.client("ec2").get_console_output(InstanceId=self.instance_id)
        return str(answer.get("Output", ""))

    def try_run(self, command: str) -> subprocess.CompletedProcess[str]:
        keys = console.host_keys(self.console())
        self.known_hosts.write_text("".join(f"{self.address} {key.kind} {key.key}\n" for key in keys))
        return subprocess.run([*self.words, command], capture_output=True, text=True, check=False)

    def run(self, command: str) -> str:
        result = self.try_run(command)
        assert result.returncode == 0, result.stderr + self.console()
        return result.stdout.strip()

    def up(self) -> bool:
        return wait_for(lambda: self.try_run("cloud-init status --wait").returncode == 0, 30)


def user_data(public_key: str, **more: Any) -> str:
    user = {
        "name": "builder",
        "shell": "/bin/bash",
        "lock_passwd": True,
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "ssh_authorized_keys": [public_key],
    }
    return "#cloud-config\n" + json.dumps({"users": [user], **more})


@pytest.fixture
def start(box: Box, tmp_path: Path) -> Callable[..., Shell]:
    """Starts a machine, in the box's network; use it in ``box.inside``."""
    key = sshkey.generate(tmp_path, "test")

    def start(
        image: str | None = None, *, config: Mapping[str, Any] | None = None, **parameters: Any
    ) -> Shell:
        ec2 = box.client("ec2")
        data = user_data(key.public, **(config or {}))
        one = launch(ec2, **{"UserData": data, "ImageId": image or debian(ec2), **parameters})
        shell = Shell(box, tmp_path, one, "builder", key.private)
        assert shell.up(), shell.console()
        return shell

    return start


def test_first_boot_reboot_and_power_off(box: Box, start: Callable[..., Shell]) -> None:
    def work() -> None:
        ec2 = box.client("ec2")
        shell = start(
            config={"bootcmd": [["touch", "/run/booted"], "date >>/boots"], "runcmd": ["date >/first"]}
        )
        assert shell.run("id -un; sudo id -un").split() == ["builder", "root"]
        assert (
            shell.run("cloud-id; systemctl is-system-running --wait; ls /run/booted")
            == "aws\nrunning\n/run/booted"
        )
        keys, machine_id = console.host_keys(shell.console()), shell.run("cat /etc/machine-id")
        assert {key.kind for key in keys} == {"ssh-ed25519", "ecdsa-sha2-nistp256"}
        assert len(machine_id) == 32

        boot = shell.run("cat /proc/sys/kernel/random/boot_id")
        ec2.reboot_instances(InstanceIds=[shell.instance_id])
        assert wait_for(
            lambda: shell.try_run("cat /proc/sys/kernel/random/boot_id").stdout.strip() not in ("", boot), 30
        )
        again = shell.run("cat /proc/sys/kernel/random/boot_id")
        shell.try_run("sudo systemctl reboot")
        assert wait_for(
            lambda: shell.try_run("cat /proc/sys/kernel/random/boot_id").stdout.strip() not in ("", again),
            30,
        )
        assert shell.run("cat /etc/machine-id") == machine_id
        assert console.host_keys(shell.console()) == keys
        assert len(shell.run("cat /boots").splitlines()) == 3
        assert state_of(ec2, shell) == "running"

        shell.try_run("sudo shutdown now")
        assert reaches(ec2, shell.instance_id, "stopped")
        ec2.start_instances(InstanceIds=[shell.instance_id])
        assert reaches(ec2, shell.instance_id, "running") and shell.up()
        assert shell.run("cat /etc/machine-id") == machine_id
        ec2.terminate_instances(InstanceIds=[shell.instance_id])
        assert reaches(ec2, shell.instance_id, "terminated")
        assert "Power down." in shell.console()

    box.inside(work)
    assert box.leftovers() == {}


def state_of(ec2: Any, shell: Shell) -> str:
    return str(instance(ec2, shell.instance_id)["State"]["Name"])


def test_two_machines_of_one_image(box: Box, start: Callable[..., Shell]) -> None:
    """They differ, but for what the image says itself: an image that keeps its machine-id shares it."""

    def work() -> None:
        ec2 = box.client("ec2")
        origin = start()
        original = origin.run(
            "cat /etc/machine-id; sudo rm /etc/hosts.allow 2>&1; sudo rm /etc/debian_version"
        )
        made: dict[str, str] = {}
        for name, command in {"kept": "true", "cleared": "sudo truncate -s 0 /etc/machine-id"}.items():
            origin.run(command)
            made[name] = ec2.create_image(InstanceId=origin.instance_id, Name=name, NoReboot=True)["ImageId"]
            assert image_reaches(ec2, made[name], "available")
        for name, image in made.items():
            one, other = start(image), start(image)
            assert one.address != other.address
            assert set(console.host_keys(one.console())).isdisjoint(console.host_keys(other.console()))
            ids = {shell.run("cat /etc/machine-id") for shell in (one, other)}
            assert len(ids) == (1 if name == "kept" else 2)
            assert (original.split()[0] in ids) == (name == "kept")
            assert "No such file" in one.try_run("cat /etc/debian_version").stderr  # deleted stays deleted

    box.inside(work)


def test_key_pair_of_the_launch_is_the_default_users(box: Box, tmp_path: Path) -> None:
    def work() -> str:
        ec2 = box.client("ec2")
        key = tmp_path / "pair"
        key.touch(mode=0o600)
        key.write_text(ec2.create_key_pair(KeyName="pair", KeyType="ed25519")["KeyMaterial"])
        shell = Shell(box, tmp_path, launch(ec2, KeyName="pair"), "admin", key)
        assert shell.up()
        return shell.run("sudo id -un")

    assert box.inside(work) == "root"


def test_a_timer_in_the_user_data_ends_the_machine(box: Box, start: Callable[..., Shell]) -> None:
    """As a machine does that outlives its builder: by itself, and EC2 then deletes it."""

    def work() -> None:
        ec2 = box.client("ec2")
        timer = {"runcmd": [["systemd-run", "--on-active=1s", "systemctl", "poweroff"]]}
        shell = start(config=timer, InstanceInitiatedShutdownBehavior="terminate")
        assert wait_for(lambda: state_of(ec2, shell) == "terminated", 20)

    box.inside(work)
    assert box.leftovers() == {}


def test_ssh_that_is_dropped(box: Box, start: Callable[..., Shell]) -> None:
    def work() -> None:
        shell = start()
        session = subprocess.Popen([*shell.words, "echo in; sleep 60"], stdout=subprocess.PIPE, text=True)
        assert session.stdout and session.stdout.readline() == "in\n"
        box.account.machines.target.drop_ssh(shell.instance_id)
        assert session.wait(timeout=20) == 255
        assert shell.try_run("true").returncode == 255
        session.stdout.close()

    box.inside(work)


def test_user_data_that_is_not_simulated_is_named(box: Box, start: Callable[..., Shell]) -> None:
    def work() -> None:
        shell = start(config={"ntp": {"enabled": True}})
        assert "cloud-init: ntp is not simulated" in shell.console()
        refused = shell.try_run("sudo systemctl restart ssh")
        assert (refused.returncode, "not simulated" in refused.stderr) == (1, True)
        protected = shell.try_run("sudo sysctl -w kernel.hostname=x")
        assert protected.returncode != 0  # it is the host's kernel
        assert shell.run("test ! -f /proc/sysrq-trigger; echo $?") == "0"
        assert shell.try_run("sudo ip link set lo down").returncode != 0

    box.inside(work)


KILLED = """
import sys
from pathlib import Path
from tests.cloud_sim.box import quick_box
from tests.cloud_sim.test_account import launch
with quick_box(Path(sys.argv[1]), cache=Path(sys.argv[2]), isolated=True) as box:
    one = box.inside(lambda: launch(box.client("ec2")))
    print(box.command(["true"])[1], box.proxy.url, flush=True)
    sys.stdin.read()
"""


def test_a_killed_box_takes_its_machines_along(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "box"), str(CACHE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdin
    assert process.stdout.readline().startswith("--net=")
    assert wait_for(lambda: len(descendants(process.pid)) >= 3)  # unshare, init, sshd
    children = descendants(process.pid)
    process.kill()
    process.wait()
    assert wait_for(lambda: all(gone(pid) for pid in children))
    mounts = Path("/proc/self/mounts").read_text()
    assert str(tmp_path) not in mounts
    process.stdout.close()
    process.stdin.close()


def descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]
