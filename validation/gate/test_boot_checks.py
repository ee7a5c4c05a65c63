"""What is baked in: the bundle, the image's identity, and what the machine says about itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from validation.gate import readers
from validation.gate.checks import check
from validation.gate.machine import Machine

IMAGE_JSON = "/usr/lib/gpu-image/image.json"


@check("boot_checks.bundle", "bundle")
def test_bundle(machine: Machine, expected: Mapping[str, Any]) -> None:
    """Every file of the bundle is there with its mode and content, and there is no other."""
    wanted = {
        file["path"]: readers.File(file["mode"], file["sha256"]) for file in expected["bundle"]["files"]
    }
    found = readers.bundle(machine.text("bundle"))
    found.pop(IMAGE_JSON, None)
    wrong = [f"{path} is missing" for path in wanted.keys() - found.keys()]
    wrong += [f"{path} does not belong there" for path in found.keys() - wanted.keys()]
    wrong += [f"{path} differs" for path in wanted.keys() & found.keys() if wanted[path] != found[path]]
    assert not wrong, "; ".join(sorted(wrong)[:5])
    digest = readers.bundle_digest(found)
    assert digest == expected["bundle"]["digest"], f"the bundle's digest is {digest}"


@check("boot_checks.image", "image_json")
def test_image(machine: Machine, expected: Mapping[str, Any]) -> None:
    """``image.json`` names this image, this lock and this bundle."""
    document = json.loads(machine.text("image_json"))
    wanted = {**expected["image"], "bundle_digest": expected["bundle"]["digest"]}
    wrong = [
        f"{key} is {document.get(key)!r}" for key, value in wanted.items() if document.get(key) != value
    ]
    assert not wrong, "; ".join(wrong)


@check("boot_checks.verdict", "boot_report")
def test_verdict(machine: Machine, expected: Mapping[str, Any]) -> None:
    """The machine judges itself healthy, by the checks of this bundle."""
    report = json.loads(machine.text("boot_report"))
    assert report["verdict"] == "healthy", f"{report['verdict']}: {report.get('reason')}"
    digest = report.get("bundle_digest")
    assert digest == expected["bundle"]["digest"], f"it was judged by the bundle {digest}"


@check("boot_checks.ready", "units")
def test_ready(machine: Machine) -> None:
    """``gpu-ready.target``, which workloads wait for, is reached."""
    unit = readers.units(machine.text("units")).get("gpu-ready.target")
    assert unit, "there is no gpu-ready.target"
    assert unit.active == "active", f"gpu-ready.target is {unit.active}"
