"""The list of what must not be on a captured disk: a clean tree, and one dirt for every finder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from validation.gate.hygiene import FINDERS, Build, Missing

BUILD = Build("packer", "build-3fa9-canary", ("canary-0123", "/tmp/of-the-build"))

CLEAN = {
    "etc/machine-id": "",
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n",
    "etc/fstab": "# swap was here\nUUID=1 / ext4 rw 0 1\n",
    "etc/resolv.conf": "",
    "etc/sudoers.d/README": "# The user packer is nobody.\n",
    "etc/apt/apt.conf.d/90-gpu-image": '// Acquire::http::Proxy "http://nobody";\nAcquire::Retries "3";\n',
    "var/log/wtmp": "",
    "var/log/apt/history.log": "",
    "var/lib/apt/lists/lock": "",
    "var/cache/apt/archives/lock": "",
    "root/.bashrc": "alias ll='ls -l'\n",
    "boot/grub/grub.cfg": "set timeout=0\n",
    "home/.keep": "",
}

#: What each finder must find, one at a time: path and content.
DIRT = {
    "hygiene.machine_id": [
        ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
        ("etc/machine-id", None),
        ("var/lib/dbus/machine-id", "0123456789abcdef0123456789abcdef\n"),
    ],
    "hygiene.host_keys": [("etc/ssh/ssh_host_ed25519_key", "k"), ("etc/ssh/ssh_host_rsa_key.pub", "k")],
    "hygiene.authorized_keys": [
        ("root/.ssh/authorized_keys", "ssh-ed25519 AAAA"),
        ("home/ubuntu/.ssh/authorized_keys", "ssh-ed25519 AAAA"),
    ],
    "hygiene.build_user": [
        ("etc/passwd", "root:x:0:0::/root:/bin/sh\npacker:x:1000:1000::/home/packer:/bin/bash\n"),
        ("etc/shadow-", "packer:!:20000::::::\n"),
        ("etc/subuid", "packer:100000:65536\n"),
        ("etc/sudoers.d/90-cloud-init-users", "# nothing in it\n"),
        ("etc/sudoers.d/waagent", "packer ALL=(ALL) NOPASSWD:ALL\n"),
        ("home/packer/.profile", ""),
        ("var/mail/packer", ""),
    ],
    "hygiene.package_manager": [
        ("var/lib/apt/lists/archive_dists_trixie_InRelease", "x"),
        ("var/cache/apt/archives/zstd_1_amd64.deb", "x"),
        ("etc/apt/apt.conf.d/99proxy", 'Acquire::http::Proxy "http://proxy:3128";\n'),
        ("etc/environment", "PATH=/bin\nhttp_proxy=http://proxy:3128\n"),
    ],
    "hygiene.build_files": [
        ("etc/dpkg/dpkg.cfg.d/gpu-image-build", "force-unsafe-io\n"),
        ("etc/apt/sources.list.d/debian.sources.gpu-image-build", "x"),
        ("etc/apt/apt.conf.d/99-gpu-image-build-proxy", "x"),
        ("boot/grub/grub.cfg.gpu-image-build", "x"),
        ("root/.ansible/tmp/x", ""),
        ("home/packer/.ansible/tmp/x", ""),
        ("var/tmp/ansible-tmp-1/x", ""),
    ],
    "hygiene.logs": [
        ("var/log/cloud-init.log", "x"),
        ("var/log/journal/0123/system.journal", "x"),
        ("var/log/apt/term.log", "x"),
    ],
    "hygiene.cloud_init": [
        ("var/lib/cloud/instance/boot-finished", ""),
        ("etc/cloud/cloud-init.disabled", ""),
        ("etc/cloud/ds-identify.cfg", ""),
        ("etc/cloud/cloud.cfg.d/99-installer.cfg", ""),
        ("etc/cloud/cloud.cfg.d/curtin-preserve-sources.cfg", ""),
    ],
    "hygiene.network": [
        ("etc/netplan/50-cloud-init.yaml", ""),
        ("etc/systemd/network/10-cloud-init-eth0.network", ""),
        ("etc/network/interfaces.d/50-cloud-init", ""),
        ("etc/udev/rules.d/70-persistent-net.rules", ""),
        ("var/lib/dhcp/dhclient.eth0.leases", ""),
        ("etc/resolv.conf", "nameserver 10.0.2.3\n"),
    ],
    "hygiene.secrets": [
        ("var/lib/systemd/random-seed", "x"),
        ("var/lib/systemd/credential.secret", "x"),
        ("boot/efi/loader/random-seed", "x"),
        ("var/lib/dkms/mok.key", "x"),
        ("root/.ssh/id_ed25519", "x"),
    ],
    "hygiene.histories": [
        ("root/.bash_history", "x"),
        ("root/.viminfo", "x"),
        ("home/ubuntu/.python_history", "x"),
        ("root/.cache/x", ""),
    ],
    "hygiene.temporary": [
        ("var/tmp/left", "x"),
        ("var/crash/_usr_bin_x.crash", "x"),
        ("var/lib/systemd/coredump/core.x", "x"),
    ],
    "hygiene.backups": [
        ("etc/shadow-", "root:*:20000::::::\n"),
        ("var/lib/dpkg/status-old", "x"),
        ("var/backups/dpkg.status.0", "x"),
        ("var/cache/debconf/config.dat-old", "x"),
    ],
    "hygiene.swap": [("etc/fstab", "UUID=1 / ext4 rw 0 1\n/swap.img none swap sw 0 0\n")],
    "hygiene.traces": [
        ("etc/hosts", "127.0.1.1 build-3fa9-canary\n"),
        ("var/lib/x/state.bin", "\0\0canary-0123\0"),
        ("root/notes", "/tmp/of-the-build/key\n"),
        ("boot/x", "build-3fa9-canary"),
    ],
}


def write(root: Path, path: str, content: str | None) -> None:
    file = root / path
    if content is None:
        file.unlink()
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    root = tmp_path / "disk"
    for path, content in CLEAN.items():
        write(root, path, content)
    return root


@pytest.mark.parametrize("id", FINDERS)
def test_a_clean_disk_is_clean(disk: Path, id: str) -> None:
    assert FINDERS[id](disk, BUILD) == []


@pytest.mark.parametrize(
    ("id", "path", "content"),
    [pytest.param(id, *dirt, id=f"{id}:{dirt[0]}") for id, dirts in DIRT.items() for dirt in dirts],
)
def test_dirt_is_found(disk: Path, id: str, path: str, content: str | None) -> None:
    write(disk, path, content)
    found = FINDERS[id](disk, BUILD)
    assert found
    assert any(part in line for line in found for part in Path(path).parts[1:])


@pytest.mark.parametrize("id", FINDERS)
def test_what_was_not_extracted_is_not_clean(disk: Path, id: str) -> None:
    shutil.rmtree(disk)
    disk.mkdir()
    with pytest.raises(Missing):
        FINDERS[id](disk, BUILD)


def test_nothing_outside_the_disk_is_looked_at(disk: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("canary-0123")
    (disk / "etc/link").symlink_to(tmp_path / "outside")
    (disk / "etc/folder").symlink_to(tmp_path)
    assert FINDERS["hygiene.traces"](disk, BUILD) == []
