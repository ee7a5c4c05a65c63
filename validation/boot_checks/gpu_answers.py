"""What ``20-gpus`` does on a machine with GPUs: asks nvidia-smi and compares it with bus and driver."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from validation import driver, nvidia_smi
from validation.boot_checks import gpus, image
from validation.boot_checks.check import Result, failed, passed, unknown
from validation.boot_checks.gpus import Machine
from validation.nvidia_smi import Judgement, Output, Query
from validation.nvidia_smi.messages import ABSENT
from validation.pci import Device

ANSWER = 60.0  # seconds for nvidia-smi: 8 A100 without persistence mode take 30
FABRIC_PATIENCE = 60.0  # seconds from our start that the fabric manager may take
ASK_AGAIN = 2.0  # seconds between two questions while it works
FATAL = "fatal"


class Findings(NamedTuple):
    """What was found, a line each: what is broken, cannot be told, or is less than it should be."""

    broken: list[str]
    unclear: list[str]
    degraded: list[str]


class Answer(NamedTuple):
    """What nvidia-smi said."""

    output: Output
    query: Query
    judgement: Judgement

    @property
    def waits_for_fabric(self) -> list[Mapping[str, Any]]:
        """What the judgement says of GPUs that are not yet registered with the NVLink fabric."""
        return [entry for entry in self.judgement.not_run if entry.get("field") == "fabric.state"]


def check(machine: Machine, *, started: float) -> Result:
    """Asks nvidia-smi once, and compares. ``started`` is when the check began, on the monotonic clock."""
    fields = nvidia_smi.offered()
    answer = ask(fields, ANSWER)
    # Only a fabric that is not ready yet is a reason to ask again.
    while answer.waits_for_fabric and time.monotonic() - started < FABRIC_PATIENCE:
        time.sleep(ASK_AGAIN)
        answer = ask(fields, ANSWER / 2)
    machine = gpus.look_again(machine)  # nvidia-smi may have made the module load
    if "cannot be started" in (answer.output.problem or ""):
        return gpus.without(str(answer.output.problem), machine)
    return judge(machine, answer, versions(answer, machine))


def ask(fields: Sequence[str], timeout: float) -> Answer:
    """Asks nvidia-smi for these fields of every GPU, and waits ``timeout`` seconds for an answer."""
    output = nvidia_smi.query(timeout=timeout, fields=fields)
    judgement = nvidia_smi.judge(output.text, exit_code=output.exit_code)
    return Answer(output, nvidia_smi.parse(output.text), judgement)


def versions(answer: Answer, machine: Machine) -> dict[str, str]:
    """The version that each part of the driver says it is, without those that say none."""
    root = image.root()
    libraries = {name: driver.library(name, root) for name in (driver.NVML, driver.LIBCUDA)}
    found = {
        "module": driver.module_version(root),
        # A library for forward compatibility is newer than the module on purpose:
        # https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
        **{
            name.partition(".")[0]: driver.library_version(path)
            for name, path in libraries.items()
            if path and "/compat/" not in path
        },
        "nvidia-smi": answer.judgement.data.get("driver_version"),
        "image.json": machine.driver,
    }
    return {part: version for part, version in found.items() if version}


def judge(machine: Machine, answer: Answer, parts: Mapping[str, str]) -> Result:
    """The result for a machine with GPUs on its bus."""
    found = Findings([], [], [])
    mismatch = version_mismatch(parts)
    found.broken.extend(mismatch)
    judge_bus(machine, found)
    loaded = driver.module_loaded(image.root()) or bool(answer.query.gpus)
    if not loaded:
        what = f"the module nvidia is not loaded, so {gpus.counted(len(machine.gpus))} cannot be used"
        found.broken.append(f"{what}: was it built and signed for this kernel?")
    elif answer.output.problem:
        found.unclear.append(f"nvidia-smi: {answer.output.problem}")
    else:
        judge_answer(machine, answer, found, versions_differ=bool(mismatch))
    data = {
        **machine.data,
        "driver": dict(parts),
        "gpus": answer.judgement.data.get("gpus", []),
        "nvswitches": len(machine.nvswitches),
        **{name: gpus.merged(reasons) for name, reasons in found._asdict().items()},
    }
    error = [machine.expected.error] if machine.expected.error else []
    if not loaded and not machine.driver:
        return unknown(gpus.sentence([*error, *found.broken, "image.json promises no driver"]), **data)
    if found.broken:
        return failed(gpus.sentence(found.broken + error), **data)
    if found.unclear or error:
        return unknown(gpus.sentence(error + found.unclear), **data)
    return passed(summary(machine, answer, parts), **data)


def version_mismatch(parts: Mapping[str, str]) -> list[str]:
    """One line when the driver's parts are not of one version: all the versions, and what to do."""
    if len(set(parts.values())) < 2:
        return []
    numbers = ", ".join(f"{part} {version}" for part, version in parts.items())
    libraries = {parts[part] for part in ("libnvidia-ml", "libcuda") if part in parts}
    installed = {version for part, version in parts.items() if part != "image.json"}
    if len(libraries) > 1:
        advice = "install all packages of the driver in one version"
    elif len(installed) == 1:
        advice = "the image was built with another driver: boot the image again, or build a new one"
    else:
        advice = "the libraries were changed under the loaded module: reboot"
    return [f"the driver's versions differ: {numbers}; {advice}"]


def judge_bus(machine: Machine, found: Findings) -> None:
    """The number on the bus, and the driver that each GPU has."""
    expected, number = machine.expected, len(machine.gpus)
    if expected.count is not None and number < expected.count:
        names = gpus.named([gpu.address for gpu in machine.gpus])
        there = f"{number} of {gpus.counted(expected.count)} on the PCI bus ({names})"
        found.broken.append(f"{there}: {expected.source} promises {expected.count}")
    if expected.count is not None and number > expected.count:
        there = f"{gpus.counted(number)} on the PCI bus"
        found.degraded.append(f"{there}, more than the {expected.count} of {expected.source}")
    for owner in sorted({gpu.driver for gpu in machine.gpus if gpu.driver and gpu.driver != "nvidia"}):
        names = gpus.named([gpu.address for gpu in machine.gpus if gpu.driver == owner])
        found.broken.append(f"{owner} has taken what the driver nvidia should have: {names}")


def judge_answer(machine: Machine, answer: Answer, found: Findings, *, versions_differ: bool) -> None:
    """What nvidia-smi said, against the bus."""
    judgement = answer.judgement
    listed = {gpu.pci for gpu in answer.query.gpus}
    missing = {gpu.pci: gpu for gpu in machine.gpus if gpu.pci not in listed}
    explained = {entry["pci"] for entry in judgement.failures if entry.get("pci") in missing}
    for entry in judgement.failures:
        if versions_differ and "different versions" in entry["message"]:
            continue
        if entry.get("field") == "count" and missing:  # the missing ones are named below
            continue
        (found.broken if entry["severity"] == FATAL else found.degraded).append(entry["message"])
    found.degraded.extend(judgement.degraded)
    fabric = answer.waits_for_fabric
    found.unclear.extend(entry["reason"] for entry in judgement.not_run if entry not in fabric)
    if fabric:
        judge_fabric(machine, len(fabric), found)
    answered = bool(listed) or any(message.kind == ABSENT for message in answer.query.messages)
    silent = [gpu for pci, gpu in missing.items() if pci not in explained and gpu.driver in (None, "nvidia")]
    if silent and answered:
        found.broken.append(silent_gpus(machine, silent))
    if strangers := sorted(pci for pci in listed - {gpu.pci for gpu in machine.gpus} if pci):
        found.unclear.append(f"nvidia-smi lists GPUs that are not on the PCI bus: {gpus.named(strangers)}")
    others = wrong_models(machine, answer)
    (found.broken if machine.expected.by_owner else found.degraded).extend(others)


def silent_gpus(machine: Machine, silent: Sequence[Device]) -> str:
    """GPUs on the bus that nvidia-smi does not list, and says nothing about: the driver has them not."""
    names = gpus.named([gpu.address for gpu in silent])
    if len(silent) == len(machine.gpus):
        which = f"nvidia-smi lists none of {gpus.counted(len(silent))} on the PCI bus ({names})"
    else:
        which = f"nvidia-smi does not list {names}, on the PCI bus"
    unbound = [gpu for gpu in silent if gpu.driver is None]
    return f"{which}: the driver {'refused them' if unbound else 'could not start them'}, see the kernel log"


def judge_fabric(machine: Machine, waiting: int, found: Findings) -> None:
    """GPUs that the fabric manager has not registered in its time.

    Where this machine has the switches, it has to run the fabric manager, and without it no CUDA program
    starts. Where it does not see them, somebody else runs it or nobody needs it: 30-gpu-memory tells.
    """
    what = f"{waiting} of {gpus.counted(len(machine.gpus))} not registered with the NVLink fabric"
    what += f" after {FABRIC_PATIENCE:g} s"
    if machine.nvswitches:
        found.broken.append(f"{what}: is nvidia-fabricmanager of this driver's version running?")
    else:
        found.degraded.append(f"{what}; this machine sees no NVSwitch")


def wrong_models(machine: Machine, answer: Answer) -> Iterator[str]:
    """A line when there are GPUs of another model than expected."""
    expected = machine.expected.gpu
    names = sorted({gpu.name for gpu in answer.query.gpus if gpu.name})
    other = [name for name in names if expected and not is_model(name, expected)]
    if other:
        yield f"the GPUs are {', '.join(other)}, not {expected} as {machine.expected.source} says"


def is_model(name: str, model: str) -> bool:
    """``NVIDIA H100 80GB HBM3`` is a ``h100``; ``NVIDIA A10G`` is no ``a10``."""
    words = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    wanted = "".join(letter if letter.isalnum() else " " for letter in model.lower()).split()
    places = range(len(words) - len(wanted) + 1)
    return any(words[place : place + len(wanted)] == wanted for place in places)


def summary(machine: Machine, answer: Answer, parts: Mapping[str, str]) -> str:
    """The reason of a pass."""
    names = ", ".join(sorted({gpu.name for gpu in answer.query.gpus if gpu.name}))
    text = f"{gpus.counted(len(machine.gpus))} ({names}), driver {parts.get('module', 'unknown')}"
    expected = machine.expected
    if expected.count is None:
        return f"{text}; how many there should be is unknown: {expected.source}"
    return f"{text}; as many as {expected.source} promises"
