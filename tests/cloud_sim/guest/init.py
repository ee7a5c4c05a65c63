"""The first process of a machine of the chroot target: cloud-init's part, sshd, and the power button.

Runs in the machine, with its Python's standard library. What it does not simulate of the user-data it names
on the console. Behaviour: https://cloudinit.readthedocs.io/en/latest/reference/modules.html
"""

import contextlib
import ctypes
import json
import os
import pwd
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

BOX = Path("/run/box")
STATUS = Path("/run/cloud-init/status")
DONE = Path("/var/lib/cloud/data/instance-id")
RESTART, POWER_OFF = 0x01234567, 0x4321FEDC  # linux/reboot.h
KEY_TYPES = ("ed25519", "ecdsa")
#: What the user-data may say without effect here: there is no disk to grow and no network to set up.
NO_EFFECT = {"growpart", "resize_rootfs", "manage_etc_hosts", "preserve_hostname", "network", "disable_root"}

seed = json.loads((BOX / "seed.json").read_text())
config = seed["config"]
failed = []


def say(text: str) -> None:
    """Prints a line on the serial console."""
    print(text, flush=True)


def main() -> None:
    signal.signal(signal.SIGPWR, lambda *_: finish(POWER_OFF))
    signal.signal(signal.SIGINT, lambda *_: finish(RESTART))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    STATUS.parent.mkdir(parents=True)
    STATUS.write_text("running")
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    (BOX / "ready").touch()
    first = not DONE.exists() or DONE.read_text().strip() != seed["instance_id"]
    say(f"Booting {seed['instance_id']} from {seed['image_id']} (simulated machine)")
    stage("machine-id", machine_id)
    for command in config.get("bootcmd", []):
        stage("bootcmd", execute, command)
    if first:
        first_boot()
    sshd()
    if first:
        for command in [*config.get("runcmd", []), *seed["scripts"]]:
            stage("runcmd", execute, command)
        if power := config.get("power_state"):
            stage("power_state", power_state, power)
        DONE.parent.mkdir(parents=True, exist_ok=True)
        DONE.write_text(seed["instance_id"] + "\n")
    STATUS.write_text("error" if failed else "done")
    say(f"Cloud-init finished, Datasource DataSourceEc2Simulated, {len(failed)} errors")
    say(f"\n{os.uname().nodename} login: ")
    while True:
        # Orphans are the first process's to bury.
        with contextlib.suppress(ChildProcessError):
            os.wait()
            continue
        signal.pause()


def stage(name: str, work, *arguments) -> None:
    """Runs a part of the boot. A failure is named on the console and in cloud-init's status."""
    try:
        work(*arguments)
    except Exception as error:
        failed.append(name)
        say(f"cloud-init: {name} failed: {error}")


def first_boot() -> None:
    """What cloud-init does once for each instance."""
    known = {"users", "bootcmd", "runcmd", "write_files", "hostname", "ssh_authorized_keys", "ssh_keys"}
    known |= {"ssh_deletekeys", "power_state"}
    for name in config.keys() - known - NO_EFFECT:
        say(f"cloud-init: {name} is not simulated")
    hostname = config.get("hostname", seed["hostname"])
    Path("/etc/hostname").write_text(hostname + "\n")
    for file in config.get("write_files", []):
        stage("write_files", write_file, file)
    entries = config.get("users", ["default"])
    for entry in entries:
        stage("users", make_user, entry)
    stage("host keys", host_keys)


def machine_id() -> None:
    """As systemd: an image that carries an id gives it to all its machines (machine-id(5))."""
    file = Path("/etc/machine-id")
    if not file.exists() or file.read_text().strip() in ("", "uninitialized"):
        file.write_text(uuid.uuid4().hex + "\n")


def write_file(file: dict) -> None:
    if unknown := file.keys() - {"path", "content", "permissions", "append", "owner"}:
        raise ValueError(f"not simulated: {unknown}")
    path = Path(file["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if file.get("append") else "w") as stream:
        stream.write(file.get("content", ""))
    path.chmod(int(str(file.get("permissions", "0644")), 8))


def make_user(entry) -> None:
    """One entry of ``users``. Only the default user gets the key pair of the launch."""
    if entry == "default":
        name, sudo, groups = seed["default_user"], "ALL=(ALL) NOPASSWD:ALL", []
        keys = [*seed["public_keys"], *config.get("ssh_authorized_keys", [])]
        shell = "/bin/bash"
    else:
        name, sudo, groups = entry["name"], entry.get("sudo"), entry.get("groups", [])
        keys, shell = entry.get("ssh_authorized_keys", []), entry.get("shell", "/bin/sh")
    try:
        pwd.getpwnam(name)
    except KeyError:
        run("useradd", "--create-home", "--shell", shell, name)
        run("usermod", "-p", "*", name)  # no password, and not "locked", which sshd refuses without PAM
    for group in groups.split(",") if isinstance(groups, str) else groups:
        run("groupadd", "--force", group.strip())
        run("usermod", "--append", "--groups", group.strip(), name)
    if sudo:
        rules = Path("/etc/sudoers.d/90-cloud-init-users")
        old = rules.read_text() if rules.exists() else ""
        rules.write_text(
            old + "".join(f"{name} {rule}\n" for rule in ([sudo] if isinstance(sudo, str) else sudo))
        )
        rules.chmod(0o440)
    if keys:
        owner = pwd.getpwnam(name)
        folder = Path(owner.pw_dir) / ".ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        file = folder / "authorized_keys"
        old = file.read_text().splitlines() if file.exists() else []
        file.write_text(
            "".join(f"{line}\n" for line in dict.fromkeys([*old, *(key.strip() for key in keys)]))
        )
        file.chmod(0o600)
        for path in (folder, file):
            os.chown(path, owner.pw_uid, owner.pw_gid)


def host_keys() -> None:
    """New host keys, unless the user-data says otherwise, and their public halves on the console."""
    folder = Path("/etc/ssh")
    if config.get("ssh_deletekeys", True):
        for file in folder.glob("ssh_host_*key*"):
            file.unlink()
    for name, key in config.get("ssh_keys", {}).items():
        kind, half = name.rsplit("_", 1)
        file = folder / f"ssh_host_{kind}_key{'.pub' if half == 'public' else ''}"
        file.write_text(key if key.endswith("\n") else key + "\n")
        file.chmod(0o644 if half == "public" else 0o600)
    if "ssh_keys" not in config:
        for kind in KEY_TYPES:
            file = folder / f"ssh_host_{kind}_key"
            if not file.exists():
                run(
                    "ssh-keygen",
                    "-q",
                    "-t",
                    kind,
                    "-N",
                    "",
                    "-C",
                    f"root@{os.uname().nodename}",
                    "-f",
                    str(file),
                )
    say("-----BEGIN SSH HOST KEY KEYS-----")
    for file in sorted(folder.glob("ssh_host_*_key.pub")):
        say(file.read_text().strip())
    say("-----END SSH HOST KEY KEYS-----")


def sshd() -> None:
    options = [
        f"ListenAddress={seed['address']}",
        "Port=22",
        "UsePAM=no",
        "PidFile=/run/sshd.pid",
        "UseDNS=no",
    ]
    words = ["/usr/sbin/sshd", "-D", "-e", *(word for option in options for word in ("-o", option))]
    with (BOX / "sshd.log").open("ab") as log:
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def power_state(power: dict) -> None:
    delay, mode = (
        str(power.get("delay", "now")),
        {"poweroff": "-P", "halt": "-H", "reboot": "-r"}[power["mode"]],
    )
    run("shutdown", mode, f"+{delay}" if delay.isdigit() else delay)


def execute(command) -> None:
    if isinstance(command, str):
        run("sh", "-c", command)
    else:
        run(*command)


def run(*words: str) -> None:
    """Runs a command to its end; what it prints is on the console. Raises when it fails."""
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=sys.stdout, stderr=subprocess.STDOUT)


def finish(how: int) -> None:
    """Ends everything that runs, then the machine: the kernel tells our parent which it was (reboot(2))."""
    for signum in (signal.SIGPWR, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    say("Rebooting." if how == RESTART else "Power down.")
    deadline = time.monotonic() + 2
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGTERM)
        os.kill(-1, signal.SIGHUP)
    while time.monotonic() < deadline and others():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.02)  # as an init does: a moment for the others to end
    os.sync()
    ctypes.CDLL(None).reboot(how)


def others() -> bool:
    """Whether a process but us is left that has not ended."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and folder.name != "1":
            with contextlib.suppress(OSError):
                if (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    return True
    return False


if __name__ == "__main__":
    main()
