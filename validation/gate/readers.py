"""Pure readers of what the probes print. ``ValueError`` means: this is not what that command prints."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: Packages that bring a kernel or its parts, on Debian and Ubuntu. Metas such as ``linux-aws`` count.
KERNEL_PACKAGE = re.compile(
    r"linux-(image|headers|modules|objects|signatures)-.+"
    r"|linux-(generic|virtual|kvm|aws|azure|gcp|oracle|lowlatency|oem)(-[a-z0-9.-]+)?"
)

#: Services that keep the clock, one of which is enough.
TIME_SERVICES = (
    "systemd-timesyncd.service",
    "chrony.service",
    "chronyd.service",
    "ntpsec.service",
    "ntp.service",
    "ntpd.service",
)


class Package(NamedTuple):
    """A line of dpkg's list; ``status`` is its abbreviation: ``ii`` installed as wanted, ``hi`` held."""

    version: str
    status: str

    @property
    def held(self) -> bool:
        """Whether it is on hold, as ``apt-mark hold`` sets it."""
        return self.status.startswith("h")

    @property
    def installed(self) -> bool:
        """Whether it is wholly installed; ``rc`` (removed, configuration left) is not."""
        return self.status[1:2] == "i"


def packages(text: str) -> dict[str, Package]:
    """The probe ``packages``: what dpkg knows, by name, without what is not installed at all."""
    found = {}
    for line in text.splitlines():
        name, version, status = line.split("\t")
        if status.strip()[1:2] != "n":
            found[name] = Package(version, status.strip())
    if not found:
        raise ValueError("dpkg lists no packages")
    return found


def foreign_kernels(names: Iterable[str], files: str, *, release: str, own: Iterable[str]) -> list[str]:
    """Packages among ``names``, and paths in ``files``, that belong to another kernel than ``release``.

    ``own`` are the locked packages. Modules and headers of the locked kernel are its own too.
    """
    abi = re.sub(r"-[a-z].*$", "", release)
    mine = re.compile(rf"(-{re.escape(release)}|-headers-{re.escape(abi)}(-common)?)$")
    found = [
        name
        for name in names
        if KERNEL_PACKAGE.fullmatch(name) and name not in set(own) and not mine.search(name)
    ]
    for path in files.split():
        name = path.rpartition("/")[2]
        if not re.fullmatch(rf"((vmlinuz|initrd\.img)-)?{re.escape(release)}", name):
            found.append(path)
    return sorted(found)


def grub_variables(env: str) -> dict[str, str]:
    """A GRUB environment block: ``name=value`` lines, padded with ``#``."""
    lines = [line for line in env.splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


class Entry(NamedTuple):
    """A menu entry: all names it can be chosen by, and the kernel's path (None: it starts no kernel)."""

    names: tuple[str, ...]
    kernel: str | None
    children: tuple[Entry, ...] = ()


def grub_default(cfg: str, env: str) -> str:
    """The kernel release that GRUB boots by default, from ``grub.cfg`` and its environment block.

    Follows https://www.gnu.org/software/grub/manual/grub/html_node/default.html: a number, a title or an
    id, ``>`` between levels; ``saved_entry`` and ``next_entry`` from the environment.
    """
    variables = grub_variables(env)
    chosen = variables.get("next_entry", "")
    if not chosen:
        # The last assignment outside of `if [ "${next_entry}" ]`: grub-mkconfig writes it in the else.
        values = re.findall(r"^\s*set default=\"?([^\"\n]*)\"?$", cfg, re.MULTILINE)
        values = [value for value in values if value != "${next_entry}"]
        chosen = values[-1] if values else "0"
        if chosen == "${saved_entry}":
            chosen = variables.get("saved_entry", "") or "0"
    entries = grub_entries(cfg)
    entry: Entry | None = None
    for part in chosen.split(">"):
        entry = _choose(entries, part)
        entries = entry.children
    while entry and entry.children:
        entry = entry.children[0]
    if not entry or not entry.kernel:
        raise ValueError(f"the default entry {chosen!r} starts no kernel")
    return entry.kernel.rpartition("/")[2].removeprefix("vmlinuz-")


def _choose(entries: tuple[Entry, ...], name: str) -> Entry:
    if name.isdigit() and int(name) < len(entries):
        return entries[int(name)]
    for entry in entries:
        if name in entry.names:
            return entry
    if not entries:
        raise ValueError("grub.cfg has no menu entries")
    return entries[0]  # as GRUB does with a name it does not find


def grub_entries(cfg: str) -> tuple[Entry, ...]:
    """The menu of a ``grub.cfg``, in order, submenus inside."""
    entries, _ = _entries(iter(cfg.splitlines()))
    return entries


def _entries(lines: Any) -> tuple[tuple[Entry, ...], str | None]:
    """Entries up to the ``}`` of this level, and the first kernel that is loaded at this level."""
    entries: list[Entry] = []
    kernel = None
    depth = 0
    for line in lines:
        text = line.strip()
        if re.match(r"(menuentry|submenu)\s", text) and text.endswith("{"):
            children, its_kernel = _entries(lines)
            entries.append(Entry(_names(text), its_kernel, children))
        elif text == "}":
            if depth == 0:
                return tuple(entries), kernel
            depth -= 1
        elif text.endswith("{"):
            depth += 1
        elif not kernel and (match := re.match(r"linux(?:16|efi)?\s+(\S+)", text)):
            kernel = match[1]
    return tuple(entries), kernel


def _names(text: str) -> tuple[str, ...]:
    words = shlex.split(text)
    names = [words[1]]
    for option in ("$menuentry_id_option", "--id"):
        if option in words:
            names.append(words[words.index(option) + 1])
    return tuple(names)


def grub_timeouts(cfg: str) -> list[int]:
    """All values that ``timeout`` can get; an empty menu pause is 0 everywhere."""
    return [int(value) for value in re.findall(r"^\s*set timeout=\"?(-?\d+)\"?$", cfg, re.MULTILINE)]


def simulated(text: str) -> dict[str, set[str]]:
    """``apt-get --simulate``: names of packages by what would be done: ``Inst``, ``Remv``."""
    done: dict[str, set[str]] = {"Inst": set(), "Remv": set()}
    for action, name in re.findall(r"^(Inst|Remv) (\S+)", text, re.MULTILINE):
        done[action].add(name)
    return done


def apt_config(text: str) -> dict[str, str]:
    """``apt-config dump``: the last value of every name that has one."""
    return dict(re.findall(r"^(\S+) \"(.*)\";$", text, re.MULTILINE))


class Unit(NamedTuple):
    """A line of ``systemctl list-units``."""

    load: str
    active: str
    sub: str


def units(text: str) -> dict[str, Unit]:
    """``systemctl list-units --plain --no-legend``, by unit name."""
    found = {}
    for line in text.splitlines():
        words = line.split(None, 4)
        if len(words) < 4 or "." not in words[0]:
            raise ValueError(f"not a line of systemctl list-units: {line[:80]!r}")
        found[words[0]] = Unit(*words[1:4])
    if not found:
        raise ValueError("systemctl lists no units")
    return found


def cloud_init(text: str) -> tuple[bool, list[str]]:
    """cloud-init's ``status.json``: whether the last stage is finished, and all that went wrong.

    Deprecations and warnings that it recovered from do not count.
    """
    document = json.loads(text)["v1"]
    stages = {
        name: stage for name, stage in document.items() if isinstance(stage, dict) and "errors" in stage
    }
    wrong = [f"{name}: {error}" for name, stage in stages.items() for error in stage["errors"]]
    for name, stage in stages.items():
        for severity in ("ERROR", "CRITICAL"):
            wrong += [f"{name}: {error}" for error in stage.get("recoverable_errors", {}).get(severity, [])]
    final = stages.get("modules-final", {})
    return document.get("stage") is None and bool(final.get("finished")), wrong


def os_release(text: str) -> dict[str, str]:
    """``/etc/os-release``: https://www.freedesktop.org/software/systemd/man/os-release.html."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {name: "".join(shlex.split(value)) for name, value in pairs}


def swap_areas(swaps: str, fstab: str) -> list[str]:
    """Swap in use (``/proc/swaps``) and swap that the next boot would use (``/etc/fstab``)."""
    found = [line.split()[0] for line in swaps.splitlines()[1:] if line.strip()]
    for line in fstab.splitlines():
        words = line.split()
        if len(words) > 2 and not words[0].startswith("#") and words[2] == "swap":
            found.append(f"{words[0]} in fstab")
    return found


def serial_consoles(text: str) -> list[str]:
    """Serial ports that the kernel's console is on, from ``/proc/consoles``: those that are enabled (E)."""
    return re.findall(r"^(tty(?:S|AMA|HVC)\d+|hvc\d+)\s+\S+ \([^)]*E[^)]*\)", text, re.MULTILINE)


class Space(NamedTuple):
    """Size of the root file system and what root may still use, bytes."""

    size: int
    free: int


def space(text: str) -> Space:
    """``stat -f -c '%S %b %a'``."""
    block, blocks, available = map(int, text.split())
    return Space(block * blocks, block * available)


def ungrown(text: str, file_system: int, disk_bytes: int) -> str | None:
    """Why the root file system does not fill a disk of ``disk_bytes``; None when it does.

    ``text`` is the probe ``root_device``, in sectors of 512 bytes; ``file_system`` its size as statvfs has
    it, so without ext4's own tables and journal (3.6 % of a 4 GiB disk).
    """
    values = {name: int(value) * 512 for name, value in map(str.split, text.splitlines())}
    if values["disk"] != disk_bytes:
        return f"the disk has {values['disk']} bytes, not {disk_bytes}"
    behind = values["disk"] - values["start"] - values["size"]
    if behind > 64 * 1024**2:
        return f"{behind >> 20} MiB behind the root partition are not used"
    if file_system < values["size"] * 0.93:
        return f"the file system has {file_system >> 20} MiB of the partition's {values['size'] >> 20} MiB"
    return None


class File(NamedTuple):
    """A file of the bundle: four octal digits, SHA-256 in hex (empty: no regular file)."""

    mode: str
    sha256: str


def bundle(text: str) -> dict[str, File]:
    """The probe ``bundle``, by path."""
    modes = dict((path, mode) for mode, path in re.findall(r"^mode (\d+) (/.*)$", text, re.MULTILINE))
    sums = dict(
        (path, digest) for digest, path in re.findall(r"^([0-9a-f]{64})  (/.*)$", text, re.MULTILINE)
    )
    return {path: File(mode.zfill(4), sums.get(path, "")) for path, mode in modes.items()}


def bundle_digest(files: Mapping[str, File]) -> str:
    """``sha256:...`` over the sorted lines ``MODE SHA256 PATH``: the identity of a bundle."""
    lines = sorted(f"{file.mode} {file.sha256} {path}\n" for path, file in files.items())
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def account_names(passwd: str) -> set[str]:
    """The names in a passwd, shadow, group or gshadow file, or in what ``getent passwd`` prints."""
    return {line.split(":", 1)[0] for line in passwd.splitlines() if ":" in line}
