"""An apt of its own in a folder: sources, preferences and installed packages of a machine that is not there.

Nothing is installed; needs apt-get and no root. Packages of the distribution that the vendor's depend on are
taken for installed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DISTRIBUTION = (
    *(
        "libc6=2.41-12",
        "dkms=3.2.2-1",
        "adduser=3.152",
        "lshw=02.19",
        "passwd=1:4.17.4-2",
        "login=1:4.16.0-2",
    ),
    *("libibumad3=56.1-1", "libnuma1=2.0.19-1", "gcc=4:14.2.0-1"),
)


@dataclass(frozen=True)
class Apt:
    """The folder, and the architecture of its machine."""

    root: Path
    arch: str = "amd64"

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Runs apt-get, apt-cache or apt-mark with this folder's configuration."""
        return subprocess.run(
            args,
            env={
                "APT_CONFIG": str(self.root / "apt.conf"),
                "LC_ALL": "C",
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            },
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )

    def simulate(self, *args: str, recommends: bool = False) -> dict[str, str]:
        """What ``apt-get install ARGS`` would install: versions by name. Fails with what apt printed."""
        done = self.try_install(*args, recommends=recommends)
        assert done.returncode == 0, done.stdout + done.stderr
        return installs(done.stdout)

    def try_install(self, *args: str, recommends: bool = False) -> subprocess.CompletedProcess[str]:
        """``apt-get --simulate install ARGS``, whatever comes of it."""
        option = f"--{'' if recommends else 'no-'}install-recommends"
        return self.run("apt-get", "--simulate", option, "install", *args)

    def candidate(self, name: str) -> str | None:
        """The version that apt would take, None for none."""
        found = re.search(r"Candidate: (\S+)", self.run("apt-cache", "policy", name).stdout)
        return found[1] if found and found[1] != "(none)" else None

    def prefer(self, text: str) -> None:
        """Writes the preferences, which replace all that there were."""
        for old in (self.root / "preferences.d").iterdir():
            old.unlink()
        (self.root / "preferences.d/test").write_text(text)

    def installed(self, packages: Mapping[str, str]) -> None:
        """Makes these packages, by name, installed beside the distribution's, as the index has them."""
        stanzas = [_installed(*package.split("=")) for package in DISTRIBUTION]
        shown = self.run(
            "apt-cache", "show", *(f"{name}={version}" for name, version in packages.items())
        ).stdout
        for stanza in filter(None, shown.split("\n\n")):
            lines = [
                line
                for line in stanza.splitlines()
                if line and not re.match(r"(Filename|Size|MD5sum|SHA\d+|Description-md5):", line)
            ]
            stanzas.append("\n".join([lines[0], "Status: install ok installed", *lines[1:]]) + "\n")
        (self.root / "status").write_text("\n".join(stanzas))


def _installed(name: str, version: str) -> str:
    return (
        f"Package: {name}\nStatus: install ok installed\nVersion: {version}\nArchitecture: amd64\n"
        "Multi-Arch: foreign\n"
        "Maintainer: nobody <nobody@localhost.invalid>\nDescription: of the distribution\n"
    )


def installs(output: str) -> dict[str, str]:
    """The ``Inst`` lines of a simulation: version by name."""
    return dict(re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+) ", output, re.M))


def make(root: Path, uris: Iterable[str], keyring: Path, *, arch: str = "amd64") -> Apt:
    """An apt with these flat repositories as its sources; ``update`` is left to the caller."""
    for folder in ("lists/partial", "archives/partial", "preferences.d"):
        (root / folder).mkdir(parents=True)
    lines: Sequence[str] = [f"deb [arch={arch} signed-by={keyring}] {uri}/ /" for uri in uris]
    (root / "sources.list").write_text("\n".join(lines) + "\n")
    (root / "extended_states").write_text("")
    settings = {
        "Dir": root,
        "Dir::State": root,
        "Dir::State::status": root / "status",
        "Dir::State::extended_states": root / "extended_states",
        "Dir::State::lists": root / "lists",
        "Dir::Cache": root,
        "Dir::Cache::archives": root / "archives",
        "Dir::Etc::sourcelist": root / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": root / "preferences.d",
        "Dir::Etc::trusted": "/dev/null",
        "Dir::Etc::trustedparts": "/dev/null",
        "Dir::Log": root,
        "APT::Architecture": arch,
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::http::Proxy": "DIRECT",
        "Acquire::Retries": "0",
        "Debug::NoLocking": "true",
    }
    text = "".join(f'{name} "{value}";\n' for name, value in settings.items())
    (root / "apt.conf").write_text(f'{text}APT::Architectures {{ "{arch}"; }};\n')
    apt = Apt(root, arch)
    apt.installed({})
    return apt
