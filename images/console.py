"""Reads the text of a machine's serial console. Pure: text in, facts out."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

#: cloud-init's cc_keys_to_console prints the public host keys between these lines.
#: https://cloudinit.readthedocs.io/en/latest/reference/modules.html#keys-to-console
BEGIN = "-----BEGIN SSH HOST KEY KEYS-----"
END = "-----END SSH HOST KEY KEYS-----"
ANSI = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>c78])")


@dataclass(frozen=True)
class HostKey:
    """A public SSH host key: ``kind`` as ``ssh-ed25519``, ``key`` in base64."""

    kind: str
    key: str


def host_keys(text: str) -> tuple[HostKey, ...]:
    """The host keys of the last complete block; empty while there is none.

    A line that another message on the console has broken up is left out, so a key is whole or not there.
    """
    plain = clean(text)
    end = plain.rfind(END)
    begin = plain.rfind(BEGIN, 0, max(end, 0))
    if end < 0 or begin < 0:
        return ()
    keys = []
    for line in plain[begin + len(BEGIN) : end].splitlines():
        words = line.split()
        if len(words) >= 2 and _is_key(words[0], words[1]):
            keys.append(HostKey(words[0], words[1]))
    return tuple(keys)


def _is_key(kind: str, key: str) -> bool:
    """Whether ``key`` is a whole key of that kind: length-prefixed strings, the first one its kind.

    RFC 4253 section 6.6; all public key formats consist of such strings.
    """
    try:
        blob = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return False
    parts, at = [], 0
    while at + 4 <= len(blob):
        (length,) = struct.unpack_from(">I", blob, at)
        parts.append(blob[at + 4 : at + 4 + length])
        at += 4 + length
    return at == len(blob) and len(parts) >= 2 and parts[0] == kind.encode()


def known_hosts(keys: Sequence[HostKey], *, host: str, port: int) -> str:
    """The text of a known_hosts file for a machine at ``host`` and ``port`` (sshd(8)): the port stands there
    only when it is not 22."""
    name = host if port == 22 else f"[{host}]:{port}"
    return "".join(f"{name} {key.kind} {key.key}\n" for key in keys)


def clean(text: str) -> str:
    """The text without carriage returns and terminal control sequences."""
    return ANSI.sub("", text).replace("\r", "")


def last_lines(text: str, count: int) -> list[str]:
    """The last ``count`` lines that are not empty, for messages about a machine that did not come up."""
    return [line.rstrip() for line in clean(text).splitlines() if line.strip()][-count:]
