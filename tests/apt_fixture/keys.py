"""Signing keys made for one build, and what apt reads of them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from images.run import run

NAME = "gpu-image fixture (not NVIDIA) <fixture@localhost.invalid>"


@dataclass(frozen=True)
class Key:
    """A key in a GnuPG home of its own, which goes with the context."""

    home: Path
    fingerprint: str
    public: bytes
    armored: str

    def _gpg(self, *args: str | Path) -> None:
        run([*_command(self.home), "--default-key", self.fingerprint, *args])

    def clear_sign(self, document: Path, out: Path) -> None:
        """InRelease: the document with its signature."""
        self._gpg("--clear-sign", "--output", out, document)

    def detach_sign(self, document: Path, out: Path) -> None:
        """Release.gpg: the signature alone, armored."""
        self._gpg("--detach-sign", "--armor", "--output", out, document)


def _command(home: Path) -> list[str | Path]:
    return ["gpg", "--homedir", home, "--batch", "--yes", "--no-tty", "--digest-algo", "SHA512"]


@contextlib.contextmanager
def generate(*, sha1: bool = False) -> Iterator[Key]:
    """A new key. ``sha1``: RSA, bound by a SHA-1 signature, which sqv (apt of Debian 13) takes no more.

    The GnuPG home lies in a short path, because an agent's socket has to fit 108 characters; the agent is
    ended.
    """
    home = Path(tempfile.mkdtemp(prefix="gpg-"))
    try:
        kind = "rsa2048" if sha1 else "ed25519"
        digest = ["--cert-digest-algo", "SHA1"] if sha1 else []
        command = [*_command(home), *digest, "--pinentry-mode=loopback", "--passphrase", ""]
        run([*command, "--quick-generate-key", NAME, kind, "sign", "never"])
        listing = run([*_command(home), "--with-colons", "--list-keys"]).stdout
        fingerprint = next(line for line in listing.splitlines() if line.startswith("fpr:")).split(":")[9]
        armored = run([*_command(home), "--armor", "--export", fingerprint]).stdout
        exported = home / "public.gpg"
        run([*_command(home), "--output", exported, "--export", fingerprint])
        yield Key(home, fingerprint, exported.read_bytes(), armored)
    finally:
        run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)
        shutil.rmtree(home, ignore_errors=True)
