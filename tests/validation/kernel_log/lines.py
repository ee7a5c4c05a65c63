"""Lines of a kernel log for tests."""

from __future__ import annotations

GPU = "0000:01:00"


def xid(code: int, text: str = "x", pci: str = GPU) -> str:
    return f"NVRM: Xid (PCI:{pci}): {code}, {text}"


def recovery(target: int, pci: str = GPU) -> str:
    return xid(154, f"GPU recovery action changed from 0x0 (None) to {target:#x} (some words)", pci)


def timed(*records: tuple[float, str]) -> list[str]:
    return [f"[{seconds:12.6f}] {text}" for seconds, text in records]


def untimed(*records: tuple[float, str]) -> list[str]:
    return [text for _, text in records]
