"""Runs mmdebstrap, which sets up apt for another distribution and architecture below a scratch folder.

Works as root, and as an ordinary user through a user namespace (then ``uidmap`` and ``fakeroot`` are
needed).
What a killed run leaves (processes, mounts, files of other users) is found and removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from images import run
from images.errors import ExitCode, UserError

LOCK_HINT = "the archive has moved on: resolve the versions again with ./inv lock --cloud=CLOUD"
#: In the environment of everything that a run starts (TMPDIR is not: apt takes it from dpkg).
MARK = "GPU_IMAGE_BOOTSTRAP"
PREFIX = "gpu-image-bootstrap-"
SCRATCH = "scratch"
#: A bootstrap needs this much while it runs: the tar, the unpacked tree and the disk.
NEEDED_BYTES = 4 << 30


def call(
    args: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    scratch: Path,
    note: Callable[[str], None],
    log: Path | None = None,
    hint: str = LOCK_HINT,
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
        raise explain("\n".join(lines), log, hint=hint)
    return "\n".join(lines)


def explain(output: str, log: Path | None = None, *, hint: str = LOCK_HINT) -> UserError:
    """What a failed run means to the user, from what mmdebstrap and apt printed. ``hint`` is for a package
    that the archive does not have."""
    if gone := re.search(r"E: Version '(.+)' for '(.+)' was not found", output):
        return UserError(f"the archive no longer has {gone[2]} {gone[1]}", hint=hint)
    if gone := re.search(
        r"E: (?:Unable to locate package (\S+)|Package '(\S+)' has no installation candidate)", output
    ):
        return UserError(f"the archive has no package {gone[1] or gone[2]}", hint=hint)
    if unmet := re.search(r"^ *(\S+) : Depends: (.+)", output, re.MULTILINE):
        return UserError(f"the archive cannot satisfy a dependency: {unmet[1]} needs {unmet[2]}", hint=hint)
    if re.search(r"No space left on device|You don't have enough free space", output):
        return UserError(
            "the disk is full: mmdebstrap cannot write below its scratch folder",
            hint=f"a bootstrap needs {NEEDED_BYTES >> 30} GiB; ./inv clean frees images and caches",
            code=ExitCode.FAILED,
        )
    if re.search(r"E: Failed to fetch \S+\s+404 ", output):
        return UserError("a package has vanished from the archive while it was read", hint=LOCK_HINT)
    if untrusted := re.search(r"E: The repository '(\S+ \S+).*' is not signed", output):
        return UserError(
            f"no key of the keyring has signed the archive's index: {untrusted[1]}",
            hint="update the distribution's keyring package; a mirror carries the distribution's signature",
            code=ExitCode.FAILED,
        )
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
    if absent := re.search(
        r"E: The repository '(\S+) (\S+).*' (?:does not have|no longer has) a Release", output
    ):
        return UserError(
            f"the archive has no suite {absent[2]}: {absent[1]}",
            hint="check os.codename in the spec, and the mirror",
        )
    if absent := re.search(r"did not find any indices for architecture '(.+)' in suite '(.+)'", output):
        return UserError(
            f"the archive has nothing for {absent[1]} in suite {absent[2]}",
            hint="check the architecture, the component and the mirror",
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
        time.sleep(0.1)  # until the kernel has taken them away, or the deadline
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
