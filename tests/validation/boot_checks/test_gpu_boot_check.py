"""The runner as a process, with real processes as checks: it always comes back and never guesses."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .conftest import Machine

HEALTHY = {"healthy": 0, "degraded": 0, "unhealthy": 1, "unknown": 2}


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ({"a": ("pass", 0)}, "healthy"),
        ({"a": ("pass", 0), "b": ("not_run", 3)}, "healthy"),
        ({"a": ("pass", 0), "b": ("fail", 1)}, "unhealthy"),
        ({"a": ("unknown", 2), "b": ("fail", 1)}, "unhealthy"),
        ({"a": ("pass", 0), "b": ("unknown", 2)}, "unknown"),
        ({"a": ("not_run", 3)}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_the_worst_status_decides(
    machine: Machine, statuses: dict[str, tuple[str, int]], verdict: str
) -> None:
    for name, (status, code) in statuses.items():
        machine.result(name, status, code)
    done = machine.run()
    assert done.report["verdict"] == verdict
    assert done.code == HEALTHY[verdict]
    assert {name: done.result(name)["status"] for name in statuses} == {
        name: status for name, (status, _) in statuses.items()
    }


def test_a_check_that_passes_can_say_that_the_machine_is_degraded(machine: Machine) -> None:
    machine.result("link", "pass", 0, data={"degraded": ["GPU 3 runs at PCIe x8"]})
    done = machine.run()
    assert (done.report["verdict"], done.code) == ("degraded", 0)
    assert done.report["reason"] == "link: GPU 3 runs at PCIe x8"


def good(**changes: object) -> str:
    document = {"check": "x", "status": "pass", "reason": "", "data": {}, **changes}
    return f"echo '{json.dumps(document)}'"


BAD_OUTPUT = [
    ("exit 0", "it printed nothing (exit code 0)"),
    ("echo fine", "it did not print one JSON object"),
    (f"echo starting; {good()}", "it did not print one JSON object"),
    ("echo '[]'", "it did not print one JSON object"),
    ('echo \'{"check": "x", "status": \'', "it did not print one JSON object"),
    (r"printf '\xff\xfe{'", "it did not print one JSON object"),
    ("printf '[%.0s' {1..60000}", "it did not print one JSON object"),
    (good(data={"x": 1}).replace("1", "NaN"), "NaN is not JSON"),
    (good(check=None), "no 'check'"),
    (good(status="ok"), "no valid 'status': \"ok\""),
    (good(status=["pass"]), "no valid 'status'"),
    (good(reason=3), "no 'reason'"),
    (good(status="fail") + "; exit 1", "says fail and has no 'reason'"),
    (good(data=[1]), "a 'data' that is no object"),
    (good() + "; exit 1", "it says pass, but its exit code is 1, not 0"),
    (good(status="fail", reason="r"), "it says fail, but its exit code is 0, not 1"),
    (good() + "; kill -SEGV $$", "it died by SIGSEGV"),
    (good() + "; kill -KILL $$", "it died by SIGKILL"),
]


def test_a_check_that_does_not_answer_properly_is_unknown(machine: Machine) -> None:
    for number, (body, _) in enumerate(BAD_OUTPUT, start=10):
        machine.bash(f"{number}-case{number}", body.replace('"check": "x"', f'"check": "case{number}"'))
    done = machine.run()
    assert (done.report["verdict"], done.code) == ("unknown", 2)
    for number, (body, reason) in enumerate(BAD_OUTPUT, start=10):
        result = done.result(f"case{number}")
        assert (result["status"], reason in result["reason"]) == ("unknown", True), (body, result["reason"])


def test_checks_that_cannot_be_started_are_unknown(machine: Machine) -> None:
    machine.check("10-mode", "#!/bin/sh\n", mode=0o644)
    machine.check("20-interpreter", "#!/nowhere\n")
    machine.check("30-format", "no first line")
    (machine.checks / "40-folder").mkdir()
    (machine.checks / "50-dangling").symlink_to("nowhere")
    machine.bash("60-header", "# boot-check: deadline=soon")
    (machine.checks / ".hidden").write_text("an editor's")
    reasons = {result["check"]: result["reason"] for result in machine.run().report["checks"]}
    assert reasons.pop("bundle")
    assert reasons.keys() == {"mode", "interpreter", "format", "folder", "dangling", "header"}
    assert reasons["mode"] == "it is not executable"
    assert reasons["interpreter"] == "it cannot be started: No such file or directory"
    assert reasons["format"] == "it cannot be started: Exec format error"
    assert reasons["folder"] == reasons["dangling"] == "it is not a file"
    assert "deadline=soon" in reasons["header"]


def test_hanging_checks_are_ended_side_by_side(machine: Machine, tmp_path: Path) -> None:
    """One ends on SIGTERM, one ignores it, one is in the D state as long as its vfork child lives."""
    deadline = "# boot-check: deadline=1\n"
    machine.bash("10-polite", f"{deadline}echo $$ >{tmp_path}/polite\nsleep 60")
    machine.bash("20-deaf", f"{deadline}trap '' TERM\necho $$ >{tmp_path}/deaf\nwhile :; do sleep 60; done")
    machine.check(
        "30-waiting",
        "#!/usr/bin/python3 -IBS\n"
        f"{deadline}"
        "import ctypes, os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open('{tmp_path}/waiting', 'w').write(str(os.getpid()))\n"
        "libc = ctypes.PyDLL(None)\n"
        "if libc.vfork() == 0:\n"
        "    libc.sleep(60)\n"
        "    libc._exit(0)\n",
    )
    machine.result("fine", "pass", 0)
    started = time.monotonic()
    done = machine.run()
    assert time.monotonic() - started < 6  # 1 s, and 2 + 1 for SIGTERM and SIGKILL: not the sum over checks
    for name in ("polite", "deaf", "waiting"):
        assert done.result(name)["status"] == "unknown"
        assert done.result(name)["reason"].startswith("no answer within 1 s")
        assert not Path(f"/proc/{(tmp_path / name).read_text().strip()}").exists()
    assert done.result("fine")["status"] == "pass"


def test_the_total_deadline_ends_checks_with_a_later_one(machine: Machine) -> None:
    machine.bash("10-long", "# boot-check: deadline=50\nsleep 60")
    done = machine.run("--json", "--deadline=0.3")
    assert done.result("long")["reason"] == "no answer within 0.3 s"
    assert done.report["seconds"] < 3


@pytest.mark.parametrize(("stream", "limit"), [("stdout", "64 KiB"), ("stderr", "1024 KiB")])
def test_a_flood_is_cut_off(machine: Machine, stream: str, limit: str) -> None:
    machine.bash("10-flood", f"yes flood >/dev/{stream}")
    done = machine.run()
    assert done.result("flood")["reason"] == f"it printed more than {limit} on {stream}"
    assert done.report["seconds"] < 5
    assert len(done.stdout) < 10_000


def test_a_flood_of_a_check_that_ends_is_one_too(machine: Machine) -> None:
    machine.bash("10-flood", f"{good()}; printf ' %.0s' {{1..70000}}")
    assert machine.run().result("flood")["reason"] == "it printed more than 64 KiB on stdout"


def test_a_grandchild_that_keeps_the_pipe_open_delays_nothing(machine: Machine, tmp_path: Path) -> None:
    machine.bash("10-a", f"sleep 60 & echo $! >{tmp_path}/in-group\n{good(check='a')}")
    machine.bash("20-b", f"setsid bash -c 'echo $$ >{tmp_path}/escaped; exec sleep 60' &\n"
                 f"until [ -s {tmp_path}/escaped ]; do :; done\n{good(check='b')}")  # fmt: skip
    done = machine.run()
    escaped = int((tmp_path / "escaped").read_text())
    os.kill(escaped, signal.SIGKILL)  # systemd would end it with the unit
    assert done.report["verdict"] == "healthy"
    assert done.report["seconds"] < 5
    in_group = Path(f"/proc/{(tmp_path / 'in-group').read_text().strip()}/stat")
    end = time.monotonic() + 5
    while in_group.exists() and " Z " not in in_group.read_text():
        assert time.monotonic() < end


def test_the_end_of_stderr_is_kept(machine: Machine) -> None:
    machine.bash("10-loud", f"seq 100000 >&2; echo last words >&2; {good(check='loud')}")
    stderr = machine.run().result("loud")["stderr"]
    assert stderr.endswith("99999\n100000\nlast words")
    assert len(stderr) <= 2048


def test_checks_get_a_clean_environment_and_no_input(machine: Machine) -> None:
    machine.bash(
        "10-env",
        """data=$(env | cut -d= -f1 | sort | grep -v '^_$\\|^PWD$\\|^SHLVL$' | paste -sd' ')
        printf '{"check": "env", "status": "pass", "reason": "%s|%s"}' "$data" "$(cat)" """,
    )
    done = machine.run(env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "LD_PRELOAD": "", "PYTHONPATH": "/x"})
    assert done.result("env")["reason"] == "GPU_IMAGE_ROOT LC_ALL PATH|"


def test_the_report_on_disk(machine: Machine) -> None:
    script = machine.result("a", "pass", 0, data={"n": [1]})
    done = machine.run()
    report = json.loads(machine.report_file.read_text())
    assert report == done.report
    assert {key: report[key] for key in ("schema", "family", "version", "build_id", "bundle_digest")} == {
        "schema": "gpu-image/boot-check/v1",
        "family": "gpu-debian",
        "version": "2026.1130.54712",
        "build_id": "gpu-debian-2026.1130.54712-3fa9",
        "bundle_digest": machine.image["bundle_digest"],
    }
    assert report["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    result = done.result("a")
    assert result["script"] == "/usr/lib/gpu-image/boot-checks.d/50-a"
    assert result["sha256"] == hashlib.sha256(script.read_bytes()).hexdigest()
    assert result["data"] == {"n": [1]}
    assert machine.report_file.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in machine.report_file.parent.iterdir()] == ["boot-check.json"]


@pytest.mark.parametrize("change", ["content", "mode", "added", "removed", "link"])
def test_a_changed_bundle_is_a_failure(machine: Machine, change: str) -> None:
    script = machine.result("a", "pass", 0)
    expected = machine.seal()
    match change:
        case "content":
            script.write_text(script.read_text() + "\n# changed\n")
        case "mode":
            (machine.lib / "validation/__init__.py").chmod(0o755)
        case "added":
            (machine.lib / "extra").write_text("")
        case "removed":
            (machine.lib / "validation/__init__.py").unlink()
            (machine.lib / "validation/boot_checks/hooks.py").touch()
        case "link":
            content = script.rename(machine.root / "elsewhere")
            script.symlink_to(content)
    done = machine.run(sealed=False)
    bundle = done.result("bundle")
    assert (done.report["verdict"], done.code, bundle["status"]) == ("unhealthy", 1, "fail")
    assert bundle["data"] == {"expected": expected, "found": done.report["bundle_digest"]}
    assert bundle["data"]["found"] != expected


def test_compiled_python_is_no_change(machine: Machine) -> None:
    machine.result("a", "pass", 0)
    machine.seal()
    subprocess.run(["/usr/bin/python3", "-m", "compileall", "-q", machine.lib], check=True)
    assert list(machine.lib.rglob("*.pyc"))
    assert machine.run(sealed=False).report["verdict"] == "healthy"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"services": "ssh"}', "'services' is not a list"),
        ('{"services": [], "family": "f", "version": 3}', "'version' is missing or not a text"),
    ],
)
def test_without_a_usable_image_json_nothing_can_be_told(
    machine: Machine, text: str | None, reason: str
) -> None:
    machine.result("a", "pass", 0)
    if text is not None:
        (machine.lib / "image.json").write_text(text)
    done = machine.run(sealed=False)
    assert (done.report["verdict"], done.code) == ("unknown", 2)
    assert reason in done.result("bundle")["reason"]
    assert done.report["build_id"] is None
    assert "Traceback" not in done.stderr


def test_hooks_run_once_a_boot_on_an_unhealthy_machine(machine: Machine, tmp_path: Path) -> None:
    machine.result("a", "fail", 1)
    machine.hook("20-second", f'echo "second $GPU_IMAGE_VERDICT" >>{tmp_path}/log; exit 5')
    machine.hook("10-first", f'cp "$GPU_IMAGE_REPORT" {tmp_path}/seen; echo first >>{tmp_path}/log')
    done = machine.run()
    assert (tmp_path / "log").read_text() == "first\nsecond unhealthy\n"
    assert json.loads((tmp_path / "seen").read_text())["checks"] == done.report["checks"]
    hooks = json.loads(machine.report_file.read_text())["hooks"]
    assert [(hook["hook"], hook["exit_code"]) for hook in hooks] == [("10-first", 0), ("20-second", 5)]
    machine.run()
    assert (tmp_path / "log").read_text() == "first\nsecond unhealthy\n"


@pytest.mark.parametrize(("status", "code"), [("pass", 0), ("unknown", 2)])
def test_hooks_do_not_run_on_other_verdicts(
    machine: Machine, tmp_path: Path, status: str, code: int
) -> None:
    machine.result("a", status, code)
    machine.hook("10-h", f"touch {tmp_path}/ran")
    assert machine.run().code == code
    assert not (tmp_path / "ran").exists()


def test_check_only_changes_nothing(machine: Machine, tmp_path: Path) -> None:
    machine.result("a", "fail", 1)
    machine.hook("10-h", f"touch {tmp_path}/ran")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/console").touch()
    assert machine.run("--check-only", "--json").report["verdict"] == "unhealthy"
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "ran").exists()
    assert (tmp_path / "dev/console").read_text() == ""


def test_the_console_gets_the_verdict_and_no_control_characters(machine: Machine, tmp_path: Path) -> None:
    machine.result("a", "fail", 1, reason="GPU 3 \x1b[2J is lost\nreally")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/console").touch()
    done = machine.run("--deadline=20")
    console = (tmp_path / "dev/console").read_text().splitlines()
    assert all(line.startswith("gpu-boot-check: ") for line in console)
    assert console[0] == "gpu-boot-check: UNHEALTHY: a: GPU 3 ?[2J is lost?really"
    for part in ("gpu-debian 2026.1130.54712", "build gpu-debian-2026.1130.54712-3fa9",
                 machine.image["bundle_digest"], done_sha256(machine.checks / "50-a")):  # fmt: skip
        assert any(part in line for line in console)
    assert [line.removeprefix("gpu-boot-check: ") for line in console] == done.stdout.splitlines()


def done_sha256(path: Path) -> str:
    return subprocess.check_output(["sha256sum", path], text=True).split()[0]


@pytest.mark.parametrize("console", ["full", "unread", "folder", "absent"])
def test_a_console_that_takes_nothing_costs_a_second_at_most(
    machine: Machine, tmp_path: Path, console: str
) -> None:
    machine.result("a", "pass", 0)
    (tmp_path / "dev").mkdir()
    path = tmp_path / "dev/console"
    reader = -1
    if console in ("full", "unread"):
        os.mkfifo(path)  # nobody reads it: opening it would block a careless writer
    if console == "folder":
        path.mkdir()
    if console == "full":
        reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(reader, b"x" * 4096)
    started = time.monotonic()
    assert machine.run().code == 0
    assert time.monotonic() - started < 4
    if reader >= 0:
        os.close(reader)


def test_a_report_that_cannot_be_written_is_said_and_changes_no_verdict(machine: Machine) -> None:
    machine.result("a", "pass", 0)
    (machine.root / "run").write_text("not a folder")
    done = machine.run()
    assert (done.report["verdict"], done.code) == ("healthy", 0)
    assert "the report was not written to" in done.stderr
    assert "Traceback" not in done.stderr


def test_in_the_journal_lines_carry_their_priority(machine: Machine) -> None:
    machine.result("a", "fail", 1)
    machine.result("b", "unknown", 2)
    lines = machine.run("--deadline=20", env={**os.environ, "JOURNAL_STREAM": "8:1"}).stdout.splitlines()
    assert [line[:10] for line in lines] == [
        "<3>UNHEALT", "<6>image  ", "<6>bundle ", "<6>pass   ", "<3>fail   ", "<4>unknown"
    ]  # fmt: skip


def test_list_names_the_checks_and_runs_none(machine: Machine, tmp_path: Path) -> None:
    script = machine.bash("10-a", f"# boot-check: deadline=7\ntouch {tmp_path}/ran")
    done = machine.run("--list")
    assert done.stdout == f"/usr/lib/gpu-image/boot-checks.d/10-a  7 s  sha256:{done_sha256(script)}\n"
    assert not (tmp_path / "ran").exists()


def test_wrong_arguments_do_not_look_like_a_verdict(machine: Machine) -> None:
    done = machine.run("--jsom")
    assert done.code == 64
    assert "unrecognized arguments: --jsom" in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_check_behind(
    machine: Machine, tmp_path: Path, signum: signal.Signals
) -> None:
    machine.bash("10-a", f"echo $$ >{tmp_path}/tmp; mv {tmp_path}/tmp {tmp_path}/pid; sleep 60")
    machine.seal()
    command = [machine.lib / "bin/gpu-boot-check", f"--root={machine.root}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "pid").exists():
            assert process.poll() is None
        process.send_signal(signum)
        _, stderr = process.communicate(timeout=10)
    assert process.returncode == 130
    assert stderr == "gpu-boot-check: interrupted\n"
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    end = time.monotonic() + 5
    while stat.exists() and " Z " not in stat.read_text():
        assert time.monotonic() < end
