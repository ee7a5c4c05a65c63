"""A small archive laid out like Ubuntu's, for tests that cannot reach the real one.

Made by hand, signed with a throw-away key, served on loopback. Package names, versions and dependencies
follow noble's kernels (linux-meta-aws, linux-signed-aws, linux-meta of 6.8): a flavour's meta depends on an
image meta and a headers meta of the same version, these on the packages of one ABI. There are no .deb files
behind the index, so nothing can be installed; sizes and digests are made up (``SIZE``, ``digest_of``).
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ARCHITECTURES = ("amd64", "arm64")
SIZE = 4711

#: pocket -> (flavour, suffix of its metas, ABI, version). As in the real archive the security pocket repeats
#: what is in updates, and the release pocket keeps the first kernel.
KERNELS = {
    "noble": [("aws", "-lts-24.04", "6.8.0-1008", "6.8.0-1008.8")],
    "noble-updates": [
        ("aws", "-lts-24.04", "6.8.0-1036", "6.8.0-1036.38"),
        ("aws", "", "6.14.0-1013", "6.14.0-1013.13~24.04.1"),
        ("generic", "", "6.8.0-79", "6.8.0-79.79"),
    ],
    "noble-security": [("aws", "-lts-24.04", "6.8.0-1036", "6.8.0-1036.38")],
}


@dataclass(frozen=True)
class Archive:
    """Where it is served, the keyring that its signature needs, and one that did not sign it."""

    url: str
    keyring: Path
    other_keyring: Path


def file_of(name: str, version: str, arch: str) -> str:
    return f"pool/main/l/linux/{name}_{version}_{arch}.deb"


def digest_of(file: str) -> str:
    return hashlib.sha256(file.encode()).hexdigest()


def stanza(name: str, version: str, arch: str, depends: str = "") -> str:
    file = file_of(name, version, arch)
    return (
        f"Package: {name}\nArchitecture: {arch}\nVersion: {version}\nPriority: optional\nSection: kernel\n"
        f"Maintainer: A test <test@example.invalid>\n{f'Depends: {depends}' if depends else 'Origin: T'}\n"
        f"Filename: {file}\nSize: {SIZE}\nSHA256: {digest_of(file)}\n"
        f"Description: made up by a test: {name}\n"
    )


def kernel(flavour: str, suffix: str, abi: str, version: str, arch: str) -> Iterator[str]:
    """One flavour: its metas, and the packages of one ABI. Only generic's image brings modules-extra."""
    release, meta = f"{abi}-{flavour}", f"{flavour}{suffix}"
    parts = [f"linux-image-{release}"]
    if flavour == "generic":
        parts.append(f"linux-modules-extra-{release}")
    yield stanza(
        f"linux-{meta}",
        version,
        arch,
        f"linux-image-{meta} (= {version}), linux-headers-{meta} (= {version})",
    )
    yield stanza(f"linux-image-{meta}", version, arch, ", ".join(parts))
    yield stanza(f"linux-headers-{meta}", version, arch, f"linux-headers-{release}")
    yield stanza(f"linux-image-{release}", version, arch, f"linux-modules-{release}")
    yield stanza(f"linux-modules-{release}", version, arch)
    if flavour == "generic":
        yield stanza(f"linux-modules-extra-{release}", version, arch, f"linux-modules-{release}")
    yield stanza(f"linux-headers-{release}", version, arch, f"linux-{flavour}-headers-{abi}")
    yield stanza(f"linux-{flavour}-headers-{abi}", version, "all")


def write(folder: Path) -> None:
    """The indexes of all pockets, not yet signed. A package that nothing satisfies is in the first."""
    for pocket, kernels in KERNELS.items():
        sums = []
        for arch in ARCHITECTURES:
            stanzas = [text for one in kernels for text in kernel(*one, arch)]
            if pocket == "noble":
                stanzas.append(stanza("linux-broken", "1", arch, "not-in-the-archive"))
            index = folder / "dists" / pocket / "main" / f"binary-{arch}" / "Packages"
            index.parent.mkdir(parents=True)
            index.write_text("\n".join(stanzas))
            content = index.read_bytes()
            name = f"main/binary-{arch}/Packages"
            sums.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}")
        # Codename is the same in all pockets, unlike Debian's.
        (folder / "dists" / pocket / "Release").write_text(
            f"Origin: Ubuntu\nLabel: Ubuntu\nSuite: {pocket}\nVersion: 24.04\nCodename: noble\n"
            f"Date: Thu, 25 Apr 2024 15:10:33 UTC\nArchitectures: {' '.join(ARCHITECTURES)}\n"
            "Components: main\nDescription: made up by a test\nSHA256:\n" + "\n".join(sums) + "\n"
        )


def sign(folder: Path, home: Path) -> None:
    """Signs all pockets with the key ``signer``; the keyrings of both keys lie beside the archive."""

    def gpg(*words: str | Path) -> None:
        command = ["gpg", "--batch", "--quiet", "--passphrase", "", *map(str, words)]
        subprocess.run(command, check=True, env={**os.environ, "GNUPGHOME": str(home)})

    try:
        for name in ("signer", "other"):
            gpg("--quick-generate-key", name, "ed25519", "sign", "never")
            gpg("--output", folder / f"{name}.gpg", "--export", name)
        for release in folder.glob("dists/*/Release"):
            gpg(
                "--local-user", "signer", "--output", release.with_name("InRelease"), "--clear-sign", release
            )
            release.unlink()
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True)


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served() -> Iterator[Archive]:
    """Makes, signs and serves the archive, in a folder that every user may read: where an ordinary user runs
    the tests, mmdebstrap reads the keyring as another one."""
    folder = Path(tempfile.mkdtemp(prefix="ubuntu-archive-"))
    folder.chmod(0o755)
    home = Path(tempfile.mkdtemp(prefix="gpg-"))
    try:
        write(folder)
        sign(folder, home)
        handler = functools.partial(Handler, directory=str(folder))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield Archive(
                    f"http://127.0.0.1:{server.server_port}", folder / "signer.gpg", folder / "other.gpg"
                )
            finally:
                server.shutdown()
                thread.join()
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(home)
