"""A machine of somebody else's with simulated GPUs, reached by real SSH: a chroot machine of the box.

Not real: the GPUs, the kernel's view of them (mounted over /sys, as ``gpu_sim.vm`` does), ``dmesg``, which
prints the simulator's log (the kernel behind is the host's), and the units that ``systemctl`` lists.
"""

from __future__ import annotations

import contextlib
import io
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from images import console
from tests import gpu_sim
from tests.cloud_sim.chroot import ChrootTarget
from tests.cloud_sim.target import Boot
from tests.gpu_sim import Scenario, vm
from tests.gpu_sim.machine import cloud_init

ADDRESS = "127.77.200.17"
ID = "i-0000000000000va1"
#: Programs of a machine that this one has no kernel or systemd for.
STAND_INS = {
    "dmesg": "exec cat /usr/share/gpu-sim/kernel.log",
    "systemctl": """case $1 in
list-units) for unit in ssh systemd-timesyncd nvidia-fabricmanager nvidia-persistenced; do
    echo "$unit.service loaded active running a stand-in"; done;;
*) exec /usr/bin/systemctl "$@";;
esac""",
}


class Node:
    """The machine. ``ssh_config`` is what its operator has: key, user and host key."""

    url = f"ssh://{ADDRESS}"

    def __init__(self, folder: Path, target: ChrootTarget, libraries: Mapping[str, Path]) -> None:
        self.ssh_config = folder / "ssh_config"
        self._libraries = libraries
        self._target = target
        self._shown = False

    def run(self, command: str, *, input: bytes = b"", check: bool = True) -> str:
        """Runs a command there as root."""
        words = ["ssh", "-F", str(self.ssh_config), ADDRESS, "--", f"sudo sh -c {quote(command)}"]
        done = subprocess.run(words, input=input, capture_output=True, check=False, timeout=120)
        assert not check or done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def simulate(self, *faults: Mapping[str, Any], **settings: Any) -> Scenario:
        """Gives the machine these GPUs in place of those it had."""
        self.remove()
        scenario = Scenario(faults=faults, **settings)
        files = [file for file in gpu_sim.files(scenario, self._libraries) if "/systemd/" not in file.path]
        files += cloud_init(scenario)
        self._install(files)
        self.run("ldconfig; " + vm.script(vm.show_kernel()))
        self._shown = True
        return scenario

    def remove(self) -> None:
        """Takes the GPUs away; what hung there is ended."""
        if self._shown:
            self.run(
                f"{vm.end_hung()[0]}; "
                "sed 's#^#/#' /run/installed | xargs -r rm -f; "
                f"rm -rf /run/gpu-sim; ldconfig; {'; '.join(vm.hide_kernel())}"
            )
        self._shown = False

    def _install(self, files: list[Any]) -> None:
        packed = io.BytesIO()
        names = []
        files = files + [
            gpu_sim.File(f"/usr/local/bin/{name}", f"#!/bin/sh\n{text}\n".encode(), 0o755)
            for name, text in STAND_INS.items()
        ]
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for file in files:
                member = tarfile.TarInfo(file.path.lstrip("/"))
                names.append(member.name)
                if file.link is not None:
                    member.type, member.linkname = tarfile.SYMTYPE, file.link
                    archive.addfile(member)
                else:
                    member.size, member.mode = len(file.content), file.mode
                    archive.addfile(member, io.BytesIO(file.content))
        self.run("tar -C / --no-same-owner -xf -", input=packed.getvalue())
        self.run("cat >/run/installed", input="".join(f"{name}\n" for name in names).encode())


def quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@contextlib.contextmanager
def node(folder: Path, *, cache: Path, libraries: Mapping[str, Path]) -> Iterator[Node]:
    """Starts the machine; it is gone at the end."""
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    target = ChrootTarget(folder / "machines", cache=cache)
    try:
        boot = Boot(
            instance_id=ID,
            image_id="none",
            image=target.source,
            address=ADDRESS,
            region="here",
            zone="here",
            instance_type="bare",
            public_keys=(key.with_suffix(".pub").read_text().strip(),),
        )
        target.start(boot)
        known = folder / "known_hosts"
        deadline = time.monotonic() + 60
        while not (keys := console.host_keys(target.console(ID))) or not _answers():
            assert time.monotonic() < deadline, target.console(ID)
            time.sleep(0.1)  # a booting machine signals nobody; until the deadline
        known.write_text(console.known_hosts(keys, host=ADDRESS, port=22))
        made = Node(folder, target, libraries)
        lines = "User admin", f"UserKnownHostsFile {known}", f"IdentityFile {key}", "IdentitiesOnly yes"
        made.ssh_config.write_text("Host *\n" + "".join(f"  {line}\n" for line in lines))
        yield made
    finally:
        target.close()


def _answers() -> bool:
    try:
        with socket.create_connection((ADDRESS, 22), timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
