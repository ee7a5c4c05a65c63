"""The gate on the capture: the same checks on machines booted from the captured image.

Two first boots from separate machines (their ids must differ), then a reboot of the first (they must stay,
everything green). The captured disk itself is only looked at from outside, never opened for writing.
"""

from __future__ import annotations

import contextvars
import json
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from images import builds, gate
from images.clouds import Cloud, Machine
from images.clouds.model import Image, LaunchRequest, Note
from images.errors import ExitCode, UserError

SETTLE_SECONDS = 300.0

Result = TypeVar("Result")

#: Runs on the machine: what this boot looks like, as one JSON object.
OBSERVE = r"""
import glob, json, os, subprocess

def out(*words):
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()

def read(path):
    try:
        return open(path).read().strip()
    except OSError:
        return ""

device = os.stat("/").st_dev
sysfs = os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
disk = os.path.dirname(sysfs) if os.path.exists(sysfs + "/partition") else sysfs
space = os.statvfs("/")
ready = out("systemctl", "show", "gpu-ready.target", "-p", "ActiveEnterTimestampMonotonic", "--value")
listed = out("dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Architecture}\t${db:Status-Abbrev}\n")
print(json.dumps({
    "machine_id": read("/etc/machine-id"),
    "boot_id": read("/proc/sys/kernel/random/boot_id"),
    "host_keys": sorted(" ".join(read(p).split()[:2]) for p in glob.glob("/etc/ssh/ssh_host_*.pub")),
    "cloud_init": out("cloud-init", "status").removeprefix("status: ").splitlines()[0:1],
    "disk_bytes": int(read(disk + "/size") or 0) * 512,
    "root_bytes": space.f_blocks * space.f_frsize,
    "seconds_to_ready": round(int(ready or 0) / 1e6, 1) or None,
    "firmware": "uefi" if os.path.exists("/sys/firmware/efi") else "bios",
    "kernel": os.uname().release,
    "packages": listed,
    "report": json.loads(read("/run/gpu-image/boot-check.json") or "null"),
}))
"""


@dataclass
class Evidence:
    """What the gate on the capture saw. ``documents`` are the results of each phase, ``boots`` the facts of
    each boot, ``packages`` the lines of dpkg-query, ``kernel`` the running release."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    boots: list[dict[str, Any]] = field(default_factory=list)
    packages: str = ""
    kernel: str = ""


def run_gate(
    cloud: Cloud,
    image: Image,
    *,
    request: LaunchRequest,
    expected: Mapping[str, Any],
    needles: Mapping[str, bytes],
    work: Path,
    note: Note,
    keep: Path | None = None,
) -> Evidence:
    """Boots, gates, inspects. Raises ``GateFailed`` when a check failed, naming it.

    The evidence files are in ``request.evidence`` either way. With ``keep`` a machine on which a check
    failed runs on, and how to reach it is in ``keep``/ssh_config-NAME.
    """
    names = list(cloud.first_boots())
    with ThreadPoolExecutor(max_workers=len(names) + 1) as pool:
        # Threads do not inherit context variables, and the children's mark is one.
        def submit(work_: Callable[[], Result]) -> Future[Result]:
            return pool.submit(contextvars.copy_context().run, work_)

        jobs = [
            submit(partial(_first_boot, cloud, image, request, expected, name, index == 0, keep, note))
            for index, name in enumerate(names)
        ]
        inspecting = submit(partial(cloud.inspect, image, work=work, needles=needles, note=note))
        try:
            seen = [job.result() for job in jobs]
            inspection = inspecting.result()
        except BaseException:
            # The other threads wait for machines: told so, and without their processes, they end at once.
            request.cancelled.set()
            builds.end_processes(request.build_id)
            raise
    evidence = Evidence()
    for documents, boots in seen:
        evidence.documents += documents
        evidence.boots += boots
    first = evidence.boots[0]
    evidence.packages, evidence.kernel = first["packages"], first["kernel"]
    static = {
        **expected,
        "boots": [{key: boot[key] for key in boot if key != "packages"} for boot in evidence.boots],
        "inspection": {
            "found": None if inspection.found is None else dict(inspection.found),
            "not_run": inspection.not_run,
        },
    }
    file = request.evidence / "expected-capture.json"
    file.write_text(json.dumps(static, indent=2, sort_keys=True) + "\n")
    evidence.documents.append(
        gate.run_suite(
            phase="capture",
            expected_file=file,
            results=request.evidence / "gate-capture.json",
            image=image.name,
            machine="the captured disk, from outside",
            log=request.evidence / "gate.log",
            disk_root=inspection.root,
        )
    )
    for document in evidence.documents:
        gate.require_pass(
            document,
            where=f"on the capture ({document['phase']}, {document['machine']})",
            evidence=request.evidence,
        )
    return evidence


def _first_boot(
    cloud: Cloud,
    image: Image,
    request: LaunchRequest,
    expected: Mapping[str, Any],
    name: str,
    reboots: bool,
    keep: Path | None,
    note: Note,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Boots one machine and gates it; with ``reboots`` a second time after a reboot."""
    documents, boots = [], []
    note(f"{name}: booting")
    mine = LaunchRequest(**{**vars(request), "name": name})
    with cloud.launch(image, mine) as machine:
        note(f"{name}: SSH after {machine.seconds_to_ssh:.0f} s, gate")
        documents.append(_gate(machine, image, mine, expected, phase="first_boot", name=name))
        boots.append(observe(machine, name, machine.seconds_to_ssh))
        if reboots and not gate.bad_checks(documents[0]):
            note(f"{name}: rebooting")
            seconds = machine.reboot()
            documents.append(_gate(machine, image, mine, expected, phase="reboot", name=f"{name}-reboot"))
            boots.append(observe(machine, f"{name}-reboot", seconds))
        if keep and gate.bad_checks(documents[-1]):
            machine.leave_running()
            shutil.copyfile(machine.ssh_config, keep / f"ssh_config-{name}")
    return documents, boots


def _gate(
    machine: Machine,
    image: Image,
    request: LaunchRequest,
    expected: Mapping[str, Any],
    *,
    phase: str,
    name: str,
) -> dict[str, Any]:
    settle(machine)
    file = request.evidence / f"expected-{name}.json"
    file.write_text(
        json.dumps({**expected, "disk_bytes": machine.disk_bytes}, indent=2, sort_keys=True) + "\n"
    )
    return gate.run_suite(
        phase=phase,
        expected_file=file,
        results=request.evidence / f"gate-{name}.json",
        image=image.name,
        machine=f"{name}: {machine.description}",
        log=request.evidence / f"gate-{name}.log",
        ssh_config=machine.ssh_config,
    )


def settle(machine: Machine) -> None:
    """Waits until cloud-init and systemd are through with the boot, well or not: the gate judges."""
    machine.run(
        "cloud-init status --wait >/dev/null 2>&1; systemctl is-system-running --wait >/dev/null 2>&1; true",
        timeout=SETTLE_SECONDS,
    )


def observe(machine: Machine, name: str, seconds_to_ssh: float) -> dict[str, Any]:
    """The facts of one boot (see OBSERVE); seconds count from power-on or the reboot command."""
    text = machine.run(f"python3 - <<'GPU_IMAGE_OBSERVE'\n{OBSERVE}\nGPU_IMAGE_OBSERVE", timeout=60)
    try:
        seen = json.loads(text)
    except ValueError:
        raise UserError(
            f"{name}: the machine's facts cannot be read: {text[:200]!r}", code=ExitCode.FAILED
        ) from None
    seen["cloud_init"] = seen["cloud_init"][0] if seen["cloud_init"] else "unknown"
    return {"name": name, "seconds_to_ssh": round(seconds_to_ssh, 1), **seen}
