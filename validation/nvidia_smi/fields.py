"""The fields of ``nvidia-smi --query-gpu``: which we ask for, and what older drivers call them.

One field that a version does not have makes the whole query fail
(https://github.com/Azure/azurehpc-health-checks/pull/28), so only fields that its help offers are asked.
Names as in the help of drivers 535.129 and 580.173.02.
"""

from __future__ import annotations

import re
from collections.abc import Container

# Each with the other names that it has or had; the first is what a header says on driver 580.
_FIELDS: tuple[tuple[str, ...], ...] = (
    ("timestamp",),
    ("driver_version",),
    ("count",),
    ("index",),
    ("name", "gpu_name"),
    ("uuid", "gpu_uuid"),
    ("pci.bus_id", "gpu_bus_id"),
    ("vbios_version",),
    ("persistence_mode",),
    ("inforom.checksum_validation",),
    ("gpu_recovery_action",),
    ("reset_status.reset_required",),
    ("reset_status.drain_and_reset_recommended",),
    ("memory.total",),
    ("ecc.mode.current",),
    ("ecc.mode.pending",),
    ("ecc.errors.corrected.volatile.total",),
    ("ecc.errors.uncorrected.volatile.total",),
    ("ecc.errors.uncorrected.aggregate.total",),
    ("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",),
    ("retired_pages.pending",),
    ("remapped_rows.correctable", "remapped_rows.sbe"),
    ("remapped_rows.uncorrectable", "remapped_rows.dbe"),
    ("remapped_rows.pending",),
    ("remapped_rows.failure",),
    ("remapped_rows.histogram.low",),
    ("remapped_rows.histogram.none",),
    ("temperature.gpu",),
    ("temperature.gpu.tlimit",),
    ("temperature.memory",),
    ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    ("clocks_event_reasons_counters.hw_thermal_slowdown",),
    ("clocks_event_reasons_counters.hw_power_brake_slowdown",),
    ("clocks_event_reasons_counters.sw_thermal_slowdown",),
    ("clocks.max.sm",),
    ("pcie.link.gen.gpucurrent", "pcie.link.gen.current"),
    ("pcie.link.gen.gpumax",),
    ("pcie.link.gen.max",),
    ("pcie.link.width.current",),
    ("pcie.link.width.max",),
    ("power.draw",),
    ("enforced.power.limit", "gpu.power.current_limit"),
    ("power.default_limit", "gpu.power.default_limit"),
    ("mig.mode.current",),
    ("gsp.mode.current",),
    ("fabric.state",),
    ("fabric.status",),
    ("fabric.cliqueId",),
    ("fabric.clusterUuid",),
    ("fabric.health.summary",),
    ("fabric.health.bandwidth",),
    ("fabric.health.route_unhealthy",),
    ("fabric.health.incorrect_configuration",),
)
QUERY = tuple(names[0] for names in _FIELDS)  # what we ask for, in this order
# What every driver since 450 has: asked when the help gives no answer.
OLDEST = (
    "timestamp", "driver_version", "count", "index", "name", "uuid", "pci.bus_id", "persistence_mode",
    "memory.total", "ecc.mode.current", "ecc.errors.uncorrected.volatile.total", "retired_pages.pending",
    "temperature.gpu", "clocks_throttle_reasons.active", "pcie.link.gen.max", "pcie.link.width.current",
    "pcie.link.width.max", "power.draw",
)  # fmt: skip
_CANONICAL = {name.lower(): names[0] for names in _FIELDS for name in names}
_UNIT = re.compile(r"\s*\[[^\]]{0,20}\]$")  # "power.draw [W]"
_OFFER = re.compile(r'^"[\w.]+"(?: or "[\w.]+")*[ \t\r]*$', re.MULTILINE)
_REASONS = ("clocks_throttle_reasons.", "clocks_event_reasons.")
HELP_LIMIT = 4 * 1024 * 1024  # characters


def canonical(name: str) -> str:
    """One name for a field, whatever the driver calls it and without a unit, as in ``QUERY``."""
    plain = _UNIT.sub("", name.strip()[:120])
    old, new = _REASONS
    if plain.lower().startswith(old):
        plain = new + plain[len(old) :]
    return _CANONICAL.get(plain.lower(), plain)


def fields_offered(help_text: str) -> set[str]:
    """The fields that ``nvidia-smi --help-query-gpu`` offers, by every name it knows for them.

    A field is a line of its own: ``"clocks_event_reasons.active" or "clocks_throttle_reasons.active"``; the
    quoted words of an explanation are none.
    """
    offers = _OFFER.findall(help_text[:HELP_LIMIT])
    return {name for offer in offers for name in re.findall(r'"([^"]+)"', offer)}


def choose(offered: Container[str]) -> list[str]:
    """Of what we ask for, what this version offers, each by the newest name that it knows."""
    chosen = (next((name for name in names if name in offered), None) for names in _FIELDS)
    return [name for name in chosen if name]
