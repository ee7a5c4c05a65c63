"""Machines whose GPUs are joined by NVSwitches."""

from __future__ import annotations

from validation.gate import gpu_readers, readers
from validation.gate.checks import Level, NotRun, Tier, Unknown, check, record
from validation.gate.gpu_facts import Gpus
from validation.gate.machine import Machine


@check("nvswitch.fabric", "gpu_facts", "units", tier=Tier.NVSWITCH, level=Level.GPU_HARDWARE)
def test_fabric(machine: Machine, gpus: Gpus) -> None:
    """Every GPU has joined the fabric, and fabric manager runs where the machine has NVSwitches."""
    states = {str(row): row.fields.get("fabric.state", "") for row in gpus.rows}
    states = {name: state for name, state in states.items() if not gpu_readers.not_applicable(state)}
    if not states and not gpus.nvswitches:
        raise NotRun("no NVSwitch on the PCI bus, and no GPU with a fabric")
    record(states=states, nvswitches=[device.address for device in gpus.nvswitches])
    gpu_readers.require(gpus, lambda field: field.startswith("fabric."))
    if not states:
        raise Unknown("NVSwitches on the PCI bus, and nvidia-smi says no fabric state")
    if gpus.nvswitches:
        unit = readers.units(machine.text("units")).get("nvidia-fabricmanager.service")
        assert unit, "NVSwitches on the PCI bus, and no nvidia-fabricmanager.service"
        assert unit.active == "active", f"nvidia-fabricmanager.service is {unit.active}"
