"""Render: a pure function of spec and lock to a Packer template.

No network, no clock, no randomness: the same input gives the same bytes. What differs from build to build
(paths, keys, ids) are the template's variables, which the pipeline passes with ``-var-file``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from images.clouds import Cloud
from images.errors import UserError
from images.lock import Lock
from images.spec import Loaded

CLOUDS = Path(__file__).parent / "clouds"

Version = tuple[int, ...]

# Packer 1.6 refuses the block; from 1.10 on no plugin is bundled and `packer init` needs it.
FIRST_WITH_PLUGINS: Version = (1, 7)


def render(cloud: Cloud, loaded: Loaded, lock: Lock, *, packer_version: Version) -> dict[str, str]:
    """The files of a Packer template, by name: ``build.pkr.hcl``, ``vars.json`` (Ansible's variables) and
    from Packer 1.7 on ``plugins.pkr.hcl``. Raises ``UserError`` when the lock is not this spec's."""
    _same_image(loaded, cloud, lock)
    loader = jinja2.FileSystemLoader([cloud.folder, CLOUDS])
    environment = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # the output is HCL, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["hcl"] = hcl
    context = {
        "spec": loaded.spec,
        "lock": lock,
        "context": cloud.render_context(loaded, lock),
        "packer_version": packer_version,
    }
    text = environment.get_template("build.pkr.hcl.j2").render(context)
    files = {
        "build.pkr.hcl": re.sub(r"\n{3,}", "\n\n", text),
        "vars.json": _json(ansible_variables(loaded, lock)),
    }
    if packer_version >= FIRST_WITH_PLUGINS:
        files["plugins.pkr.hcl"] = environment.get_template("plugins.pkr.hcl.j2").render(context)
    return files


def ansible_variables(loaded: Loaded, lock: Lock) -> dict[str, Any]:
    """What the roles must know, from spec and lock alone."""
    return {
        "kernel_release": lock.kernel.release,
        "kernel_packages": {package.name: package.version for package in lock.kernel.packages},
        "site_packages": list(loaded.spec.packages),
    }


def hcl(value: object) -> str:
    """A value as an HCL literal; template sequences in text lose their meaning.

    HCL's string syntax: https://github.com/hashicorp/hcl/blob/main/hclsyntax/spec.md#template-expressions
    """
    return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def write(files: Mapping[str, str], folder: Path) -> None:
    """Writes rendered files; a ``plugins.pkr.hcl`` of an earlier rendering does not stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.pkr.hcl"):
        if stale.name not in files:
            stale.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)


def _same_image(loaded: Loaded, cloud: Cloud, lock: Lock) -> None:
    if (lock.image, lock.cloud) != (loaded.spec.family, cloud.name):
        raise UserError(
            f"the lock is for {lock.image} on {lock.cloud}, not for {loaded.spec.family} on {cloud.name}",
            hint=f"./inv lock --image={loaded.spec.family} --cloud={cloud.name}",
        )
    if lock.arch not in loaded.spec.arch:
        raise UserError(
            f"{loaded.source.place(('arch',))}: {loaded.spec.family} is not made for {lock.arch}",
            hint=f"it is made for: {', '.join(loaded.spec.arch)}",
        )


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2, sort_keys=True) + "\n"
