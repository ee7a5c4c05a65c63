"""What must not be in an image: pure functions from a tree of extracted files to findings.

The tree has the captured disk's ``/etc``, ``/var``, ``/root``, ``/home`` and ``/boot``; nothing in it is
followed outside of it. A folder that is not there at all raises ``Missing``: what was not extracted is not
clean. Sources of the list: EKS cleanup.sh and validate.sh, azhpc-images clear_history.sh, image-builder's
sysprep and its goss-image-hygiene, machine-id(5), systemd-creds(1).
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from validation.gate.readers import account_names


class Missing(Exception):
    """A part of the disk that a finding depends on was not extracted."""


@dataclass(frozen=True)
class Build:
    """What the build machine was called and by whom it was used, and text that must not be anywhere."""

    user: str
    hostname: str
    forbidden: tuple[str, ...]


#: A proxy in apt's configuration or the environment, not in a comment.
PROXY = re.compile(r"(?im)^[^/#]*\b(acquire::\w+::proxy\s|https?_proxy=)")

Finder = Callable[[Path, Build], list[str]]


def part(root: Path, name: str) -> Path:
    """A top folder of the disk. Raises ``Missing``."""
    folder = root / name
    if not folder.is_dir():
        raise Missing(f"/{name} was not extracted from the disk")
    return folder


def existing(root: Path, *patterns: str) -> list[str]:
    """Paths on the disk that match glob patterns (relative to its root), as absolute paths of the disk."""
    found = []
    for pattern in patterns:
        part(root, pattern.split("/", 1)[0])
        found += [f"/{path.relative_to(root)}" for path in root.glob(pattern)]
    return sorted(found)


def files(root: Path, *names: str) -> Iterator[Path]:
    """All regular files below the top folders ``names``, links not followed."""
    for name in names:
        for folder, _, entries in os.walk(part(root, name)):
            for entry in entries:
                path = Path(folder, entry)
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path


def nonempty(paths: Iterable[Path], root: Path) -> list[str]:
    """Those files that have content."""
    return sorted(f"/{path.relative_to(root)}" for path in paths if path.lstat().st_size)


def machine_id(root: Path, build: Build) -> list[str]:
    """Empty or ``uninitialized``, but there: else clones share it, or systemd resets all presets."""
    path = part(root, "etc") / "machine-id"
    if not path.is_file():
        return ["/etc/machine-id is absent"]
    text = path.read_text(errors="replace").strip()
    found = [] if text in ("", "uninitialized") else [f"/etc/machine-id is {text}"]
    dbus = part(root, "var") / "lib/dbus/machine-id"
    if not dbus.is_symlink() and dbus.is_file() and dbus.read_text(errors="replace").strip():
        found.append("/var/lib/dbus/machine-id has an id of its own")
    return found


def host_keys(root: Path, build: Build) -> list[str]:
    """SSH host keys: every machine must make its own."""
    return existing(root, "etc/ssh/ssh_host_*")


def authorized_keys(root: Path, build: Build) -> list[str]:
    """Keys that may log in."""
    part(root, "root"), part(root, "home")
    found = [*root.glob("root/.ssh/authorized_keys*"), *root.glob("home/*/.ssh/authorized_keys*")]
    return nonempty(found, root)


def build_user(root: Path, build: Build) -> list[str]:
    """The build user: account, home, mail, and what lets it become root."""
    found = []
    for name in ("passwd", "shadow", "group", "gshadow", "subuid", "subgid"):
        for path in (part(root, "etc") / name, root / "etc" / f"{name}-"):
            if path.is_file() and build.user in account_names(path.read_text(errors="replace")):
                found.append(f"{build.user} in /etc/{path.name}")
    found += existing(root, f"home/{build.user}", f"var/mail/{build.user}", f"var/spool/mail/{build.user}")
    for path in sorted((root / "etc").glob("sudoers.d/*")):
        if path.is_file() and may_sudo(build.user, path.read_text(errors="replace")):
            found.append(f"{build.user} in /etc/sudoers.d/{path.name}")
    return found + existing(root, "etc/sudoers.d/90-cloud-init-users")


def may_sudo(user: str, sudoers: str) -> bool:
    """Whether a sudoers file has a rule for ``user``."""
    return re.search(rf"^\s*{re.escape(user)}\s", sudoers, re.MULTILINE) is not None


def package_manager(root: Path, build: Build) -> list[str]:
    """apt's lists and downloads, a proxy, and what the build set aside."""
    found = existing(root, "var/cache/apt/archives/*.deb", "var/cache/apt/archives/partial/*.deb")
    lists = [path for path in root.glob("var/lib/apt/lists/*") if path.name not in ("lock", "partial")]
    found += [f"/{path.relative_to(root)}" for path in lists]
    for path in [root / "etc/apt/apt.conf", *root.glob("etc/apt/apt.conf.d/*"), root / "etc/environment"]:
        if path.is_file() and PROXY.search(path.read_text(errors="replace")):
            found.append(f"a proxy in /{path.relative_to(root)}")
    return sorted(found)


def build_files(root: Path, build: Build) -> list[str]:
    """Files that serve only the build, and what Ansible leaves."""
    return existing(
        root,
        "etc/dpkg/dpkg.cfg.d/gpu-image-build",
        "etc/apt/**/*gpu-image-build*",
        "boot/grub/*gpu-image-build*",
        "root/.ansible",
        "home/*/.ansible",
        "var/tmp/ansible*",
    )


def logs(root: Path, build: Build) -> list[str]:
    """Logs with content, and the journal."""
    return nonempty(files(root, "var/log"), root)


def cloud_init(root: Path, build: Build) -> list[str]:
    """State that would make the next first boot believe it is the second, and what switches it off."""
    found = existing(root, "var/lib/cloud/*", "etc/cloud/cloud-init.disabled", "etc/cloud/ds-identify.cfg")
    return found + existing(root, "etc/cloud/cloud.cfg.d/*installer*", "etc/cloud/cloud.cfg.d/*curtin*")


def network(root: Path, build: Build) -> list[str]:
    """Names and addresses that a network gave to the build machine."""
    found = existing(
        root,
        "etc/netplan/*.yaml",
        "etc/network/interfaces.d/50-cloud-init*",
        "etc/systemd/network/*cloud-init*",
        "etc/udev/rules.d/70-persistent-net.rules",
        "var/lib/dhcp/*.leases*",
        "var/lib/dhcpcd/*.lease*",
        "var/lib/NetworkManager/*.lease",
    )
    resolv = root / "etc/resolv.conf"
    if resolv.is_file() and not resolv.is_symlink() and "nameserver" in resolv.read_text(errors="replace"):
        found.append("a name server in /etc/resolv.conf")
    return found


def secrets(root: Path, build: Build) -> list[str]:
    """Secrets that must differ between machines, or sign for all of them."""
    return existing(
        root,
        "var/lib/systemd/random-seed",
        "var/lib/systemd/credential.secret",
        "boot/efi/loader/random-seed",
        "var/lib/dkms/mok.*",
        "root/.ssh/id_*",
        "home/*/.ssh/id_*",
    )


def histories(root: Path, build: Build) -> list[str]:
    """What people and their tools remember."""
    names = [".*_history", ".lesshst", ".viminfo", ".wget-hsts", ".cache", ".netrc", ".git-credentials"]
    return existing(root, *(f"{home}/{name}" for home in ("root", "home/*") for name in names))


def temporary(root: Path, build: Build) -> list[str]:
    """Temporary files and crashes."""
    return existing(root, "var/tmp/*", "var/crash/*", "var/lib/systemd/coredump/*")


def backups(root: Path, build: Build) -> list[str]:
    """Old copies of account files and of the package manager's state."""
    accounts = [f"etc/{name}-" for name in ("passwd", "shadow", "group", "gshadow", "subuid", "subgid")]
    return existing(root, *accounts, "var/backups/*", "var/lib/dpkg/*-old", "var/cache/debconf/*-old")


def swap(root: Path, build: Build) -> list[str]:
    """Swap that the next boot would use."""
    fstab = part(root, "etc") / "fstab"
    lines = fstab.read_text(errors="replace").splitlines() if fstab.is_file() else []
    words = [line.split() for line in lines if not line.lstrip().startswith("#")]
    return [f"{line[0]} in /etc/fstab" for line in words if len(line) > 2 and line[2] == "swap"]


def traces(root: Path, build: Build) -> list[str]:
    """Files with the build machine's host name or other text that must not be anywhere."""
    wanted = {text for text in (build.hostname, *build.forbidden) if text}
    found = []
    for path in files(root, "etc", "var", "root", "home", "boot"):
        for text in contained(path, sorted(wanted)):
            found.append(f"{text!r} in /{path.relative_to(root)}")
    return sorted(found)


def contained(path: Path, texts: Sequence[str]) -> list[str]:
    """Those of ``texts`` that are somewhere in the file, as UTF-8."""
    if not path.lstat().st_size:
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return [text for text in texts if content.find(text.encode()) >= 0]


FINDERS: dict[str, Finder] = {
    "hygiene.machine_id": machine_id,
    "hygiene.host_keys": host_keys,
    "hygiene.authorized_keys": authorized_keys,
    "hygiene.build_user": build_user,
    "hygiene.package_manager": package_manager,
    "hygiene.build_files": build_files,
    "hygiene.logs": logs,
    "hygiene.cloud_init": cloud_init,
    "hygiene.network": network,
    "hygiene.secrets": secrets,
    "hygiene.histories": histories,
    "hygiene.temporary": temporary,
    "hygiene.backups": backups,
    "hygiene.swap": swap,
    "hygiene.traces": traces,
}
