"""Runs mmdebstrap: asks the archives for versions, and makes the root file system of the base disk.

The distribution's own default mirror is used (no mirror argument), so no host name stands here. Works as
root, and as an ordinary user through a user namespace (then ``uidmap`` and ``fakeroot`` are needed).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images import run
from images.errors import ExitCode, UserError

LOCK_HINT = "the archive has moved on: resolve the versions again with ./inv lock --cloud=local"
#: In the environment of everything that a bootstrap starts (TMPDIR is not: apt takes it from dpkg).
MARK = "GPU_IMAGE_BOOTSTRAP"
PREFIX = "gpu-image-bootstrap-"
SCRATCH = "scratch"
#: A bootstrap needs this much while it runs: the tar, the unpacked tree and the disk.
NEEDED_BYTES = 4 << 30


@dataclass(frozen=True)
class Package:
    """One package as the archive has it: ``file`` is the path below the archive's root, ``size`` bytes."""

    name: str
    version: str
    sha256: str
    size: int
    file: str


@dataclass(frozen=True)
class Index:
    """An archive index as it was seen: ``suite`` is its codename, ``date`` as the archive writes it."""

    suite: str
    date: str
    sha256: str


@dataclass(frozen=True)
class Resolved:
    """What the archives have now."""

    packages: tuple[Package, ...]
    indexes: tuple[Index, ...]


def resolve(
    *,
    suite: str,
    kernel_package: str = "linux-image-cloud-amd64",
    packages: Sequence[str] = (),
    note: Callable[[str], None] = lambda _: None,
) -> Resolved:
    """The candidate versions of ``kernel_package``, the kernel images it pulls in, and ``packages``.

    A name may carry a version (``name=version``). Nothing is installed; takes some 6 s. Raises
    ``UserError`` when the archive cannot be reached or has no such package.
    """
    wanted = [kernel_package, *packages]
    with scratch_folder(None) as scratch:
        output = mmdebstrap(
            ["--variant=custom", "--format=null", f"--customize-hook={RESOLVE_HOOK}", suite, "-"],
            env={"PACKAGES": " ".join(wanted)},
            scratch=scratch,
            note=note,
        )
    resolved = Resolved(read_packages(output), read_indexes(output))
    found = {package.name for package in resolved.packages}
    if missing := [name for name in wanted if name.split("=")[0] not in found]:
        raise UserError(f"the archive has no package {', '.join(missing)}", hint="check the spec")
    return resolved


RESOLVE_HOOK = r"""set -eu
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
apt-get --simulate --no-install-recommends install $PACKAGES >"$1/simulated"
images=$(sed -n 's/^Inst \(linux-image-[^ ]*\) (\([^ ]*\) .*/\1=\2/p' "$1/simulated")
apt-cache show --no-all-versions $PACKAGES $images | sed 's/^/@package /'
for index in "$1"/var/lib/apt/lists/*InRelease; do
    sha256sum <"$index" | sed 's/ .*//; s/^/@index Digest: /'
    sed -n '/^Codename: \|^Date: /s/^/@index /p; /^SHA256:/q' "$index"
done
"""


def read_packages(output: str) -> tuple[Package, ...]:
    """The stanzas of ``apt-cache show`` (lines marked ``@package``), each package once, sorted by name."""
    lines = [line[9:].lstrip() for line in output.splitlines() if line.startswith("@package")]
    found: dict[str, Package] = {}
    for stanza in "\n".join(lines).split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
        if "Package" in fields:
            found[fields["Package"]] = Package(
                name=fields["Package"],
                version=fields["Version"],
                sha256=fields["SHA256"],
                size=int(fields["Size"]),
                file=fields["Filename"],
            )
    return tuple(found[name] for name in sorted(found))


def read_indexes(output: str) -> tuple[Index, ...]:
    """The indexes (lines marked ``@index``: digest, then fields of the InRelease), sorted by suite."""
    indexes: list[dict[str, str]] = []
    for line in output.splitlines():
        if line.startswith("@index "):
            key, value = line[7:].split(": ", 1)
            if key == "Digest":
                indexes.append({})
            indexes[-1][key] = value
    return tuple(
        sorted(
            (Index(index["Codename"], index["Date"], index["Digest"]) for index in indexes),
            key=lambda index: index.suite,
        )
    )


def make_root(
    tar: Path,
    *,
    suite: str,
    packages: Sequence[str],
    kernel_packages: Mapping[str, str],
    root_uuid: str,
    esp_id: str,
    scratch: Path,
    log: Path,
    note: Callable[[str], None],
) -> None:
    """Bootstraps ``suite`` with ``packages`` into ``tar``.

    The apt lists stay in it, and the locked ``kernel_packages`` (name -> version) lie downloaded in apt's
    cache: both cost half a minute in a virtual machine. ``log`` gets all output.
    """
    hook = Path(__file__).with_name("base_customize.sh").read_text()
    mmdebstrap(
        [
            "--variant=apt",
            "--format=tar",
            "--skip=cleanup/apt",
            f"--include={','.join(packages)}",
            f"--customize-hook={hook}",
            suite,
            tar,
        ],
        env={
            "ROOT_UUID": root_uuid,
            "ESP_ID": esp_id,
            "KERNELS": " ".join(f"{name}={version}" for name, version in sorted(kernel_packages.items())),
        },
        scratch=scratch,
        note=note,
        log=log,
    )


def mmdebstrap(
    args: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    scratch: Path,
    note: Callable[[str], None],
    log: Path | None = None,
) -> str:
    """Runs mmdebstrap below ``scratch`` and returns all it printed. Raises ``UserError`` as ``explain``."""
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        if log:
            with log.open("a") as file:
                file.write(line + "\n")
        if step := re.match(r"I: ([a-z][^/']*?)(\.\.\.)?$", line):
            note(step[1])

    mode = "root" if os.geteuid() == 0 else "unshare"
    if mode == "unshare" and not shutil.which("newuidmap"):
        raise UserError("newuidmap is not installed", hint="apt install uidmap, or build as root")
    # The tools' own words are read below, so they must not be translated.
    environment = {
        **env,
        "TMPDIR": str(scratch),
        MARK: str(scratch),
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    code = run.supervise(["mmdebstrap", f"--mode={mode}", *args], on_line=on_line, env=environment, grace=10)
    if code:
        raise explain("\n".join(lines), log)
    return "\n".join(lines)


def explain(output: str, log: Path | None = None) -> UserError:
    """What a failed bootstrap means to the user, from what mmdebstrap and apt printed."""
    if gone := re.search(r"E: Version '(.+)' for '(.+)' was not found", output):
        return UserError(f"the archive no longer has {gone[2]} {gone[1]}", hint=LOCK_HINT)
    if gone := re.search(
        r"E: (?:Unable to locate package (\S+)|Package '(\S+)' has no installation candidate)", output
    ):
        return UserError(f"the archive has no package {gone[1] or gone[2]}", hint=LOCK_HINT)
    if re.search(r"No space left on device|You don't have enough free space", output):
        return UserError(
            "the disk is full while the base disk is made",
            hint=f"a bootstrap needs {NEEDED_BYTES >> 30} GiB; ./inv clean frees images and caches",
            code=ExitCode.FAILED,
        )
    if re.search(r"E: Failed to fetch \S+\s+404 ", output):
        return UserError("a package has vanished from the archive while it was read", hint=LOCK_HINT)
    if re.search(
        r"(Temporary failure resolving|Could not resolve|Could not connect|Connection refused|"
        r"Network is unreachable|Unable to connect|Connection timed out)",
        output,
    ):
        return UserError(
            "no network: the distribution's archive cannot be reached",
            hint="check the connection, the proxy (http_proxy) and apt's own settings, then run it again",
            code=ExitCode.FAILED,
        )
    errors = [line for line in output.splitlines() if line.startswith("E: ")] or output.splitlines()[-3:]
    return UserError(
        "\n  ".join(["mmdebstrap failed", *errors]),
        hint=f"its output is in {log}" if log else None,
        code=ExitCode.FAILED,
    )


@contextlib.contextmanager
def scratch_folder(beside: Path | None) -> Iterator[Path]:
    """A folder for mmdebstrap's temporary root, gone at the end with all mounts in it.

    In ``beside`` where mmdebstrap's user can reach it, else in the system's folder for temporary files: in
    a user namespace it is another user, who may not pass through a private home.
    """
    place = beside if beside and (os.geteuid() == 0 or passable(beside)) else None
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    folder.chmod(0o755)
    if beside:
        (beside / SCRATCH).write_text(str(folder))  # so that the next build finds it if we are killed
    try:
        yield folder
    finally:
        remove_tree(folder)
        if beside:
            (beside / SCRATCH).unlink()


def passable(folder: Path) -> bool:
    """Whether every user may pass through ``folder`` and all folders above it."""
    return all(part.stat().st_mode & stat.S_IXOTH for part in (folder, *folder.resolve().parents))


def remove_dead(folder: Path) -> None:
    """Removes the folder of a build that is known to be dead, and the scratch folder it used elsewhere."""
    with contextlib.suppress(FileNotFoundError):
        scratch = Path((folder / SCRATCH).read_text())
        if scratch.name.startswith(PREFIX):
            remove_tree(scratch)
    remove_tree(folder)


def remove_tree(folder: Path) -> None:
    """Removes a folder that a bootstrap used, and first what a killed one left: processes and mounts.

    As root mmdebstrap mounts the machine's own /dev/shm in its chroot, so nothing is deleted while any
    mount is left, and deleting stays on one file system.
    """
    deadline = time.monotonic() + 10
    while (pids := processes_of(folder)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    for mount in mounted_below(Path("/proc/self/mountinfo").read_text(), folder.resolve()):
        run.run(["umount", "--lazy", mount])
    if not mounted_below(Path("/proc/self/mountinfo").read_text(), folder.resolve()):
        command = ["rm", "-rf", "--one-file-system", str(folder)]
        run.run(command, check=False)
        if folder.exists() and os.geteuid():  # files of the user namespace's users
            run.run(["mmdebstrap", "--unshare-helper", *command], check=False)
    if folder.exists():
        raise UserError(f"{folder} cannot be removed", hint="remove it by hand", code=ExitCode.FAILED)


def processes_of(folder: Path, proc: Path = Path("/proc")) -> list[int]:
    """Processes of a bootstrap whose scratch folder is ``folder`` or below it, by their environment."""
    marks = (f"\0{MARK}={folder}\0".encode(), f"\0{MARK}={folder}/".encode())
    found = []
    for environment in proc.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            content = b"\0" + environment.read_bytes()
            if any(mark in content for mark in marks):
                found.append(int(environment.parent.name))
    return found


def mounted_below(mountinfo: str, folder: Path) -> list[Path]:
    """Mount points below ``folder``, the deepest first. ``mountinfo``: proc_pid_mountinfo(5)."""
    points = [
        Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split()[4]))
        for line in mountinfo.splitlines()
    ]
    return sorted((point for point in points if folder in point.parents), reverse=True)


def code_digest(*files: Path) -> str:
    """SHA-256 over the content of our own files, so that a change of theirs makes another base."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
