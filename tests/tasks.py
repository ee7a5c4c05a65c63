"""The tasks that test, and that let a person try."""

from __future__ import annotations

import sys

from invoke.collection import Collection
from invoke.context import Context

from images.cli import task

NO_TESTS = 5  # pytest's exit code when a selection is empty


@task(
    help={
        "fast": "no virtual machine; at most 3 minutes",
        "full": "everything, also what takes hours",
        "only": "only tests whose name matches this pytest expression",
        "yes": "install missing system packages without asking",
        "no_install": "only print what is missing, exit 2",
    }
)
def test(
    c: Context,
    fast: bool = False,
    full: bool = False,
    only: str | None = None,
    yes: bool = False,
    no_install: bool = False,
) -> None:
    """Run the tests: linters, types and unit tests; then, if they pass, those that start machines.

    Those share one local build.
    """
    from images import clouds, doctor
    from images.errors import UserError
    from images.settings import CHECKOUT

    if fast and full:
        raise UserError(
            "--fast and --full exclude each other", hint="without both: all but what takes hours"
        )
    programs = {**doctor.PROGRAMS, **doctor.TEST_PROGRAMS}
    for name in clouds.names():
        programs |= clouds.load(name).programs
    doctor.ensure(programs, yes=yes, install=not no_install)
    if only:
        _require_expression(only)
    words = [sys.executable, "-m", "pytest", str(CHECKOUT / "tests"), *(["-k", only] if only else [])]
    side_by_side = [*words, "-n", "auto", "--dist", "loadscope", "-m"]
    quick = [*side_by_side, "not vm and not full and not box" if fast else "not vm and not full"]
    slow = [*words, "-m", "vm or full" if full else "vm and not full"]
    # pytest's own output and exit code are this task's: its closing line is the last one printed. Machines
    # share the processors with nothing else, and are not started after a failure that is known by then.
    found = NO_TESTS
    for command in [quick] if fast else [quick, slow]:
        code = _run(command)
        if code not in (0, NO_TESTS):
            sys.exit(code)
        found = min(found, code)
    if found:
        sys.exit(found)


@task(
    help={
        "command": "run this in the box instead of a shell, for example './inv build --cloud=aws'",
        "accel": "kvm or tcg (default: kvm where a guest really runs with it)",
        "yes": "install missing system packages without asking",
    }
)
def sim(c: Context, command: str | None = None, accel: str | None = None, yes: bool = False) -> None:
    """Start AWS in a box on this machine, and a shell in which ./inv --cloud=aws works with it.

    The account is simulated, its machines are real virtual machines; nothing leaves this machine but what
    asks the distribution's archive for versions. Everything ends, and is gone, with the shell. Needs root:
    each machine has its SSH on port 22 of an address of its own.
    """
    from images import clouds, doctor, settings
    from tests.cloud_sim import session

    local = clouds.load("local")
    doctor.ensure({**doctor.PROGRAMS, **local.programs}, yes=yes, install=True)
    code = session.run(settings.load(c.config), command=command, accelerator=accel)
    if code:
        sys.exit(code)


def _require_expression(only: str) -> None:
    """Ends with pytest's own message for a wrong expression; side by side it would be an internal error."""
    import subprocess
    import tempfile

    from images.errors import UserError

    with tempfile.TemporaryDirectory() as empty:
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-c",
            "/dev/null",
            "--rootdir",
            empty,
            empty,
            "-k",
            only,
        ]
        done = subprocess.run(words, cwd=empty, capture_output=True, text=True, check=False)
    if done.returncode != NO_TESTS:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        raise UserError(
            f"--only={only}: {said[0].removeprefix('ERROR: ') if said else done.stderr.strip()}",
            hint="names and parts of names with 'and', 'or', 'not' and brackets, as pytest's -k",
        )


def _run(words: list[str]) -> int:
    """Runs pytest with this terminal; an interruption reaches it and its clean-up is waited for."""
    import signal
    import subprocess

    from images.errors import Interrupted

    with subprocess.Popen(words) as process:
        while True:
            try:
                return process.wait()
            except Interrupted:
                process.send_signal(signal.SIGINT)


def collection() -> Collection:
    """These tasks."""
    return Collection(test, sim)
