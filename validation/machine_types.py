"""Machine types of the clouds, and how many NVIDIA GPUs each has: ``machine_types.json`` and its reader.

The table holds exact names and rules over names, with the source of each. A name that neither knows is
unknown, never zero: a new GPU type must not pass for a machine without GPUs.
"""

from __future__ import annotations

import json
import os.path
import re
from typing import Any, NamedTuple

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "machine_types.json")
# cloud-init's v1.cloud_name, where it is one of ours; its datasources name themselves so.
CLOUDS = {"aws": "aws", "gce": "gcp", "azure": "azure", "oracle": "oci"}


class MachineType(NamedTuple):
    """What is known of one machine type."""

    name: str
    gpus: int | None  # NVIDIA devices on the bus; None: the name does not say, or nobody knows it
    gpu: str | None  # the model as nvidia-smi's name has it, lower case: "h100", "rtx pro 6000"
    cloud: str | None  # aws, gcp, azure, oci; None: not found
    source: str  # where the number is from; "" when not found

    @property
    def known(self) -> bool:
        """It is in the table, with or without a number."""
        return self.cloud is not None


def lookup(name: str, cloud: str | None = None) -> MachineType:
    """What the table says about a machine type.

    ``cloud`` is cloud-init's name of the cloud (aws, gce, azure, oracle); the types of any other cloud are
    unknown, whatever they are called. None: not known which cloud; the clouds' names do not overlap. GCP's
    ``projects/N/machineTypes/NAME`` is taken as well.
    """
    name = name.rpartition("/")[2]
    lower = name.lower()
    with open(TABLE, encoding="utf-8") as file:
        table: dict[str, Any] = json.load(file)["clouds"]
    for key, entries in table.items():
        if cloud is not None and CLOUDS.get(cloud) != key:
            continue
        for family in entries["families"]:
            for known, gpus in family["types"].items():
                if known.lower() == lower:
                    return MachineType(name, gpus, family["gpu"], key, family["source"])
        for rule in entries["rules"]:
            if match := re.fullmatch(rule["match"], lower):
                groups = match.groupdict()
                gpus = int(groups["gpus"]) if "gpus" in groups else rule["gpus"]
                return MachineType(name, gpus, groups.get("gpu") or rule.get("gpu"), key, rule["source"])
    return MachineType(name, None, None, None, "")
