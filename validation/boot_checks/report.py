"""The report of one run: as JSON for programs, as lines for people, the journal and the console."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from validation.boot_checks import image
from validation.boot_checks.check import Status
from validation.boot_checks.results import CheckResult, Verdict

SCHEMA = "gpu-image/boot-check/v1"
CONSOLE_PATIENCE = 1.0  # seconds for a console that does not take what we write


class Report(NamedTuple):
    """Everything that one run found."""

    verdict: Verdict
    reason: str
    image: image.Image | None  # None: image.json could not be read
    bundle_digest: str | None  # computed from the disk
    boot_id: str | None
    started: float  # seconds since 1970
    seconds: float
    checks: Sequence[CheckResult]
    hooks: Sequence[dict[str, Any]] = ()


def as_json(report: Report) -> str:
    """The report as one JSON document, keys as in ``docs/boot-checks.md``."""
    about = report.image
    document = {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "reason": report.reason,
        "family": about and about.family,
        "version": about and about.version,
        "build_id": about and about.build_id,
        "bundle_digest": report.bundle_digest,
        "boot_id": report.boot_id,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(report.started)),
        "seconds": report.seconds,
        "checks": [result._asdict() for result in report.checks],
        "hooks": list(report.hooks),
    }
    return json.dumps(document, indent=2) + "\n"


def as_lines(report: Report) -> list[tuple[Status, str]]:
    """The report for people: lines without control characters, each with the status it speaks of."""
    about = report.image
    name = f"{about.family} {about.version}, build {about.build_id}" if about else "unknown (no image.json)"
    whole = {Verdict.UNHEALTHY: Status.FAIL, Verdict.UNKNOWN: Status.UNKNOWN}.get(
        report.verdict, Status.PASS
    )
    lines = [
        (whole, f"{report.verdict.value.upper()}: {report.reason}"),
        (Status.PASS, f"image  {name}"),
        (Status.PASS, f"bundle {report.bundle_digest or 'unknown'}"),
    ]
    width = max((len(result.check) for result in report.checks), default=0)
    for result in report.checks:
        line = f"{result.status.value:<7} {result.check:<{width}}  {result.reason}"
        if result.script:
            line += (
                f"  [{result.seconds or 0:.1f} s, {os.path.basename(result.script)} sha256:{result.sha256}]"
            )
        lines.append((result.status, line))
    return [(status, _plain(line)) for status, line in lines]


def write(report: Report) -> None:
    """Puts the report where programs look for it, in one step. Raises ``OSError``."""
    path = image.at(image.REPORT)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    new = f"{path}.{os.getpid()}"
    try:
        with open(new, "w", encoding="utf-8") as file:
            file.write(as_json(report))
            os.fchmod(file.fileno(), 0o644)
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def tell_console(lines: Sequence[str]) -> None:
    """Writes lines to the serial console, for those who cannot log in.

    A console that is missing, forbidden or stuck costs at most ``CONSOLE_PATIENCE`` and is no error.
    """
    rest = "".join(f"gpu-boot-check: {line}\n" for line in lines).encode()
    end = time.monotonic() + CONSOLE_PATIENCE
    with contextlib.suppress(OSError):
        console = os.open(image.at(image.CONSOLE), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            while rest and (left := end - time.monotonic()) > 0:
                if select.select([], [console], [], left)[1]:
                    rest = rest[os.write(console, rest) :]
        finally:
            os.close(console)


def _plain(text: str) -> str:
    """One line that a terminal cannot take for commands."""
    return "".join(character if character.isprintable() else "?" for character in text)
