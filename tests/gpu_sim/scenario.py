"""A scenario: the machine that is simulated and what is wrong with it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.gpu_sim import tables

Fault = Mapping[str, Any]

#: Every kind of fault and its options with their defaults; README.md says what each does.
KINDS: dict[str, dict[str, Any]] = {
    "lost": {"gpu": 0, "says": "unknown", "rows": "message", "bus": True, "cuda": "fewer", "log": True},
    "count_short": {"gpu": None, "by": 1, "log": False},
    "hung": {"program": "nvidia-smi", "ignores_sigterm": False, "holds_pipes": False, "blocks_on": None},
    "slow": {"program": "nvidia-smi", "seconds": 1.0},
    "missing": {"program": "nvidia-smi"},
    "driver_not_loaded": {"says": "communicate", "cuda": 100},
    "version_mismatch": {"module": "575.57.08", "cuda": 803, "log": True},
    "no_devices": {"cuda": 100},
    "nvml_fails": {"code": 999},
    "unknown_field": {"fields": ()},
    "persistence_off": {"gpu": "all"},
    "row_remap": {"gpu": 0, "pending": False, "failure": False, "uncorrectable": None, "log": True},
    "ecc": {"gpu": 0, "uncorrected": 0, "uncorrected_aggregate": None, "corrected": 0,
            "sram_threshold": False, "mode": "Enabled", "log": True},
    "throttle": {"gpu": 0, "mask": 0x40},
    "hot": {"gpu": 0, "celsius": 95, "memory_celsius": None},
    "recovery_action": {"gpu": 0, "action": "Reset", "log": True},
    "fabric": {"gpu": "all", "state": "In Progress", "status": "N/A", "seconds": None},
    "pcie_link": {"gpu": 0, "width": None, "gen": None},
    "inforom_corrupt": {"gpu": 0},
    "mig": {"gpu": 0, "instances": 0},
    "xid": {"gpu": 0, "code": 79, "text": None},
    "log_line": {"text": ""},
    "cuinit_fails": {"times": None, "probability": None, "seed": 0, "code": 999, "sticky": False},
    "cuda_error": {"function": "cuMemAlloc_v2", "code": 2, "gpu": None, "times": None},
    "memory_miscompare": {"gpu": 0, "offset": 0, "mask": 0x01, "path": "DtoH"},
    "out_of_memory": {"gpu": 0, "free_mib": 0},
    "cuda_fewer": {"by": 1},
    "no_host_engine": {"embedded": True},
    "profiling": {"status": -33},
    "diag_busy": {},
    "diag_error": {"status": -11, "text": None},
    "diag_fails": {"test": "memory", "gpu": 0, "error_id": 52, "text": None, "detail": None},
    "diag_passes_with_error": {"test": "memory", "gpu": 0, "error_id": 56, "text": None, "detail": None},
    "diag_skipped": {"tests": "all", "gpu": "all"},
    "diag_not_run": {"tests": "all", "gpu": "all"},
    "health": {"gpu": 0, "result": "Failure", "xid": 79, "system": None, "text": None},
}  # fmt: skip

PROGRAMS = ("nvidia-smi", "dcgmi", "cuInit")  # what can hang or be slow
FILES = ("nvidia-smi", "dcgmi", "libcuda", "libnvidia-ml")  # what can be missing


class BadScenario(ValueError):
    """The scenario is not one; the message says what is wrong."""


@dataclass(frozen=True)
class Scenario:
    """A machine with GPUs. Checks itself; raises ``BadScenario``."""

    gpus: int = 1
    model: str = "h100-sxm"
    driver: str = "580.95.05"
    dcgm: str = "4.4.1"
    machine_type: str | None = None
    cloud: str | None = None  # aws, gcp, azure or oci; None: told from the machine type
    metadata_server: str | None = None  # URL; GCE's machine type is asked there (tests)
    expect: Mapping[str, Any] | None = None  # /etc/gpu-image/expect.json
    persistence: bool = True
    health_watches: bool = False  # set in the host engine before anybody asked
    memory_mib: int | None = None  # memory of each GPU; None: the model's
    proprietary: bool = True  # DCGM's proprietary package: memory_bandwidth, pulse_test
    eud: bool = False  # DCGM lists the EUD tests, and skips them
    figures: Mapping[str, float] = field(default_factory=dict)  # instead of the model's
    info_limit: int | None = None  # 16: the infos that DCGM 4.0 to 4.2 keep of one test (issue 215)
    faults: Sequence[Fault] = ()

    def __post_init__(self) -> None:
        if self.model not in tables.models():
            raise BadScenario(f"no model '{self.model}'; there are {', '.join(tables.models())}")
        if not 0 <= self.gpus <= 16:
            raise BadScenario(f"{self.gpus} GPUs: between 0 and 16 can be simulated")
        for fault in self.faults:
            _check(fault, self.gpus)

    @classmethod
    def load(cls, text: str) -> Scenario:
        """A scenario from its file."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise BadScenario(str(error)) from None

    def dump(self) -> str:
        """The scenario file."""
        return json.dumps(asdict(self), indent=2, default=list) + "\n"

    def but(self, *faults: Fault, **changes: Any) -> Scenario:
        """The same machine with further faults and other settings."""
        return Scenario(**{**self.__dict__, "faults": (*self.faults, *faults), **changes})

    @property
    def hardware(self) -> dict[str, Any]:
        """The model's entry in ``models.json``, with what this scenario says instead."""
        model = tables.models()[self.model]
        changed = {**model, "figures": {**model["figures"], **self.figures}}
        if self.memory_mib is not None:
            changed["memory_mib"] = self.memory_mib + model["reserved_mib"]
        return changed

    def having(self, kind: str) -> Iterator[dict[str, Any]]:
        """The faults of one kind, with the defaults filled in."""
        assert kind in KINDS
        for fault in self.faults:
            if fault["kind"] == kind:
                yield {**KINDS[kind], **fault}

    def one(self, kind: str) -> dict[str, Any] | None:
        """The last fault of a kind that a machine can have only once."""
        return next(iter(reversed(list(self.having(kind)))), None)

    def on(self, kind: str, gpu: int) -> dict[str, Any] | None:
        """The last fault of a kind that this GPU (by its place on the bus, from 0) has."""
        found = [fault for fault in self.having(kind) if gpu in hit(fault, self.gpus)]
        return found[-1] if found else None

    @property
    def cloud_name(self) -> str | None:
        """Whose machine type it is."""
        kind = self.machine_type or ""
        if self.cloud or not kind:
            return self.cloud
        if kind.startswith("Standard_"):
            return "azure"
        if kind.startswith(("BM.", "VM.")):
            return "oci"
        return "aws" if "." in kind else "gcp"


def hit(fault: Fault, gpus: int) -> list[int]:
    """The GPUs that a fault is about."""
    which = fault.get("gpu")
    if which == "all":
        return list(range(gpus))
    if which is None:
        return []
    return [which] if isinstance(which, int) else list(which)


def _check(fault: Fault, gpus: int) -> None:
    if not isinstance(fault, Mapping) or "kind" not in fault:
        raise BadScenario(f"a fault is an object with a 'kind', not {fault!r}")
    kind = fault["kind"]
    if kind not in KINDS:
        raise BadScenario(f"no fault '{kind}'; there are {', '.join(KINDS)}")
    unknown = set(fault) - set(KINDS[kind]) - {"kind"}
    if unknown:
        raise BadScenario(
            f"fault '{kind}' has no option {', '.join(sorted(unknown))}; it has {', '.join(KINDS[kind])}"
        )
    filled = {**KINDS[kind], **fault}
    wrong = [gpu for gpu in hit(filled, gpus) if not isinstance(gpu, int) or not 0 <= gpu < gpus]
    if wrong:
        raise BadScenario(f"fault '{kind}' is about GPU {wrong[0]!r}; the machine has {gpus}")
    choices = {
        ("lost", "says"): ("unknown", "lost", "reset"),
        ("lost", "rows"): ("message", "message_and_unknown", "fields", "only"),
        ("lost", "cuda"): ("fewer", "fails"),
        ("hung", "program"): PROGRAMS,
        ("slow", "program"): PROGRAMS,
        ("missing", "program"): FILES,
        ("driver_not_loaded", "says"): ("communicate", "nvml"),
        ("memory_miscompare", "path"): ("HtoD", "DtoD", "DtoH"),
        ("health", "result"): ("Warning", "Failure"),
    }
    for (of, option), allowed in choices.items():
        if of == kind and filled[option] not in allowed:
            raise BadScenario(
                f"fault '{kind}': {option} is {filled[option]!r}; it can be {', '.join(allowed)}"
            )


def random_scenario(seed: int, *, faults: int = 1) -> Scenario:
    """Any machine with any faults: for tests that only want to know that nothing breaks."""
    chance = random.Random(seed)
    kinds = [kind for kind in KINDS if kind not in ("hung", "slow")]
    return Scenario(
        gpus=chance.randint(1, 8),
        model=chance.choice(list(tables.models())),
        driver=chance.choice(["580.95.05", "535.183.01", "525.147.05", "570.195.03"]),
        dcgm=chance.choice(["4.4.1", "3.3.9", "4.6.0"]),
        faults=[{"kind": chance.choice(kinds)} for _ in range(faults)],
    )
