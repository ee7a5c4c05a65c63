"""The command ``gpu-boot-check``: runs the checks side by side, and says and does what follows.

Exit codes: 0 healthy or degraded, 1 unhealthy, 2 unknown, 64 wrong arguments, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence

from validation.arguments import Parser
from validation.boot_checks import bundle, hooks, image, report, results, scripts, supervisor
from validation.boot_checks.check import Status
from validation.boot_checks.report import Report
from validation.boot_checks.results import CheckResult, Verdict

EXIT_CODES = {Verdict.HEALTHY: 0, Verdict.DEGRADED: 0, Verdict.UNHEALTHY: 1, Verdict.UNKNOWN: 2}
INTERRUPTED = 130
TOTAL_DEADLINE = 180.0  # seconds for all checks together; gpu-boot-check.service allows for it
# sd-daemon(3): what stands before a line decides its priority in the journal.
JOURNAL_PREFIX = {Status.FAIL: "<3>", Status.UNKNOWN: "<4>", Status.PASS: "<6>", Status.NOT_RUN: "<6>"}


def _arguments() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpu-boot-check",
        description="Judges this machine by the boot checks of its image.",
        epilog="Exit codes: 0 healthy or degraded, 1 unhealthy, 2 unknown, 64 wrong arguments.",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--list", action="store_true", help="list the checks and run none")
    parser.add_argument(
        "--check-only", action="store_true", help="only look: write no report, tell no console, run no hook"
    )
    parser.add_argument(
        "--deadline",
        type=float,
        default=TOTAL_DEADLINE,
        metavar="SECONDS",
        help="for all checks together (default: %(default)g)",
    )
    parser.add_argument("--root", default="/", metavar="DIR", help="a machine laid out in a folder (tests)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs the command with these arguments and returns its exit code. Nothing escapes as a traceback
    that a reader could take for a verdict: an error of our own is ``unknown``.
    """
    options = _arguments().parse_args(argv)
    os.environ[image.ROOT_VARIABLE] = os.path.abspath(options.root)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end the checks, then us
    try:
        if options.list:
            return _list()
        found = judge(deadline=options.deadline)
        if not options.check_only:
            _publish(found)
        _print(found, as_json=options.json)
        if found.verdict is Verdict.UNHEALTHY and not options.check_only:
            _run_hooks(found)
        return EXIT_CODES[found.verdict]
    except KeyboardInterrupt:
        print("gpu-boot-check: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `gpu-boot-check | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CODES[Verdict.UNKNOWN]
    except Exception as error:
        traceback.print_exc()
        report.tell_console([f"UNKNOWN: error in gpu-boot-check itself: {type(error).__name__}"])
        return EXIT_CODES[Verdict.UNKNOWN]


def judge(*, deadline: float) -> Report:
    """Runs all checks of this machine; ``deadline`` is the total in seconds."""
    started, clock = time.time(), time.monotonic()
    try:
        about, problem = image.read(), ""
    except image.BadImage as error:
        about, problem = None, str(error)
    digest, bundle_result = _check_bundle(about, problem)
    checks = [bundle_result, *_run_scripts(scripts.find(), deadline=deadline)]
    verdict, reason = results.verdict(checks)
    seconds = round(time.monotonic() - clock, 3)
    return Report(verdict, reason, about, digest, _boot_id(), started, seconds, checks)


def environment() -> dict[str, str]:
    """What checks and hooks get as environment. Nothing of the caller's: his CUDA_VISIBLE_DEVICES would
    hide GPUs from a check.
    """
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    if image.root() != "/":
        path = f"{image.at('/usr/bin')}:{path}"  # a machine laid out in a folder brings its own tools
    return {"PATH": path, "LC_ALL": "C.UTF-8", image.ROOT_VARIABLE: image.root()}


def _run_scripts(found: Sequence[scripts.Script], *, deadline: float) -> list[CheckResult]:
    programs = [
        supervisor.Program(image.at(script.path), script.deadline) for script in found if not script.problem
    ]
    ended = iter(supervisor.run(programs, env=environment(), deadline=deadline))
    outcomes = []
    for script in found:
        if script.problem:
            outcome = supervisor.Ended(script.path, None, b"", b"", 0.0, script.problem)
        else:
            outcome = next(ended)
        outcomes.append(results.of_script(outcome, script=script.path, sha256=script.sha256))
    return outcomes


def _check_bundle(about: image.Image | None, problem: str) -> tuple[str | None, CheckResult]:
    """The digest of the bundle on this disk, and whether it is the one that the image was built with."""
    try:
        digest = bundle.digest(bundle.on_disk())
    except OSError as error:
        reason = f"{error.filename} cannot be read: {error.strerror}"
        return None, CheckResult("bundle", Status.UNKNOWN, reason, {})
    if about is None:
        return digest, CheckResult("bundle", Status.UNKNOWN, problem, {"found": digest})
    data = {"expected": about.bundle_digest, "found": digest}
    if digest != about.bundle_digest:
        reason = f"the files under {image.BUNDLE} are not those of the build"
        return digest, CheckResult("bundle", Status.FAIL, reason, data)
    return digest, CheckResult("bundle", Status.PASS, "every file is as built", data)


def _boot_id() -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def _publish(found: Report) -> None:
    try:
        report.write(found)
    except OSError as error:
        reason = "only root can" if os.geteuid() else error.strerror
        _warn(f"the report was not written to {image.at(image.REPORT)}: {reason}")
    report.tell_console([line for _, line in report.as_lines(found)])


def _run_hooks(found: Report) -> None:
    try:
        outcomes = hooks.run_once(found.verdict, env=environment())
    except OSError as error:
        _warn(f"no hook of {image.at(image.HOOKS)} was run: {error.strerror}")
        return
    for outcome in outcomes:
        how = outcome["problem"] or f"exit code {outcome['exit_code']}"
        print(f"hook {outcome['hook']}: {how}", file=sys.stderr)
    if outcomes:
        _publish_hooks(found._replace(hooks=outcomes))


def _publish_hooks(found: Report) -> None:
    try:
        report.write(found)
    except OSError as error:
        _warn(f"what the hooks did is not in the report: {error.strerror}")


def _print(found: Report, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(report.as_json(found))
    else:
        in_journal = "JOURNAL_STREAM" in os.environ
        for status, line in report.as_lines(found):
            print(f"{JOURNAL_PREFIX[status]}{line}" if in_journal else line)
    sys.stdout.flush()


def _list() -> int:
    for script in scripts.find():
        note = f"  ({script.problem})" if script.problem else ""
        print(f"{script.path}  {script.deadline:g} s  sha256:{script.sha256}{note}")
    return 0


def _warn(text: str) -> None:
    print(f"gpu-boot-check: {text}", file=sys.stderr)
