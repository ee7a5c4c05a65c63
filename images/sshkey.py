"""The key pair of one build: ed25519, made for it, gone with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from images import run


@dataclass(frozen=True)
class KeyPair:
    """``private`` is a file only we can read; ``public`` is its line for authorized_keys."""

    private: Path
    public: str

    @property
    def blob(self) -> bytes:
        """The base64 part of the public key: what would betray the build if it stayed on a disk."""
        return self.public.split()[1].encode()


def generate(folder: Path, comment: str) -> KeyPair:
    """Makes a key pair in ``folder``."""
    private = folder / "id_ed25519"
    run.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", private], timeout=30)
    return KeyPair(private, private.with_suffix(".pub").read_text().strip())
