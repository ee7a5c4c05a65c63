"""What each field of one GPU must say.

Sources: nvidia-smi(1) and the explanations of --help-query-gpu (driver 580.173.02); nvml.h for the bits of
the event reasons; NVIDIA's GPU memory error management guide
(https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/) for ECC and row remapping; Modal's rule of 88 C
(https://modal.com/docs/guide/gpu-health); Azure's limits for ECC (Azure/azurehpc-health-checks).

A gate and a boot check judge a machine that does no work yet, so what asks for a reset "when idle" asks for
it now and fails; by ``severity`` "degraded" policy may let a machine at work go on until then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from validation.nvidia_smi import words

FAIL, UNCLEAR, DEGRADED, NOTE = "fail", "unclear", "degraded", "note"
FATAL = "fatal"

# nvmlClocksEventReasons; the others (idle, clock settings, power cap, sync boost, display) are ordinary.
SLOWDOWNS = {
    0x8: "HW slowdown",
    0x20: "SW thermal slowdown",
    0x40: "HW thermal slowdown",
    0x80: "HW power brake",
}
IDLE = 0x1
_REASON_FIELDS = {
    "clocks_event_reasons.hw_slowdown": 0x8,
    "clocks_event_reasons.sw_thermal_slowdown": 0x20,
    "clocks_event_reasons.hw_thermal_slowdown": 0x40,
    "clocks_event_reasons.hw_power_brake_slowdown": 0x80,
}
HOT = 88.0  # C; only where the margin is not known
MEMORY_HOT = 95.0  # C
UNCORRECTED_AGGREGATE = 512  # over the GPU's life; above it Azure takes the node out
_NUMBER = re.compile(r"(-?[0-9]{1,18}(?:\.[0-9]{1,6})?)(?: ?(?:W|MiB|MHz|us|ms|%|C))?")
_YES, _NO = frozenset({"yes", "1", "true", "active"}), frozenset({"no", "0", "false", "not active"})


class Finding(NamedTuple):
    """What one field says beside the ordinary. ``severity`` and ``action`` are those of a failure."""

    kind: str
    field: str
    message: str
    severity: str = FATAL
    action: str = ""


Fields = dict[str, str]


def judge_fields(fields: Fields) -> Iterator[Finding]:
    """All findings of one GPU, by canonical field name; a field that was not asked says nothing."""
    for rule in RULES:
        yield from rule(fields)


def value(fields: Fields, field: str) -> str | None:
    """The field's value; None if it was not asked, is empty or is a status in the place of a value."""
    found = fields.get(field, "")
    return found if found and words.of_cell(found) is None else None


def _number(fields: Fields, field: str) -> float | None:
    found = _NUMBER.fullmatch(value(fields, field) or "")
    return float(found[1]) if found else None


def _number_or_finding(fields: Fields, field: str) -> tuple[float | None, list[Finding]]:
    """The number, or what is to be said of a value that is none."""
    found, number = value(fields, field), _number(fields, field)
    if found is not None and number is None:
        return None, [_strange(field, found)]
    return number, []


def _flag(fields: Fields, field: str) -> tuple[bool, list[Finding]]:
    found = value(fields, field)
    if found is None or found.lower() in _NO:
        return False, []
    return (True, []) if found.lower() in _YES else (False, [_strange(field, found)])


def _strange(field: str, found: str) -> Finding:
    return Finding(UNCLEAR, field, f"{field} is {found[:60]!r}, which is not understood")


def _recovery(fields: Fields) -> Iterator[Finding]:
    """What the driver itself recommends (R570 and later), and its two older fields."""
    field = "gpu_recovery_action"
    action = value(fields, field)
    if action is not None and action.lower() != "none":
        severity = DEGRADED if action.lower() == "drain p2p" else FATAL
        yield Finding(
            FAIL, field, f"the driver asks for a recovery action: {action[:60]}", severity, action[:60]
        )
    for field, severity, asked in (
        ("reset_status.reset_required", FATAL, "Reset"),
        ("reset_status.drain_and_reset_recommended", DEGRADED, "Drain and Reset"),
    ):
        yes, findings = _flag(fields, field)
        yield from findings
        if yes:
            yield Finding(FAIL, field, f"the driver asks for a recovery action: {asked}", severity, asked)


def _ecc(fields: Fields) -> Iterator[Finding]:
    mode, pending = value(fields, "ecc.mode.current"), value(fields, "ecc.mode.pending")
    if mode == "Disabled":
        yield Finding(DEGRADED, "ecc.mode.current", "ECC is disabled")
    elif mode not in ("Enabled", None):
        yield _strange("ecc.mode.current", mode)
    if mode and pending and mode != pending:
        yield Finding(DEGRADED, "ecc.mode.pending", f"ECC will be {pending[:20]} after a reboot")
    # The total first: it is N/A, or not asked, where only its parts (dram, sram, device_memory) are told.
    volatile = "ecc.errors.uncorrected.volatile."
    parts = sorted(field for field in fields if field.startswith(volatile) and field != volatile + "total")
    for field in (volatile + "total", *parts):
        count, findings = _number_or_finding(fields, field)
        yield from findings
        if count:
            what = f"{count:g} uncorrected ECC errors since the driver was loaded"
            yield Finding(FAIL, field, what, FATAL, "reset the GPU")
            break
    field = "ecc.errors.uncorrected.aggregate.total"
    count, findings = _number_or_finding(fields, field)
    yield from findings
    if count is not None and count > UNCORRECTED_AGGREGATE:
        yield Finding(FAIL, field, f"{count:g} uncorrected ECC errors in its life", FATAL, "replace the GPU")
    field = "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"
    yes, findings = _flag(fields, field)
    yield from findings
    if yes:
        yield Finding(
            FAIL, field, "more SRAM errors than the threshold for replacement", FATAL, "replace the GPU"
        )


def _rows(fields: Fields) -> Iterator[Finding]:
    for field, message, severity, action in (
        ("remapped_rows.failure", "a row could not be remapped", FATAL, "replace the GPU"),
        ("remapped_rows.pending", "a row remap waits for a reset", DEGRADED, "reset the GPU when idle"),
        ("retired_pages.pending", "a page retirement waits for a reboot", DEGRADED, "reboot when idle"),
    ):
        yes, findings = _flag(fields, field)
        yield from findings
        if yes:
            yield Finding(FAIL, field, message, severity, action)
    field = "remapped_rows.histogram.none"
    banks, findings = _number_or_finding(fields, field)
    yield from findings
    if banks:
        yield Finding(DEGRADED, field, f"{banks:g} memory banks have no spare rows left")


def _clocks(fields: Fields) -> Iterator[Finding]:
    """Bits, not equality: several reasons may hold at once. HW slowdown alone also appears for an instant
    while clocks change, so whoever can should look twice.
    """
    field = "clocks_event_reasons.active"
    active = value(fields, field)
    mask = 0
    if active is not None:
        if not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", active):
            yield _strange(field, active)
        else:
            mask = int(active, 16)
    for name, bit in _REASON_FIELDS.items():
        yes, findings = _flag(fields, name)
        yield from findings
        mask |= bit if yes else 0
    slowed = [name for bit, name in SLOWDOWNS.items() if mask & bit]
    if slowed:
        what = "the clocks are held down: " + ", ".join(slowed)
        yield Finding(FAIL, field, what, DEGRADED, "check cooling and power, then look again")


def _heat(fields: Fields) -> Iterator[Finding]:
    """The margin to the highest operating temperature where the model tells it (Hopper and later)."""
    action = "check the cooling"
    margin, findings = _number_or_finding(fields, "temperature.gpu.tlimit")
    yield from findings
    celsius, findings = _number_or_finding(fields, "temperature.gpu")
    yield from findings
    if margin is not None and margin <= 0:
        what = (
            f"{-margin:g} C above its highest operating temperature" if margin else "no margin to its limit"
        )
        yield Finding(FAIL, "temperature.gpu.tlimit", f"too hot: {what}", DEGRADED, action)
    elif margin is None and celsius is not None and celsius > HOT:
        yield Finding(FAIL, "temperature.gpu", f"too hot: {celsius:g} C", DEGRADED, action)
    memory, findings = _number_or_finding(fields, "temperature.memory")
    yield from findings
    if memory is not None and memory >= MEMORY_HOT:
        yield Finding(DEGRADED, "temperature.memory", f"the memory is at {memory:g} C")


def _link(fields: Fields) -> Iterator[Finding]:
    """A link may be slower at idle, so a slow one is no failure here: look again under load."""
    width, most = _number(fields, "pcie.link.width.current"), _number(fields, "pcie.link.width.max")
    if width is not None and most is not None and width < most:
        yield Finding(DEGRADED, "pcie.link.width.current", f"PCIe x{width:g} of x{most:g}: look under load")
    gen = _number(fields, "pcie.link.gen.gpucurrent")
    best = _number(fields, "pcie.link.gen.max") or _number(fields, "pcie.link.gen.gpumax")
    active = value(fields, "clocks_event_reasons.active") or ""
    idle = not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", active) or bool(int(active, 16) & IDLE)
    if gen is not None and best is not None and gen < best:
        kind = NOTE if idle else DEGRADED
        yield Finding(
            kind, "pcie.link.gen.gpucurrent", f"PCIe generation {gen:g} of {best:g}: look under load"
        )


def _fabric(fields: Fields) -> Iterator[Finding]:
    """The registration with the NVLink fabric; N/A without one. A single HGX machine has clique 0."""
    field = "fabric.state"
    state = value(fields, field)
    if state is None:
        return
    if state.lower() in ("not started", "in progress"):
        what = f"the NVLink fabric is not ready ({state}): fabric manager may need 60 s, then it is a fault"
        yield Finding(UNCLEAR, field, what)
        return
    if state.lower() != "completed":
        yield _strange(field, state)
        return
    status = fields.get("fabric.status", "")  # an NVML status is its value
    found = words.of_cell(status)
    if status and status.lower() != "success" and not (found and found.kind == words.NOT_APPLICABLE):
        action = "look at the fabric manager's log"
        yield Finding(FAIL, "fabric.status", f"the NVLink fabric: {status[:60]}", FATAL, action)
    health = value(fields, "fabric.health.summary")
    if health is not None and health.lower() == "unhealthy":
        yield Finding(FAIL, "fabric.health.summary", "the NVLink fabric is unhealthy", FATAL, "")
    elif health is not None and health.lower() != "healthy":
        yield Finding(DEGRADED, "fabric.health.summary", f"the NVLink fabric: {health[:60]}")
    yes, findings = _flag(fields, "fabric.health.route_unhealthy")
    yield from findings
    if yes:
        yield Finding(FAIL, "fabric.health.route_unhealthy", "an NVLink route is unhealthy", FATAL, "")


def _settings(fields: Fields) -> Iterator[Finding]:
    if value(fields, "persistence_mode") == "Disabled":
        yield Finding(DEGRADED, "persistence_mode", "persistence mode is disabled")
    checksum = value(fields, "inforom.checksum_validation")
    if checksum is not None and checksum.lower() != "valid":
        what = f"the infoROM's checksum is {checksum[:40]}"
        yield Finding(DEGRADED, "inforom.checksum_validation", what)
    limit, default = _number(fields, "enforced.power.limit"), _number(fields, "power.default_limit")
    if limit is not None and default is not None and limit < default:
        what = f"the power limit is {limit:g} W, {default:g} W by default"
        yield Finding(DEGRADED, "enforced.power.limit", what)
    if value(fields, "mig.mode.current") == "Enabled":
        yield Finding(NOTE, "mig.mode.current", "MIG is on: dcgmi diag needs whole GPUs")


RULES: tuple[Callable[[Fields], Iterator[Finding]], ...] = (
    _recovery,
    _ecc,
    _rows,
    _clocks,
    _heat,
    _fabric,
    _link,
    _settings,
)
# A row in which none of these has a value has not been looked at.
HEALTH = frozenset(
    {
        "gpu_recovery_action",
        "reset_status.reset_required",
        "ecc.mode.current",
        "ecc.errors.uncorrected.volatile.total",
        "ecc.errors.uncorrected.aggregate.total",
        "remapped_rows.failure",
        "remapped_rows.pending",
        "retired_pages.pending",
        "clocks_event_reasons.active",
        "temperature.gpu",
        "temperature.gpu.tlimit",
        *_REASON_FIELDS,
    }
)
