"""The files of a package, from the lines of its ``Files`` field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from images.errors import UserError
from tests.apt_fixture.catalog import FILES, Entry, Package, Repository, substitute
from tests.apt_fixture.libraries import MULTIARCH, STUB, Libraries

#: MODULE_LICENSE by flavour, as in Debian's nvidia-kernel-dkms and nvidia-open-kernel-dkms 550.163.01.
LICENSES = {
    "open": {
        "nvidia": "Dual MIT/GPL",
        "modeset": "Dual MIT/GPL",
        "drm": "Dual MIT/GPL",
        "uvm": "Dual MIT/GPL",
        "peermem": "Dual BSD/GPL",
    },
    "proprietary": {
        "nvidia": "NVIDIA",
        "modeset": "NVIDIA",
        "drm": "MIT",
        "uvm": "Dual MIT/GPL",
        "peermem": "Linux-OpenIB",
    },
}
#: Gone from the kernel with 5.6: what a driver that is too old for its kernel fails with.
UNDECLARED = "\tif (!ioremap_nocache(0, 0))\n\t\treturn -ENOMEM;\n"


@dataclass(frozen=True)
class File:
    """One file of a package; ``link`` is where a symbolic link leads."""

    path: str
    content: bytes = b""
    mode: int = 0o644
    link: str | None = None


@dataclass
class Tree:
    """What goes into a .deb: ``data`` is installed, ``control`` are the maintainer scripts."""

    data: list[File] = field(default_factory=list)
    control: list[File] = field(default_factory=list)


@dataclass(frozen=True)
class Context:
    """What contents depend on beside the package; ``compiles`` and ``site`` as in ``build.Options``."""

    libraries: Libraries
    keyring: bytes
    compiles: bool
    site: str
    date: str


def tree(package: Package, arch: str, repository: Repository, context: Context) -> Tree:
    """The contents of ``package`` for ``arch`` (or ``all``); ``UserError`` with the line at fault."""
    variables = {
        **package.variables,
        "arch": arch,
        "multiarch": MULTIARCH.get(arch, ""),
        "folder": repository.folder,
        "path": repository.path,
        "site": context.site,
        "source": package.fields.get("Source", package.name),
        "date": context.date,
    }
    made = Tree()
    doc = f"/usr/share/doc/{package.name}"
    made.data.append(_file(f"{doc}/changelog.Debian", "etc/changelog", variables, package.place))
    for entry in package.entries:
        own = {key: substitute(text, variables, entry.place) for key, text in entry.variables.items()}
        local = {**variables, **own}
        operands = tuple(substitute(word, local, entry.place) for word in entry.operands)
        if entry.verb == "script":
            made.control.append(_file(operands[0], operands[2], local, entry.place, operands[1]))
        else:
            made.data.extend(VERBS[entry.verb](entry, operands, local, context))
    if any(entry.verb == "lib" for entry in package.entries):
        made.control.append(File("triggers", b"activate-noawait ldconfig\n"))
    configured = "".join(f"{file.path}\n" for file in made.data if file.path.startswith("/etc/"))
    if configured:
        made.control.append(File("conffiles", configured.encode()))
    return made


def _file(path: str, template: str, variables: Mapping[str, str], place: str, mode: str = "0644") -> File:
    source = FILES / template
    if not source.is_file():
        raise UserError(f"{place}: no file {template} below files/")
    try:
        bits = int(mode, 8)
    except ValueError:
        raise UserError(f"{place}: {mode} is no mode (0755)") from None
    return File(path, substitute(source.read_text(), variables, place).encode(), bits)


def _plain(
    entry: Entry, operands: tuple[str, ...], variables: Mapping[str, str], _: Context
) -> Iterator[File]:
    yield _file(operands[0], operands[2], variables, entry.place, operands[1])


def _link(
    entry: Entry, operands: tuple[str, ...], variables: Mapping[str, str], _: Context
) -> Iterator[File]:
    yield File(operands[0], link=operands[1])


def _unit(
    entry: Entry, operands: tuple[str, ...], variables: Mapping[str, str], _: Context
) -> Iterator[File]:
    name = operands[0]
    yield _file(f"/usr/lib/systemd/system/{name}", f"units/{name}", variables, entry.place)


def _keyring(
    entry: Entry, operands: tuple[str, ...], variables: Mapping[str, str], context: Context
) -> Iterator[File]:
    yield File(operands[0], context.keyring)


def _library(
    entry: Entry, operands: tuple[str, ...], variables: Mapping[str, str], context: Context
) -> Iterator[File]:
    """The library under its version, and the link that its SONAME is: none where the two are one."""
    soname, source = operands[0], operands[1] if len(operands) > 1 else STUB
    if variables["arch"] == "all":
        raise UserError(f"{entry.place}: a library in a package for all architectures")
    stem = soname.partition(".so")[0]
    name = f"{stem}.so.{variables['upstream']}"
    folder = f"/usr/lib/{variables['multiarch']}"
    content = context.libraries.get(
        soname if soname != f"{stem}.so" else name,
        source,
        arch=variables["arch"],
        variables=variables,
        place=entry.place,
    )
    yield File(f"{folder}/{name}", content)
    if soname != f"{stem}.so":
        yield File(f"{folder}/{soname}", link=name)


def _modules(
    entry: Entry, operands: tuple[str, ...], variables: Mapping[str, str], context: Context
) -> Iterator[File]:
    """The source of the kernel modules, of one flavour."""
    flavour = variables.get("flavour", "")
    if flavour not in LICENSES:
        raise UserError(f"{entry.place}: flavour={flavour} is none of {', '.join(LICENSES)}")
    licenses = {f"license_{module}": name for module, name in LICENSES[flavour].items()}
    filled = {**variables, **licenses, "broken": "" if context.compiles else UNDECLARED}
    for source in sorted((FILES / "modules/tree").rglob("*")):
        if source.is_file():
            place = source.relative_to(FILES / "modules/tree")
            yield _file(f"{operands[0]}/{place}", f"modules/tree/{place}", filled, entry.place)


VERBS: Mapping[str, Callable[[Entry, tuple[str, ...], Mapping[str, str], Context], Iterator[File]]] = {
    "file": _plain,
    "lib": _library,
    "link": _link,
    "unit": _unit,
    "modules": _modules,
    "keyring": _keyring,
}


def write(made: Tree, folder: Path) -> None:
    """Writes the tree as dpkg-deb wants it: data below ``folder``, scripts in its DEBIAN."""
    files = [(file, file.path.lstrip("/")) for file in made.data]
    files += [(file, f"DEBIAN/{file.path}") for file in made.control]
    for file, place in files:
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.link is not None:
            target.symlink_to(file.link)
        else:
            target.write_bytes(file.content)
            target.chmod(file.mode)
