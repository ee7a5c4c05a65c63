"""Reads ``data/*.control``: which packages the repositories have. README.md describes the format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from images.errors import UserError

HERE = Path(__file__).parent
DATA = HERE / "data"
FILES = HERE / "files"

#: Fields that go into a package's control file, in the order in which they stand there.
CONTROL = (
    *("Section", "Priority", "Source", "Multi-Arch", "Pre-Depends", "Depends", "Recommends", "Suggests"),
    *("Provides", "Conflicts", "Breaks", "Replaces"),
)
OURS = ("Package", "Versions", "Architecture", "Kind", "Files", "Description", "Evidence")
KINDS = ("package", "pinning", "keyring")
ENTRY = {"file": 3, "lib": 1, "link": 2, "unit": 1, "modules": 1, "script": 3, "keyring": 1}

Variables = Mapping[str, str]


@dataclass(frozen=True)
class Repository:
    """One flat repository: the set it belongs to, its folder below the root, architecture, Label."""

    name: str
    path: str
    arch: str
    label: str

    @property
    def folder(self) -> str:
        """The last folder, x86_64 or sbsa."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Entry:
    """A line of Files: what to make, its operands, and variables for the template."""

    verb: str
    operands: tuple[str, ...]
    variables: Variables
    place: str


@dataclass(frozen=True)
class Package:
    """One version of one package, for the architectures ``archs``; ``place`` is where it is written down."""

    name: str
    version: str
    repository: str
    archs: tuple[str, ...]
    fields: Mapping[str, str]
    description: str
    entries: tuple[Entry, ...]
    variables: Variables
    kind: str
    evidence: str
    place: str

    @property
    def upstream(self) -> str:
        """The version without epoch and revision."""
        return upstream(self.version)


@dataclass
class _Stanza:
    file: str
    line: int
    fields: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def place(self, name: str | None = None) -> str:
        return f"{self.file}:{self.lines.get(name or '', self.line)}"


@dataclass(frozen=True)
class _Version:
    full: str
    variables: Variables
    only: tuple[str, ...] = ()


def upstream(version: str) -> str:
    """``1:4.4.1-1`` -> ``4.4.1``."""
    return re.sub(r"^\d+:|-[^-]*$", "", version)


def substitute(text: str, variables: Variables, place: str) -> str:
    """Replaces ``${name}`` of letters, digits and _; what the shell or make has with other signs in it, and
    ``${kernelver}`` of DKMS, stays. Raises ``UserError`` for a name that is not defined."""

    def value(found: re.Match[str]) -> str:
        if found[1] == "kernelver":
            return found[0]
        if found[1] not in variables:
            raise UserError(
                f"{place}: ${{{found[1]}}} is not defined", hint=f"there are: {', '.join(sorted(variables))}"
            )
        return variables[found[1]]

    return re.sub(r"\$\{([a-z_0-9]+)\}", value, text)


def repositories(data: Path = DATA) -> list[Repository]:
    """The repositories of ``repositories.txt``."""
    found = []
    for number, line in enumerate((data / "repositories.txt").read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            parts = line.split(None, 3)
            if len(parts) != 4:
                raise UserError(f"repositories.txt:{number}: not NAME FOLDER ARCHITECTURE LABEL")
            found.append(Repository(*parts))
    return found


def patterns(name: str, data: Path = DATA) -> tuple[str, ...]:
    """The lines of a list of patterns, without comments."""
    lines = (data / name).read_text().splitlines()
    return tuple(line for line in lines if line.strip() and not line.startswith("#"))


def packages(data: Path = DATA) -> list[Package]:
    """Every package in every version, sorted; one that is in two repositories comes twice.

    Raises ``UserError`` with file and line for what is wrong.
    """
    known = {repository.name for repository in repositories(data)}
    found: dict[tuple[str, str, str], Package] = {}
    for path in sorted(data.glob("*.control")):
        for package in _file(path, known):
            key = (package.repository, package.name, package.version)
            if key in found:
                raise UserError(
                    f"{package.place}: {package.name} {package.version} is also at {found[key].place}"
                )
            found[key] = package
    return [found[key] for key in sorted(found)]


def _file(path: Path, known: set[str]) -> Iterator[Package]:
    stanzas = _stanzas(path)
    if not stanzas or set(stanzas[0].fields) != {"Repository"}:
        raise UserError(f"{path.name}: the first stanza has to be Repository: and nothing else")
    names = stanzas[0].fields["Repository"].split()
    if strangers := set(names) - known:
        raise UserError(f"{stanzas[0].place()}: repositories.txt has no {', '.join(sorted(strangers))}")
    sets: dict[str, tuple[_Version, ...]] = {}
    sources: dict[str, str] = {}
    for stanza in stanzas[1:]:
        if not stanza.fields.get("Evidence"):
            raise UserError(
                f"{stanza.place()}: no Evidence", hint="say where the name and the relations are known from"
            )
        if "Set" in stanza.fields:
            name = stanza.fields["Set"]
            sets[name] = tuple(_versions(stanza, sets, known))
            sources[name] = stanza.fields.get("Source", "")
            continue
        _check(stanza)
        chosen = stanza.fields["Versions"].lstrip("@")
        if "Source" not in stanza.fields and sources.get(chosen):
            stanza.fields["Source"] = sources[chosen]
        for version in _versions(stanza, sets, known):
            for repository in version.only or names:
                yield from _expand(stanza, version, repository)


def _stanzas(path: Path) -> list[_Stanza]:
    stanzas: list[_Stanza] = []
    current: _Stanza | None = None
    last = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            current = None
        elif line[0] in " \t":
            if current is None:
                raise UserError(f"{path.name}:{number}: a continued line without a field")
            current.fields[last] += f"\n{line.strip()}"
        else:
            name, colon, text = line.partition(":")
            if not colon:
                raise UserError(f"{path.name}:{number}: not FIELD: VALUE")
            if current is None:
                current = _Stanza(path.name, number)
                stanzas.append(current)
            if name in current.fields:
                raise UserError(f"{path.name}:{number}: {name} stands twice")
            current.fields[name], current.lines[name], last = text.strip(), number, name
    return stanzas


def _check(stanza: _Stanza) -> None:
    for name in stanza.fields:
        if name not in CONTROL + OURS:
            raise UserError(
                f"{stanza.place(name)}: unknown field {name}",
                hint=f"there are: {', '.join(sorted(CONTROL + OURS))}",
            )
    if missing := [name for name in ("Package", "Versions", "Description") if name not in stanza.fields]:
        raise UserError(f"{stanza.place()}: no {', '.join(missing)}")
    if (kind := stanza.fields.get("Kind", "package")) not in KINDS:
        raise UserError(f"{stanza.place('Kind')}: Kind {kind!r} is none of {', '.join(KINDS)}")


def _versions(
    stanza: _Stanza, sets: Mapping[str, tuple[_Version, ...]], known: set[str]
) -> Iterator[_Version]:
    text, place = stanza.fields.get("Versions", ""), stanza.place("Versions")
    if text.startswith("@"):
        if text[1:] not in sets:
            raise UserError(
                f"{place}: no set {text[1:]}", hint=f"this file has: {', '.join(sets) or 'none'}"
            )
        yield from sets[text[1:]]
        return
    for line in text.splitlines():
        words = line.split()
        full = [word for word in words if "=" not in word]
        variables = dict(word.split("=", 1) for word in words if "=" in word)
        only = tuple(filter(None, variables.pop("in", "").split(",")))
        if strangers := set(only) - known:
            raise UserError(f"{place}: repositories.txt has no {', '.join(sorted(strangers))}")
        for version in full:
            if not re.fullmatch(r"(\d+:)?\d[\w.+~]*-[\w.+~]+", version):
                raise UserError(f"{place}: {version} is no version with a revision")
            yield _Version(version, variables, only)


def _expand(stanza: _Stanza, version: _Version, repository: str) -> Iterator[Package]:
    base = {
        **version.variables,
        "version": version.full,
        "upstream": upstream(version.full),
        "repository": repository,
    }
    for template in stanza.fields["Package"].split():
        name = substitute(template, base, stanza.place("Package"))
        variables = {**base, "name": name}
        fields = {
            key: substitute(stanza.fields[key], variables, stanza.place(key))
            for key in CONTROL
            if key in stanza.fields
        }
        if fields.get("Source") == name:
            del fields["Source"]
        yield Package(
            name=name,
            version=version.full,
            repository=repository,
            archs=tuple(stanza.fields.get("Architecture", "amd64 arm64").split()),
            fields=fields,
            description=substitute(stanza.fields["Description"], variables, stanza.place("Description")),
            entries=tuple(_entries(stanza)),
            variables=variables,
            kind=stanza.fields.get("Kind", "package"),
            evidence=stanza.fields["Evidence"],
            place=stanza.place(),
        )


def _entries(stanza: _Stanza) -> Iterator[Entry]:
    lines: Sequence[str] = stanza.fields.get("Files", "").splitlines()
    for number, line in enumerate(lines, stanza.lines.get("Files", 0)):
        if not line:
            continue
        place = f"{stanza.file}:{number}"
        verb, *words = line.split()
        operands = tuple(word for word in words if "=" not in word)
        if verb not in ENTRY:
            raise UserError(f"{place}: Files knows no {verb!r}", hint=f"there are: {', '.join(ENTRY)}")
        if len(operands) < ENTRY[verb]:
            raise UserError(f"{place}: {verb} needs {ENTRY[verb]} operands")
        yield Entry(verb, operands, dict(word.split("=", 1) for word in words if "=" in word), place)
