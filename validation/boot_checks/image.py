"""What the image says about itself, and where things lie on the machine.

Every path goes through ``ROOT``, so that tests can lay out a machine in a folder: ``gpu-boot-check
--root=DIR`` hands it on to the checks in the environment variable ``GPU_IMAGE_ROOT``.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

ROOT_VARIABLE = "GPU_IMAGE_ROOT"
BUNDLE = "/usr/lib/gpu-image"
CHECKS = BUNDLE + "/boot-checks.d"
IMAGE = BUNDLE + "/image.json"
HOOKS = "/etc/gpu-image/on-unhealthy.d"
REPORT = "/run/gpu-image/boot-check.json"
HOOKS_RAN = "/run/gpu-image/on-unhealthy.ran"
CONSOLE = "/dev/console"


class Image(NamedTuple):
    """``image.json``: written by the build, and the same for every machine of one image."""

    family: str
    version: str
    build_id: str
    bundle_digest: str
    services: tuple[str, ...]  # units that must be active
    driver: str | None = None  # the NVIDIA driver's upstream version; None: the image has none


class BadImage(Exception):
    """``image.json`` is missing or is not what a build writes; the message says which."""


def root() -> str:
    """The folder the machine's paths start from: ``/``, or what the tests have chosen."""
    return os.environ.get(ROOT_VARIABLE, "/")


def at(path: str) -> str:
    """Where an absolute path of the machine lies under ``root()``."""
    return os.path.join(root(), path.lstrip("/"))


def parse(text: str) -> Image:
    """``image.json`` as a typed value. Unknown keys are ignored: a newer build may write more.

    Raises ``BadImage``.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadImage(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadImage("it is not a JSON object")
    services = document.get("services")
    if not isinstance(services, list) or not all(isinstance(name, str) for name in services):
        raise BadImage("'services' is not a list of unit names")
    texts: dict[str, Any] = {
        key: document.get(key) for key in ("family", "version", "build_id", "bundle_digest")
    }
    for key, value in texts.items():
        if not isinstance(value, str) or not value:
            raise BadImage(f"'{key}' is missing or not a text")
    driver = document.get("driver")
    if driver is not None and (not isinstance(driver, str) or not driver):
        raise BadImage("'driver' is neither a version nor null")
    return Image(**texts, services=tuple(services), driver=driver)


def read() -> Image:
    """Reads this machine's ``image.json``; raises ``BadImage`` with the path in its message."""
    path = at(IMAGE)
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read())
    except (OSError, UnicodeDecodeError) as error:
        raise BadImage(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except BadImage as error:
        raise BadImage(f"{path}: {error}") from None
