"""Builds the packages and the signed repositories."""

from __future__ import annotations

import concurrent.futures
import datetime
import fnmatch
import gzip
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from images.errors import UserError
from images.run import run
from tests.apt_fixture import catalog, contents, keys
from tests.apt_fixture.catalog import Package, Repository
from tests.apt_fixture.libraries import Libraries

ORIGIN = "gpu-image fixture"
NOTE = "fixture of the gpu-image tests, not NVIDIA's software"
VENDOR_SITE = "https://developer.download.nvidia.com"
RECORD = "fixture.json"
#: Everything is of this time: the same input gives the same packages.
DATE = datetime.datetime(2025, 12, 1, tzinfo=datetime.UTC)
KEYRING = "cuda-keyring_1.1-1_all.deb"


@dataclass(frozen=True)
class Options:
    """What differs from a repository in order. Patterns are NAME or NAME=VERSION, with * and ?.

    ``sets`` and ``archs``: which repositories. ``pinning``: the pinning packages are there. ``only``: of all
    packages these alone; ``without``: these vanished. ``mix``: userspace moved on to another version than
    the kernel modules (``data/mix.txt``). ``wrong_sha256``: of these the index has a wrong digest.
    ``signed``: by the key of the keyring, by a key that nobody has, or by nobody; ``sha1``: the key is bound
    by SHA-1. ``compiles``: the kernel modules do. ``site``: where the source in the keyring package points,
    the vendor's server unless said otherwise.
    """

    sets: tuple[str, ...] = ("ubuntu2404", "debian13", "toolkit")
    archs: tuple[str, ...] = ("amd64", "arm64")
    pinning: bool = True
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    mix: bool = False
    wrong_sha256: tuple[str, ...] = ()
    signed: Literal["key", "foreign", "nobody"] = "key"
    sha1: bool = False
    compiles: bool = True
    site: str = VENDOR_SITE


@dataclass(frozen=True)
class Fixture:
    """Repositories in a folder. ``keyring`` is the public key as apt reads it, ``keyring_debs`` the SHA-256
    of the keyring package by repository folder, ``repositories`` the number of packages likewise;
    ``compiled`` says for which architectures the libraries are real."""

    root: Path
    fingerprint: str
    keyring: Path
    keyring_debs: dict[str, str]
    compiled: dict[str, bool]
    repositories: dict[str, int]

    def deb(self, path: str, name: str) -> Path:
        """A package of the repository ``path``, by the beginning of its name; ``UserError`` without."""
        found = sorted((self.root / path).glob(f"{name}*.deb"))
        if len(found) != 1:
            raise UserError(f"{path} has {len(found)} packages {name}*")
        return found[0]


def load(root: Path) -> Fixture:
    """The fixture in ``root``. Raises ``UserError`` when there is none."""
    try:
        data: dict[str, Any] = json.loads((root / RECORD).read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{root} has no repositories (no {RECORD})",
            hint="build them: python -m tests.apt_fixture --build DIR",
        ) from None
    del data["options"], data["note"]
    return Fixture(**{**data, "root": root, "keyring": root / data["keyring"]})


def build(root: Path, options: Options = Options(), *, data: Path = catalog.DATA) -> Fixture:
    """Builds the repositories into the new folder ``root``; interrupted, it leaves nothing.

    Needs dpkg-deb and gpg, and a C compiler for libraries that can be loaded; neither root nor a network.
    Raises ``UserError`` for a folder that exists, an unknown option and a mistake in the data files.
    """
    if root.exists():
        raise UserError(f"{root} exists", hint="name a folder that is to be made")
    if tools := [tool for tool in ("dpkg-deb", "gpg", "gpgconf") if not shutil.which(tool)]:
        raise UserError(f"not installed: {', '.join(tools)}", hint="apt install dpkg gnupg")
    chosen = [
        repository
        for repository in catalog.repositories(data)
        if repository.name in options.sets and repository.arch in options.archs
    ]
    if not chosen:
        raise UserError(f"no repository for {', '.join(options.sets)} and {', '.join(options.archs)}")
    packages = present(catalog.packages(data), options, data=data)
    root.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))
    try:
        work.chmod(0o755)
        _Builder(work, options, packages, chosen).build()
        work.replace(root)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return load(root)


def present(packages: Sequence[Package], options: Options, *, data: Path = catalog.DATA) -> list[Package]:
    """The packages that ``options`` leave. Raises ``UserError`` for a pattern that fits none: it would test
    nothing."""
    gone = options.without + (catalog.patterns("mix.txt", data) if options.mix else ())
    for pattern in (*options.only, *options.without, *options.wrong_sha256):
        if not any(matches(package, [pattern]) for package in packages):
            raise UserError(f"no package fits {pattern!r}", hint="NAME or NAME=VERSION, with * and ?")
    return [
        package
        for package in packages
        if (not options.only or matches(package, options.only))
        and not matches(package, gone)
        and (options.pinning or package.kind != "pinning")
    ]


def matches(package: Package, patterns: Iterable[str]) -> bool:
    """One of the patterns is the package's: NAME or NAME=VERSION."""
    return any(
        fnmatch.fnmatchcase(f"{package.name}={package.version}" if "=" in pattern else package.name, pattern)
        for pattern in patterns
    )


@dataclass
class _Builder:
    work: Path
    options: Options
    packages: Sequence[Package]
    repositories: Sequence[Repository]
    libraries: Libraries = field(default_factory=Libraries)

    def build(self) -> None:
        with keys.generate(sha1=self.options.sha1) as key:
            self.context = contents.Context(
                libraries=self.libraries,
                keyring=key.public,
                compiles=self.options.compiles,
                site=self.options.site.rstrip("/"),
                date=DATE.strftime("%a, %d %b %Y %H:%M:%S +0000"),
            )
            (self.work / "keyring.gpg").write_bytes(key.public)
            for repository in self.repositories:
                (self.work / repository.path).mkdir(parents=True)
            counts = self._pools()
            if self.options.signed == "foreign":
                with keys.generate() as foreign:
                    self._release(foreign)
            else:
                self._release(key if self.options.signed == "key" else None)
            self._beside(key)
        keyring_debs = {
            repository.path: hashlib.sha256(path.read_bytes()).hexdigest()
            for repository in self.repositories
            if (path := self.work / repository.path / KEYRING).exists()
        }
        record = {
            "note": NOTE,
            "options": asdict(self.options),
            "root": "",
            "fingerprint": key.fingerprint,
            "keyring": "keyring.gpg",
            "keyring_debs": keyring_debs,
            "compiled": {arch: bool(Libraries.compiler(arch)) for arch in self.options.archs},
            "repositories": counts,
        }
        (self.work / RECORD).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")

    def _pools(self) -> dict[str, int]:
        """Builds all packages, two at a time, and writes each repository's index."""
        jobs: dict[str, list[concurrent.futures.Future[str]]] = {}
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            for repository in self.repositories:
                jobs[repository.path] = [
                    pool.submit(self._deb, package, repository)
                    for package in self.packages
                    if package.repository == repository.name
                    and ({repository.arch, "all"} & set(package.archs))
                ]
            try:
                stanzas = {path: [job.result() for job in made] for path, made in jobs.items()}
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        for path, found in stanzas.items():
            text = "\n".join(found).encode()
            (self.work / path / "Packages").write_bytes(text)
            (self.work / path / "Packages.gz").write_bytes(gzip.compress(text, mtime=0))
        return {path: len(found) for path, found in stanzas.items()}

    def _deb(self, package: Package, repository: Repository) -> str:
        """Builds one package into its repository; returns its stanza of the index."""
        arch = "all" if "all" in package.archs else repository.arch
        version = package.version.partition(":")[2] or package.version
        target = self.work / repository.path / f"{package.name}_{version}_{arch}.deb"
        made = contents.tree(package, arch, repository, self.context)
        control = self._control(package, arch, sum(len(file.content) for file in made.data))
        made.control.append(contents.File("control", control.encode()))
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            Path(folder).chmod(0o755)
            contents.write(made, Path(folder))
            run(
                ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", folder, target],
                env={"SOURCE_DATE_EPOCH": str(int(DATE.timestamp()))},
            )
        return self._stanza(package, control, target)

    @staticmethod
    def _control(package: Package, arch: str, size: int) -> str:
        fields = {"Section": "non-free/libs", "Priority": "optional", **package.fields}
        head = {"Package": package.name, "Version": package.version, "Architecture": arch}
        extra = {
            "Maintainer": "gpu-image fixture <fixture@localhost.invalid>",
            "Installed-Size": str(size // 1024 + 1),
            "X-Fixture": NOTE,
            "Description": f"{package.description}\n This is a {NOTE}.",
        }
        order = {**head, **{name: fields[name] for name in catalog.CONTROL if name in fields}, **extra}
        return "".join(f"{name}: {value}\n" for name, value in order.items())

    def _stanza(self, package: Package, control: str, deb: Path) -> str:
        content = deb.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        if matches(package, self.options.wrong_sha256):
            sha256 = hashlib.sha256(content + b"tampered with").hexdigest()
        own, description = control.split("Description: ", 1)
        digests = {
            "Filename": f"./{deb.name}",
            "Size": str(len(content)),
            "MD5sum": hashlib.md5(content, usedforsecurity=False).hexdigest(),
            "SHA1": hashlib.sha1(content, usedforsecurity=False).hexdigest(),
            "SHA256": sha256,
        }
        return (
            own
            + "".join(f"{key}: {text}\n" for key, text in digests.items())
            + f"Description: {description}"
        )

    def _release(self, key: keys.Key | None) -> None:
        for repository in self.repositories:
            folder = self.work / repository.path
            lines = [
                f"Origin: {ORIGIN}",
                f"Label: {repository.label}",
                f"Architectures: {repository.arch}",
                f"Date: {DATE.strftime('%a, %d %b %Y %H:%M:%S UTC')}",
                f"Description: {NOTE}",
            ]
            for title, algorithm in (("MD5Sum", "md5"), ("SHA1", "sha1"), ("SHA256", "sha256")):
                lines.append(f"{title}:")
                for name in ("Packages", "Packages.gz"):
                    content = (folder / name).read_bytes()
                    digest = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
                    lines.append(f" {digest} {len(content)} {name}")
            (folder / "Release").write_text("\n".join(lines) + "\n")
            if key:
                key.clear_sign(folder / "Release", folder / "InRelease")
                key.detach_sign(folder / "Release", folder / "Release.gpg")

    def _beside(self, key: keys.Key) -> None:
        """What people fetch beside packages: keys, the list for the toolkit, the pin file."""
        for repository in self.repositories:
            if repository.path.startswith("libnvidia-container/"):
                parent = (self.work / repository.path).parent
                (parent / "nvidia-container-toolkit.list").write_text(
                    f"deb {self.options.site.rstrip('/')}/{Path(repository.path).parent}/$(ARCH) /\n"
                )
                (self.work / "libnvidia-container/gpgkey").write_text(key.armored)
            elif repository.path.startswith("compute/cuda/"):
                folder = self.work / repository.path
                (folder / "cuda-archive-keyring.gpg").write_bytes(key.public)
                (folder / f"cuda-{repository.name}.pin").write_bytes(
                    (catalog.FILES / "etc/cuda.pin").read_bytes()
                )
