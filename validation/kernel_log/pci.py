"""PCI addresses as the kernel and the driver print them, in one form."""

from __future__ import annotations

import re

#: An address with or without function; the domain may have 4, 5 (behind a VMD) or 8 digits.
ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"


def normal(address: str) -> str:
    """``00000000:3B:00.0`` -> ``0000:3b:00``. The oldest drivers give two parts only; they stay two."""
    address = re.sub(r"\.[0-9a-f]$", "", address.lower())
    parts = address.split(":")
    if len(parts) == 3:
        parts[0] = parts[0].lstrip("0").rjust(4, "0")
    return ":".join(parts)
