"""Asks a distribution's archive for exact versions, for any architecture and from any Debian or Ubuntu.

apt itself decides, with the target's sources and architecture below a scratch folder (mmdebstrap sets that
up). Nothing is installed or executed in the target, so a foreign architecture needs no emulation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images import mmdebstrap
from images.errors import UserError

SPEC_HINT = "check kernel_package, kernel.release and packages in the spec"


@dataclass(frozen=True)
class Distribution:
    """A distribution's archive. ``mirror`` is the public default (``ports_mirror``: of all but amd64),
    ``pockets`` what stands beside a suite; all are empty where mmdebstrap's own default serves."""

    keyring: Path
    keyring_package: str
    keyring_hint: str
    mirror: str = ""
    ports_mirror: str = ""
    pockets: tuple[str, ...] = ()


#: Keyrings have the same path and package name on Debian and on Ubuntu. Ubuntu's mirrors are those of
#: mmdebstrap, yet not left to it: a suite that its lists are too old for it seeks on Debian's.
DISTRIBUTIONS: Mapping[str, Distribution] = {
    "debian": Distribution(
        keyring=Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
        keyring_package="debian-archive-keyring",
        keyring_hint="apt install debian-archive-keyring",
    ),
    "ubuntu": Distribution(
        keyring=Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
        keyring_package="ubuntu-keyring",
        keyring_hint="apt install ubuntu-keyring; Debian 12 has none: there install Debian 13's with dpkg",
        mirror="http://archive.ubuntu.com/ubuntu",
        ports_mirror="http://ports.ubuntu.com/ubuntu-ports",
        pockets=("-updates", "-security"),
    ),
}


@dataclass(frozen=True)
class Package:
    """One package as the archive has it: ``file`` is the path below the archive's root, ``size`` bytes."""

    name: str
    version: str
    sha256: str
    size: int
    file: str


@dataclass(frozen=True)
class Index:
    """An archive index as it was seen: ``suite`` by the name it was asked for, ``date`` as the archive
    writes it, ``sha256`` of its InRelease file."""

    suite: str
    date: str
    sha256: str


@dataclass(frozen=True)
class Resolved:
    """What the archive has now."""

    packages: tuple[Package, ...]
    indexes: tuple[Index, ...]


def resolve(
    *,
    distribution: str,
    suite: str,
    arch: str,
    kernel_package: str,
    release: str | None = None,
    packages: Sequence[str] = (),
    components: Sequence[str] = ("main",),
    mirror: str | None = None,
    keyring: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Resolved:
    """The candidate versions of ``kernel_package``, of the kernel's packages that it pulls in (image,
    modules, headers; ``kernel_of`` chooses among them), and of ``packages``.

    ``release`` is a pinned ABI: its packages are asked for as well. A name in ``packages`` may carry a
    version (``name=version``). ``mirror`` replaces the distribution's default (but not Debian's security
    archive, which has a mirror of its own), ``keyring`` its keyring, which every user must be able to read.
    Nothing is installed; takes some 7 s. Raises ``UserError`` when the archive cannot be reached or trusted,
    or has no such suite, architecture or package.
    """
    archive = DISTRIBUTIONS[distribution]
    if not (keyring or archive.keyring).is_file():
        raise UserError(
            f"the keyring of {distribution}'s archive is not installed: {keyring or archive.keyring}",
            hint=None if keyring else archive.keyring_hint,
        )
    pinned = [f"linux-image-{release}"] if release else []
    wanted = [kernel_package, *pinned, *packages]
    with mmdebstrap.scratch_folder(None) as scratch:
        output = mmdebstrap.call(
            [
                "--variant=custom",
                "--format=null",
                f"--architectures={arch}",
                "--skip=check/qemu,check/signed-by",
                f"--keyring={keyring or archive.keyring}",
                f"--components={','.join(components)}",
                *([f"--setup-hook={MIRROR_HOOK}"] if mirror and not archive.mirror else []),
                f"--customize-hook={RESOLVE_HOOK}",
                suite,
                "-",
                *sources(archive, suite=suite, arch=arch, components=components, mirror=mirror),
            ],
            env={
                "PACKAGES": " ".join(wanted),
                "KERNEL_RELEASE": release or "",
                "MIRROR": (mirror or "").rstrip("/"),
            },
            scratch=scratch,
            note=note,
            hint=SPEC_HINT,
        )
    resolved = Resolved(read_packages(output), read_indexes(output))
    found = {package.name for package in resolved.packages}
    if missing := [name for name in wanted if name.split("=")[0] not in found]:
        raise UserError(f"the archive has no package {', '.join(missing)}", hint=SPEC_HINT)
    return resolved


def sources(
    archive: Distribution, *, suite: str, arch: str, components: Sequence[str], mirror: str | None
) -> list[str]:
    """apt's source lines; none where mmdebstrap's own default serves."""
    if not archive.mirror:
        return []
    url = mirror or (archive.mirror if arch == "amd64" else archive.ports_mirror)
    return [
        f"deb {url.rstrip('/')} {suite}{pocket} {' '.join(components)}" for pocket in ("", *archive.pockets)
    ]


#: The same replacement as in the image (``roles/site/tasks/apt.yml``), so that both see the same archive.
MIRROR_HOOK = r"""sed -i "s|[a-z+]*:[^ ]*/debian/* |$MIRROR |" "$1/etc/apt/sources.list"
"""

#: A pinned kernel needs linux-modules-extra where the flavour's newest has it: only then it is asked for.
RESOLVE_HOOK = r"""set -eu
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
simulate() {
    apt-get --simulate --no-install-recommends install $PACKAGES >"$1" || { cat "$1"; exit 1; }
}
simulate "$1/simulated"
if [ "$KERNEL_RELEASE" ]; then
    extra=$(sed -n 's/^Inst linux-modules-extra-[0-9].*/linux-modules-extra-/p' "$1/simulated" | uniq)
    PACKAGES="$PACKAGES${extra:+ $extra$KERNEL_RELEASE}"
    simulate "$1/simulated"
fi
name='linux-\([^ ]*-\)\?\(image\|modules\|headers\)-[^ ]*'
kernel=$(sed -n "s/^Inst \($name\) (\([^ ]*\) .*/\1=\4/p" "$1/simulated")
apt-cache show --no-all-versions $PACKAGES $kernel | sed 's/^/@package /'
for index in "$1"/var/lib/apt/lists/*InRelease; do
    sha256sum <"$index" | sed 's/ .*//; s/^/@index Digest: /'
    echo "$index" | sed 's/.*_dists_\(.*\)_InRelease/@index Suite: \1/'
    sed -n '/^Date: /s/^/@index /p; /^SHA256:/q' "$index"
done
"""


def read_packages(output: str) -> tuple[Package, ...]:
    """The stanzas of ``apt-cache show`` (lines marked ``@package``), each package once, sorted by name."""
    lines = [line[9:].lstrip() for line in output.splitlines() if line.startswith("@package")]
    found: dict[str, Package] = {}
    for stanza in "\n".join(lines).split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
        if "Package" in fields:
            found[fields["Package"]] = Package(
                name=fields["Package"],
                version=fields["Version"],
                sha256=fields["SHA256"],
                size=int(fields["Size"]),
                file=fields["Filename"],
            )
    return tuple(found[name] for name in sorted(found))


def read_indexes(output: str) -> tuple[Index, ...]:
    """The indexes (lines marked ``@index``: digest, suite, date), sorted by suite."""
    indexes: list[dict[str, str]] = []
    for line in output.splitlines():
        if line.startswith("@index "):
            key, value = line[7:].split(": ", 1)
            if key == "Digest":
                indexes.append({})
            indexes[-1][key] = value
    return tuple(
        sorted(
            (Index(index["Suite"], index["Date"], index["Digest"]) for index in indexes),
            key=lambda index: index.suite,
        )
    )


def kernel_of(
    resolved: Resolved, kernel_package: str, *, series: str, release: str | None = None, where: str = ""
) -> tuple[str, tuple[Package, ...]]:
    """The kernel that ``kernel_package`` stands for, as ``uname -r`` prints it, and the packages to lock.

    Those are the image and, on Ubuntu, the modules of one ABI, and the meta packages. All metas that came
    along: one that is not locked would not be held either. With a pinned ``release`` there are none: they
    would bring another kernel. Versioned headers are not the kernel's. ``where`` is the place of
    ``kernel.series`` in the spec, for the message. Raises ``UserError`` for none or several kernels, and for
    one of another ``series``.
    """
    parts: dict[str, list[Package]] = {}
    metas = []
    for package in resolved.packages:
        if part := re.fullmatch(r"linux-(image|modules|modules-extra)-(\d.*)", package.name):
            parts.setdefault(part[2], []).append(package)
        elif package.name == kernel_package or re.fullmatch(
            r"linux-(image|modules|modules-extra|headers)-[^\d].*", package.name
        ):
            metas.append(package)
    releases = [
        name
        for name, packages in parts.items()
        if release in (None, name) and any(package.name == f"linux-image-{name}" for package in packages)
    ]
    if len(releases) != 1:
        names = ", ".join(sorted(parts)) or "it pulls in none"
        raise UserError(
            f"{kernel_package} does not stand for one kernel: {names}",
            hint="kernel_package is a flavour's meta package; kernel.release pins one of several kernels",
        )
    found = releases[0]
    if not found.startswith(series + "."):
        raise UserError(
            f"{where + ': ' if where else ''}the spec asks for kernel {series}; "
            f"the archive's {kernel_package} is {found}",
            hint="change kernel.series, or the kernel_package of the cloud",
        )
    chosen = parts[found] + ([] if release else metas)
    return found, tuple(sorted(chosen, key=lambda package: package.name))
