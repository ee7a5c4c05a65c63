"""The GPUs of the machine under test, from what ``validation.gpu_facts`` printed there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from validation import gpu_models, nvidia_smi, pci
from validation.expect import Expectation
from validation.gate.checks import Level, NotRun, Unknown
from validation.gpu_models import Model
from validation.judgement import Judgement
from validation.nvidia_smi import Gpu

#: The tools of the driver's own simulator in tests give every GPU such a UUID.
SIMULATED_UUID = "GPU-51515151-"


@dataclass(frozen=True)
class Gpus:
    """All that is known of them. ``rows`` are what nvidia-smi listed, ``judgement`` what that comes to."""

    bus: list[pci.Device]
    nvswitches: list[pci.Device]
    expected: Expectation
    module: str | None
    module_loaded: bool
    libraries: dict[str, str | None]
    rows: list[Gpu]
    judgement: Judgement | None
    smi_problem: str | None
    simulated: bool
    models: dict[str, Model | None] = field(default_factory=dict)

    @property
    def level(self) -> Level:
        """What a result on these GPUs was obtained on."""
        return Level.GPU_SIMULATED if self.simulated else Level.GPU_HARDWARE

    @property
    def families(self) -> dict[str, int]:
        """How many GPUs there are of each family that is known."""
        found: dict[str, int] = {}
        for model in self.models.values():
            if model:
                found[model.family] = found.get(model.family, 0) + 1
        return found

    @property
    def machine_type(self) -> str:
        """The cloud's machine type, where there is one, and what nvidia-smi calls the GPUs."""
        names = sorted({row.name for row in self.rows if row.name})
        return ", ".join(filter(None, [self.expected.machine_type, *names]))

    def model(self, row: Gpu) -> Model | None:
        """The model of a GPU."""
        return self.models.get(row.pci) if row.pci else None


def read(text: str, *, count: int | None) -> Gpus:
    """The GPUs, from the probe ``gpu_facts``; ``count`` is how many the gate was told to expect.

    Raises ``NotRun`` when there are none and none are expected, ``Unknown`` when the bus cannot be read.
    """
    facts: dict[str, Any] = json.loads(text)
    if facts["bus_problem"]:
        raise Unknown(facts["bus_problem"])
    expected = Expectation(**facts["expected"])
    if count is not None:
        expected = expected._replace(count=count, source="the gate's options", error=None)
    bus = [pci.Device(**device) for device in facts["gpus"]]
    if not bus and not expected.count and not facts["module"]["loaded"]:
        why = expected.error or f"{'none is' if expected.count == 0 else 'unknown whether any is'} expected"
        raise NotRun(f"no NVIDIA GPU on the PCI bus; {why}: {expected.source}")
    smi = facts["smi"] or {"text": "", "exit_code": None, "problem": "not asked: no GPU and no driver"}
    rows: list[Gpu] = []
    judgement = None
    if smi["text"]:
        rows = list(nvidia_smi.parse(smi["text"]).gpus)
        # As many as on the bus: how many should be there is the check of the count alone.
        judgement = nvidia_smi.judge(smi["text"], expect_gpus=len(bus), exit_code=smi["exit_code"])
    ids = {device.pci: device.device for device in bus}
    return Gpus(
        bus=bus,
        nvswitches=[pci.Device(**device) for device in facts["nvswitches"]],
        expected=expected,
        module=facts["module"]["version"],
        module_loaded=facts["module"]["loaded"],
        libraries=facts["libraries"],
        rows=rows,
        judgement=judgement,
        smi_problem=smi["problem"],
        simulated=bool(facts["simulated"])
        or any((row.uuid or "").startswith(SIMULATED_UUID) for row in rows),
        models={row.pci: _model(row, ids.get(row.pci)) for row in rows if row.pci},
    )


def _model(row: Gpu, device_id: int | None) -> Model | None:
    """The model by name; where two share one, the PCI device and then the memory tell."""
    memory = row.fields.get("memory.total", "").split(" ")[0]
    return gpu_models.find(
        row.name or "", device_id=device_id, memory_mib=int(memory) if memory.isdecimal() else None
    )
