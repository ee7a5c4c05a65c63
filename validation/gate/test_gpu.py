"""The GPUs: how many, which driver, and what nvidia-smi, CUDA and the kernel's log say of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from validation import gpu_models
from validation.gate import gpu_readers
from validation.gate.checks import Level, NotRun, Tier, Unknown, check, degraded, record
from validation.gate.gpu_facts import Gpus
from validation.gate.machine import Machine

gpu_check: Callable[..., pytest.MarkDecorator] = partial(check, tier=Tier.GPU, level=Level.GPU_HARDWARE)


@gpu_check("gpu.count", "gpu_facts")
def test_count(gpus: Gpus) -> None:
    """The PCI bus and nvidia-smi have the same GPUs, as many as there should be."""
    on_bus = {device.pci for device in gpus.bus}
    listed = {row.pci for row in gpus.rows if row.pci}
    record(on_bus=sorted(on_bus), listed=sorted(listed), expected=gpus.expected.count)
    short = []
    if gpus.expected.count is not None and len(on_bus) != gpus.expected.count:
        short = [f"{len(on_bus)} of {gpus.expected.count} GPUs are on the bus ({gpus.expected.source})"]
    if gpus.smi_problem:
        # Its silence is no list of none: only the number on the bus can be judged.
        assert not short, short[0]
        raise Unknown(f"nvidia-smi: {gpus.smi_problem}")
    if gpus.judgement and gpus.judgement.verdict == "unknown" and not gpus.rows:
        assert not short, short[0]
        raise Unknown(gpus.judgement.reason)  # it could not ask: what it does not list may be there
    wrong = short + [
        f"{address} is on the bus and nvidia-smi does not list it" for address in sorted(on_bus - listed)
    ]
    wrong += [f"nvidia-smi lists {address}, which is not on the bus" for address in sorted(listed - on_bus)]
    assert not wrong, "; ".join(wrong)
    if gpus.expected.error:
        raise Unknown(gpus.expected.error)
    record(summary=f"{len(on_bus)} GPUs, expected {gpus.expected.count or 'an unknown number'}")


@gpu_check("gpu.driver", "gpu_facts")
def test_driver(gpus: Gpus, expected: Mapping[str, Any]) -> None:
    """Module, libraries and nvidia-smi are of one version: the one that the image promises, if it does."""
    assert gpus.module_loaded, "the kernel module nvidia is not loaded"
    versions = {"module": gpus.module, **gpus.libraries}
    for row in gpus.rows[:1]:
        versions["nvidia-smi"] = row.fields.get("driver_version")
    record(**versions)
    missing = [name for name, version in versions.items() if not version]
    assert not missing, f"no version of {', '.join(missing)}"
    wanted = gpu_readers.wanted_driver(expected)
    found = {version for version in versions.values() if version}
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    assert len(found) == 1, f"{listed}: reboot, or reinstall what differs"
    assert wanted in (None, *found), f"{listed}; the image promises {wanted}"
    record(summary=", ".join(found))


@gpu_check("gpu.answers", "gpu_facts")
def test_answers(gpus: Gpus) -> None:
    """nvidia-smi answers for every GPU, and nothing in its answer is an error."""
    if gpus.smi_problem:
        raise Unknown(f"nvidia-smi: {gpus.smi_problem}")
    gpu_readers.require(gpus, gpu_readers.of_no_other_check)


@pytest.mark.parametrize(
    "prefixes",
    [
        pytest.param(prefixes, marks=gpu_check(id, "gpu_facts"), id=id)
        for id, prefixes in gpu_readers.FIELDS.items()
    ],
)
def test_fields(gpus: Gpus, prefixes: Sequence[str]) -> None:
    """What nvidia-smi says in these fields is healthy on every GPU; a model without them is not judged."""
    if gpus.smi_problem:
        raise Unknown(f"nvidia-smi: {gpus.smi_problem}")
    if not gpus.rows:
        raise Unknown("nvidia-smi lists no GPU")
    values = {
        f"{name} of {row}": value
        for row in gpus.rows
        for name, value in row.fields.items()
        if name.startswith(tuple(prefixes)) and not gpu_readers.not_applicable(value)
    }
    gpu_readers.require(gpus, lambda field: field.startswith(tuple(prefixes)))
    if not values:
        raise NotRun(f"these GPUs, or this driver, have no {prefixes[0]}*")
    record(values=values)


@gpu_check("gpu.persistence", "gpu_facts")
def test_persistence(gpus: Gpus) -> None:
    """Persistence mode is on: without it every first program on a GPU waits for the driver to start anew."""
    if not gpus.rows:
        raise Unknown("nvidia-smi lists no GPU")
    modes = {str(row): row.fields.get("persistence_mode", "") for row in gpus.rows}
    off = [name for name, mode in modes.items() if mode.lower() == "disabled"]
    assert not off, f"persistence mode is off: {', '.join(off)}; is nvidia-persistenced running?"
    unclear = [name for name, mode in modes.items() if mode.lower() != "enabled"]
    if unclear:
        raise Unknown(f"nvidia-smi does not say whether persistence mode is on: {', '.join(unclear)}")


@gpu_check("gpu.pcie_link", "gpu_facts")
def test_pcie_link(gpus: Gpus) -> None:
    """Every GPU could reach the link that its model can. Links of idle GPUs train down, so what is held
    against the model is the most that GPU and slot agree on; less is degraded: clouds do connect less.
    """
    seen = gpu_readers.links(gpus)
    if not seen:
        raise NotRun("neither sysfs nor nvidia-smi says what links the GPUs have")
    record(links=seen)
    short = gpu_readers.short_links(gpus, seen)
    degraded(*short)
    broken = [f"{address}: a link of width 0" for address, link in seen.items() if link["width"] == 0]
    assert not broken, "; ".join(broken)


@gpu_check("gpu.memory_size", "gpu_facts")
def test_memory_size(gpus: Gpus) -> None:
    """Every GPU has the memory that its model has, as nvidia-smi counts it."""
    if not gpus.rows:
        raise Unknown("nvidia-smi lists no GPU")
    judged = {
        str(row): gpu_models.judge(
            "memory_total_mib", gpu_readers.number(row, "memory.total"), gpus.model(row)
        )
        for row in gpus.rows
    }
    gpu_readers.settle(judged)


@gpu_check("gpu.memory", "gpu_memory", "gpu_facts")
def test_memory(machine: Machine, gpus: Gpus) -> None:
    """Random bytes written to every GPU, copied there and read back are the same."""
    document = gpu_readers.memory(machine.output("gpu_memory"))
    record(gpus=document["gpus"], cuda=document.get("cuda"))
    verdict, reason = document["verdict"], document["reason"]
    assert verdict != "fail", reason
    if verdict == "not_run":
        # There are GPUs, or we would not be here: CUDA shows none of them.
        raise AssertionError(f"{len(gpus.bus)} GPUs on the bus, and CUDA has none: {reason}")
    if verdict != "pass":
        raise Unknown(reason)
    seen = len(document["gpus"])
    if seen != len(gpus.bus) and not any(gpu_readers.mig(row) for row in gpus.rows):
        raise AssertionError(f"CUDA shows {seen} of {len(gpus.bus)} GPUs")
    record(summary=reason)


@gpu_check("gpu.kernel_log", "gpu_kernel_log", "gpu_facts")
def test_kernel_log(machine: Machine, gpus: Gpus) -> None:
    """The kernel has logged no GPU fault since boot. Warnings are degraded, not failures."""
    events = [json.loads(line) for line in machine.text("gpu_kernel_log").splitlines() if line.strip()]
    record(events=events[:200], more_events=max(len(events) - 200, 0))
    ours = {device.pci for device in (*gpus.bus, *gpus.nvswitches)}
    # The error of another device's port does not make a GPU bad; which ports lead to GPUs is not in the log.
    bad = [
        event
        for event in events
        if event["severity"] == "fatal" and (event["kind"] != "aer" or event["pci"] in ours)
    ]
    fatal = [gpu_readers.in_words(event) for event in bad]
    assert not fatal, "; ".join(fatal[:5]) + (f"; and {len(fatal) - 5} more" if len(fatal) > 5 else "")
    notable = [event for event in events if event["severity"] != "info"]
    degraded(*(gpu_readers.in_words(event) for event in notable[:20]))
    record(summary=f"{len(events)} events, none fatal" if events else "no GPU event since boot")
