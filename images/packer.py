"""Packer: which one is there, what it prints, and running it so that nothing is left behind.

Its exit code is 0 or 1 and says little; what happened is in ``-machine-readable``
(https://developer.hashicorp.com/packer/docs/commands#machine-readable-output), and a build is done when
the code is 0 *and* its manifest lists an artifact.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from images import run, sshkey
from images.clouds import Cloud
from images.errors import ExitCode, UserError
from images.render import Version
from images.settings import CHECKOUT

OLDEST: Version = (1, 6, 6)
GRACE = 90.0  # seconds Packer gets to clean up after SIGINT

# CHECKPOINT_DISABLE: no call home. A colour code would end up in the parsed lines.
ENVIRONMENT = {"CHECKPOINT_DISABLE": "1", "PACKER_NO_COLOR": "1", "PACKER_LOG": ""}


def binary() -> str:
    """``$PACKER``, else ``packer`` of the PATH. Raises ``UserError`` when there is none."""
    wanted = os.environ.get("PACKER") or "packer"
    found = shutil.which(wanted)
    if not found:
        raise UserError(
            f"{wanted} is not installed", hint="./inv doctor says how to get it, or set PACKER to its path"
        )
    return found


def version() -> Version:
    """The version of the Packer that ``binary`` finds."""
    result = run.run([binary(), "version"], env=ENVIRONMENT, timeout=30)
    return parse_version(result.stdout)


def parse_version(text: str) -> Version:
    """``Packer v1.6.6`` -> ``(1, 6, 6)``. Raises ``UserError`` for anything else or older than 1.6.6."""
    match = re.search(r"\bv?(\d+)\.(\d+)(?:\.(\d+))?", text)
    if not match:
        raise UserError(f"not a Packer version: {text.strip()[:80]!r}", hint="for example 1.6.6 or 1.14.2")
    found = tuple(int(part or 0) for part in match.groups())
    if found < OLDEST:
        raise UserError(f"Packer {'.'.join(map(str, found))} is too old; 1.6.6 is the oldest that works")
    return found


#: Steps that Packer announces and nobody needs to read.
UNINTERESTING = re.compile(
    r"Retrieving ISO|Trying |.* => |leaving retrieve loop|Overriding default|Connecting to VM via VNC|"
    r"Typing the boot command|Found port for|Looking for available port|Using \w+ communicator|"
    r"Creating CD disk|Resizing|Executing Ansible|Connected to SSH|"
    r"Prevalidating|Using existing SSH|Adding tags|Tagging snapshot|Creating (AMI|snapshot) tags|"
    r"Cleaning up any extra|No volumes to|"
    r"Running post-processor|Wait completed|Builds finished|Error |sudo: "
)


#: The name of a temporary key pair or security group: Packer 1.6 cannot tag them.
TEMPORARY_NAME = re.compile(r"\bpacker_[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


@dataclass(frozen=True)
class Event:
    """One line of ``-machine-readable``: ``target`` is empty for ``ui`` lines."""

    target: str
    kind: str
    data: tuple[str, ...]


def parse_line(line: str) -> Event | None:
    """Reads one line ``epoch,target,type,data...``; None for anything else (Packer mixes in Go logs)."""
    parts = line.split(",")
    if len(parts) < 3 or not parts[0].isdigit():
        return None
    return Event(parts[1], parts[2], tuple(_decode(part) for part in parts[3:]))


def _decode(text: str) -> str:
    return text.replace("%!(PACKER_COMMA)", ",").replace("\\n", "\n").replace("\\r", "\r")


@dataclass
class Log:
    """What a build has said so far: fed line by line, asked at the end."""

    step: str = ""
    task: str = ""
    errors: list[str] = field(default_factory=list)
    failed_task: str = ""
    failed_message: str = ""
    cancelled: bool = False
    host: str = ""
    port: int = 22
    names: set[str] = field(default_factory=set)

    def feed(self, line: str) -> str | None:
        """Takes one line; returns the text to show a person when it starts a step or an Ansible task."""
        event = parse_line(line)
        if event is None:
            return None
        if event.kind == "error" and event.data:
            self.errors.append(event.data[0].strip())
        if event.kind != "ui" or len(event.data) < 2:
            return None
        text = re.sub(r"^(==> |    )?[\w.-]+: ", "", event.data[1]).strip()
        self.names |= set(TEMPORARY_NAME.findall(text))
        if "Cleanly cancelled builds" in event.data[1]:
            self.cancelled = True
        if match := re.match(r"Using ssh communicator to connect: (\S+)", text):
            self.host = match[1]
        if match := re.match(r"Found port for communicator.*: (\d+)", text):
            self.port = int(match[1])
        if match := re.match(r"TASK \[(.+?)\]", text):
            self.task = match[1]
            return self.task
        if re.match(r"(fatal|failed): \[", text) and not self.failed_task:
            self.failed_task = self.task
            self.failed_message = _ansible_message(text)
        elif self.failed_task and not self.failed_message and '"msg":' in text:
            self.failed_message = _ansible_message(text)
        if event.data[1].startswith("==> "):
            self.step = text.splitlines()[0] if text else self.step
            return None if UNINTERESTING.match(self.step) else self.step
        return None

    @property
    def ansible_failure(self) -> str | None:
        """``role : task: message`` of the task that failed, if one did."""
        if not self.failed_task:
            return None
        return f"{self.failed_task}: {self.failed_message or 'see the log'}"


def _ansible_message(text: str) -> str:
    """The ``msg`` of an Ansible result line, whether its JSON is whole or not."""
    _, arrow, rest = text.partition("=>")
    try:
        # Packer escapes line ends as JSON does, so by now JSON's own are line ends: not strict.
        result = json.loads(rest if arrow else "{" + text.strip().rstrip(",") + "}", strict=False)
    except ValueError:
        match = re.search(r'"msg": "((?:[^"\\]|\\.)*)"', text)
        return match[1] if match else ""
    message = str(result.get("msg", ""))
    stderr = str(result.get("stderr", "")).strip()
    return message if not stderr or stderr in message else f"{message}: {stderr}"


def validate(folder: Path, variables: Path | None) -> None:
    """``packer validate``; it prints errors to stdout and, in 1.6.6, nothing on success."""
    options = [f"-var-file={variables}"] if variables else []
    result = run.run(
        [binary(), "validate", *options, str(folder)], env=ENVIRONMENT, check=False, timeout=120
    )
    if result.returncode:
        text = (result.stdout + result.stderr).strip()
        raise UserError(f"packer validate refuses {folder}:\n{text}", code=ExitCode.FAILED)


def build(
    folder: Path,
    *,
    variables: Path,
    log: Path,
    temporary: Path,
    environment: Mapping[str, str],
    keep: bool,
    on_progress: Callable[[str], None],
    on_line: Callable[[str], None] | None = None,
    on_name: Callable[[str], None] | None = None,
    on_tick: Callable[[], None] | None = None,
) -> Log:
    """Runs ``packer build`` on a rendered folder and returns what it said.

    ``temporary`` is private to this build, because Packer leaks keys and seeds into it. ``keep`` leaves
    the machine on a failure. ``on_name`` gets each temporary name that Packer gave in the cloud;
    ``on_tick`` is called about every second and may raise to stop the build.
    Raises ``BuildFailed``; on an interruption Packer's whole group gets SIGINT and time to clean up.
    """
    said = Log()

    def take(line: str) -> None:
        known = set(said.names)
        shown = said.feed(line)
        if on_name:
            for name in sorted(said.names - known):
                on_name(name)
        if shown:
            on_progress(shown)
        if on_line:
            event = parse_line(line)
            on_line(event.data[-1] if event and event.data else line)

    command = [
        binary(),
        "build",
        "-machine-readable",
        f"-on-error={'abort' if keep else 'cleanup'}",
        f"-var-file={variables}",
        str(folder),
    ]
    # Relative paths in a template count from here, and so does everything Packer drops.
    code = run.supervise(
        command,
        on_line=take,
        on_tick=on_tick,
        cwd=temporary,
        env={
            **ENVIRONMENT,
            "TMPDIR": str(temporary),
            "PACKER_CACHE_DIR": str(temporary / "packer_cache"),
            "PACKER_CONFIG_DIR": os.environ.get("PACKER_CONFIG_DIR", str(Path.home())),
            **environment,
        },
        grace=GRACE,
        log=log,
        keep=keep,
    )
    if code:
        raise BuildFailed(said, code)
    return said


class BuildFailed(UserError):
    """Packer ended with an error; ``log`` has what it said."""

    def __init__(self, log: Log, code: int) -> None:
        self.log = log
        reason = log.ansible_failure or (log.errors[0] if log.errors else f"Packer ended with code {code}")
        super().__init__(reason, code=ExitCode.FAILED)


def artifacts(manifest: Path) -> list[str]:
    """The files or ids that Packer's manifest lists for the last run. Raises ``UserError`` for none:
    Packer's exit code 0 alone proves nothing (``-only=nomatch`` gives 0 too)."""
    try:
        document = json.loads(manifest.read_bytes())
        last = [
            entry for entry in document["builds"] if entry["packer_run_uuid"] == document["last_run_uuid"]
        ]
        found = [file["name"] for entry in last for file in entry.get("files") or []]
        found = found or [entry["artifact_id"] for entry in last if entry.get("artifact_id")]
    except (OSError, ValueError, KeyError, TypeError):
        found = []
    if not found:
        raise UserError(
            f"Packer ended without an error, but {manifest} names no artifact", code=ExitCode.FAILED
        )
    return found


def validate_rendering(folder: Path, cloud: Cloud) -> None:
    """``packer validate`` of a rendering alone, with placeholders for what only a build has."""
    with tempfile.TemporaryDirectory(prefix="gpu-image-") as name:
        temporary = Path(name)
        placeholder = temporary / "placeholder"
        placeholder.write_text("placeholder\n")
        common = {
            "work_directory": name,
            "image_name": "placeholder",
            "build_id": "placeholder",
            "private_key_file": str(sshkey.generate(temporary, "placeholder").private),  # it is parsed
            "roles_directory": str(CHECKOUT / "roles"),
            "ansible_command": str(Path(sys.executable).parent / "ansible-playbook"),
            "ansible_arguments": [],
            "ansible_environment": [],
            "gate_command": "true",
        }
        variables = temporary / "placeholders.pkrvars.json"
        variables.write_text(json.dumps({**common, **cloud.placeholders(placeholder)}))
        validate(folder, variables)
