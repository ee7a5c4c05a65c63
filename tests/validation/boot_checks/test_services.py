"""``10-services`` with a systemctl that prints what systemd's own prints (recorded from systemd 252)."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from images import bundle
from validation.boot_checks import scripts, systemd
from validation.boot_checks.check import Status

from .conftest import Finished, Machine

# Serves units/NAME under the root; a units/NAME.then takes its place after the first answer.
SYSTEMCTL = """#!/bin/bash
[ "$1 $3" = "show --" ] || { echo "unexpected arguments: $*" >&2; exit 1; }
cd "$GPU_IMAGE_ROOT/units"
[ -e broken ] && { printf 'Failed to connect to bus: Host is down\\n' >&2; exit 1; }
separator=
for name in "${@:4}"; do
    printf "$separator"
    separator='\\n'
    cat "$name" 2>/dev/null || printf 'Id=%s\\nLoadState=not-found\\nActiveState=inactive\\n' "$name"
    [ -e "$name.then" ] && mv "$name.then" "$name"
done
exit 0
"""


def shown(name: str, active: str, sub: str = "", *, load: str = "loaded", **more: str) -> str:
    values = {"Id": name, "LoadState": load, "ActiveState": active, "SubState": sub, **more}
    return "".join(f"{key}={value}\n" for key, value in values.items())


@pytest.fixture
def services(machine: Machine, the_bundle: tuple[bundle.BundleFile, ...]) -> Machine:
    """The machine with 10-services and a systemd whose units the test lays out."""
    (script,) = [file for file in the_bundle if file.path.endswith("/10-services")]
    machine.check("10-services", script.content.decode())
    machine.program("usr/bin/systemctl", SYSTEMCTL)
    (machine.root / "units").mkdir()
    lay_out(machine, "ssh.service", shown("ssh.service", "active", "running"))
    lay_out(machine, "cron.service", shown("cron.service", "active", "running"))
    return machine


def lay_out(machine: Machine, name: str, text: str) -> None:
    (machine.root / "units" / name).write_text(text)


def result_of(done: Finished) -> tuple[str, str]:
    result = done.result("services")
    return result["status"], result["reason"]


def test_all_active(services: Machine) -> None:
    done = services.run()
    assert result_of(done) == ("pass", "2 of 2 services are active")
    assert done.result("services")["data"] == {"active": ["ssh.service", "cron.service"]}
    assert done.code == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (shown("cron.service", "failed", "failed", Result="exit-code"), "cron.service failed (exit-code)"),
        (shown("cron.service", "inactive", "dead"), "cron.service is inactive"),
        (shown("cron.service", "inactive", "dead", load="masked"), "cron.service is masked"),
        (shown("cron.service", "inactive", "dead", load="not-found"), "cron.service is not-found"),
    ],
)
def test_a_service_that_does_not_run_is_a_failure(services: Machine, text: str, reason: str) -> None:
    lay_out(services, "cron.service", text)
    done = services.run()
    assert result_of(done) == ("fail", reason)
    assert done.code == 1


def test_it_waits_for_a_service_that_is_starting(services: Machine) -> None:
    lay_out(services, "cron.service", shown("cron.service", "inactive", "dead", Job="77"))
    lay_out(services, "cron.service.then", shown("cron.service", "active", "running"))
    done = services.run()
    assert result_of(done) == ("pass", "2 of 2 services are active")


def test_it_does_not_wait_for_services_that_wait_for_the_verdict(services: Machine) -> None:
    """docker is behind containerd, and that behind gpu-ready.target: waiting for it would be a deadlock."""
    services.image["services"] = ["ssh.service", "containerd.service", "docker.service"]
    chain = ["gpu-boot-check.service", "gpu-ready.target", "containerd.service", "docker.service"]
    for name, after in zip(chain, [*chain[1:], "shutdown.target"], strict=True):
        lay_out(services, name, shown(name, "inactive", "dead", Job="5", Before=f"{after} shutdown.target"))
    done = services.run()
    assert result_of(done) == ("pass", "1 of 3 services are active, 2 start after the checks")
    assert done.report["seconds"] < 5
    lay_out(services, "docker.service", shown("docker.service", "failed", "failed", Result="timeout"))
    assert result_of(services.run()) == ("fail", "docker.service failed (timeout)")


@pytest.mark.parametrize("how", ["fails", "absent", "silent", "other"])
def test_without_an_answer_it_cannot_tell(services: Machine, how: str) -> None:
    match how:
        case "fails":
            lay_out(services, "broken", "")
        case "absent":
            services.program("usr/bin/systemctl", "#!/nowhere\n")
        case "silent":
            services.program("usr/bin/systemctl", "#!/bin/sh\n")
        case "other":
            services.program(
                "usr/bin/systemctl", "#!/bin/sh\necho Id=ssh.service; echo ActiveState=active\n"
            )
    status, reason = result_of(services.run())
    assert status == "unknown"
    assert reason.startswith("systemctl")


def test_no_expected_services_is_not_a_pass(services: Machine) -> None:
    services.image["services"] = []
    done = services.run()
    assert result_of(done) == ("not_run", "image.json expects no services")
    assert done.report["verdict"] == "unknown"


@pytest.fixture
def script(services: Machine, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """10-services as a module."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    loader = importlib.machinery.SourceFileLoader("services", str(services.checks / "10-services"))
    spec = importlib.util.spec_from_loader("services", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_its_patience_ends(services: Machine, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(services, "cron.service", shown("cron.service", "activating", "auto-restart"))
    services.seal()
    monkeypatch.setenv("GPU_IMAGE_ROOT", str(services.root))
    monkeypatch.setenv("PATH", f"{services.root}/usr/bin:/usr/bin:/bin")
    monkeypatch.setattr(script, "PATIENCE", 0.0)
    result = script.check()
    assert result.status is Status.UNKNOWN
    assert result.reason == "still starting after 0 s: cron.service (activating, auto-restart)"


def test_its_patience_is_shorter_than_its_deadline(script: ModuleType) -> None:
    assert script.__file__
    assert scripts.deadline_in(Path(script.__file__).read_bytes()) > script.PATIENCE + script.ANSWER


def test_the_reader_takes_what_systemctl_prints() -> None:
    """Properties in systemd's own order; Job is there only while something is queued."""
    text = (
        "Result=success\nId=ssh.service\nBefore=shutdown.target multi-user.target\n"
        "LoadState=loaded\nActiveState=active\nSubState=running\n\n"
        "Id=nosuch.service\nLoadState=not-found\nActiveState=inactive\nSubState=dead\n\n"
        "Id=x.target\nBefore=\nLoadState=loaded\nActiveState=inactive\nSubState=dead\nJob=123\n"
    )
    ssh, absent, target = systemd.parse(text)
    assert (ssh.name, ssh.active, ssh.has_job) == ("ssh.service", "active", False)
    assert ssh.before == {"shutdown.target", "multi-user.target"}
    assert (absent.load, absent.result) == ("not-found", "")
    assert target.has_job
    with pytest.raises(ValueError, match="something unexpected"):
        systemd.parse("Unit ssh.service could not be found.\n")
