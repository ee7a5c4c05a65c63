"""The fault catalog: what a code in a log or a report means, how bad it is, and what to do.

One data file, ``catalog.json``, one entry a line, for Xid, SXid, the sub-codes of NVLink 5 (Xid 144-150),
DCGM error ids, and kernel messages without a code. Boot checks, gate and agent all judge by it.
``python -m validation.faults explain xid 79`` prints an entry for people.

Public sources contradict each other on a third of the Xids, and none says how often what may happen. So
severity, action and repetition are our own judgement, made by these rules; the entry keeps who disagrees.

- NVIDIA's immediate action decides where it has one: reset, restart of the machine and mechanics are fatal;
  restart of the application is a warning that counts when it comes back; ignore is information, or a warning
  where the hardware is failing slowly. What ends with the application does not take a GPU away.
- ``degraded`` is what stays less than it should be while it works (less memory, a narrower or slower link);
  a passing state (a thermal slowdown) is a warning, since a log line does not say whether it still lasts.
- A code that no source explains is ``unknown``, also where a line must say how bad it is and does not.
- SXid: the driver's word in the line, except for codes that the Fabric Manager guide calls always fatal.
- Xid 144-150: that word and NVIDIA's sub-code table, the graver of the two. Xid 154: the target's number.
- DCGM: its own severity (isolate, triage and reset are fatal; monitor and config warnings).

``model``    the types: ``Fault``, ``Severity``
``catalog``  the data file, and the look-up by code
``nvlink5``  the sub-code table of Xid 144-150
``page``     an entry as text
``__main__`` the command
"""

from __future__ import annotations

from validation.faults.catalog import dcgm_error, every, kernel, sxid, sxid_severity, xid, xid154
from validation.faults.model import Fault, Severity, graver
from validation.faults.nvlink5 import Decoded, decode

__all__ = [
    "Decoded",
    "Fault",
    "Severity",
    "dcgm_error",
    "decode",
    "every",
    "graver",
    "kernel",
    "sxid",
    "sxid_severity",
    "xid",
    "xid154",
]
