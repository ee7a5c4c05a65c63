"""What goes wrong in the simulated account, and what happened there: rules and hooks that tests set."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class Call:
    """One API call. ``parameters`` are as on the wire (``InstanceId.1``); RunInstances also has the
    ``AvailabilityZone`` that was asked for, by zone or by subnet. ``error`` is the code of the answer."""

    time: float
    service: str
    region: str
    action: str
    parameters: dict[str, str]
    agent: str = ""
    error: str | None = None


@dataclass
class Fault:
    """The API answers calls of ``action`` with this error, the first ``times`` calls (None: always).

    ``where``: parameters and their values; a compiled pattern is searched for in the value. ``delay``:
    seconds before the answer.
    """

    action: str
    code: str
    message: str = "a fault of the simulated account"
    status: int = 400
    times: int | None = None
    where: Mapping[str, str | re.Pattern[str]] = field(default_factory=dict)
    region: str | None = None
    delay: float = 0

    def matches(self, call: Call) -> bool:
        """Whether this call is to fail."""
        return (
            self.times != 0
            and call.action == self.action
            and self.region in (None, call.region)
            and all(_matches(call.parameters.get(name), wanted) for name, wanted in self.where.items())
        )


def _matches(value: str | None, wanted: str | re.Pattern[str]) -> bool:
    if isinstance(wanted, str):
        return value == wanted
    return value is not None and bool(wanted.search(value))


@dataclass
class _ImageFault:
    region: str | None
    copied: bool | None
    reason: str
    times: int | None


Hook = Callable[[Call], object]


class Faults:
    """The rules of one account; may be changed at any time, from any thread."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.on_endpoint_dies: Callable[[], None] = lambda: None
        self._lock = threading.RLock()
        self._faults: list[Fault] = []
        self._images: list[_ImageFault] = []
        self._hooks: list[tuple[str, str, Hook, list[int | None]]] = []

    def add(self, fault: Fault) -> Fault:
        """Adds a fault and returns it."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def image_fails(
        self,
        *,
        region: str | None = None,
        copied: bool | None = None,
        reason: str = "the snapshot could not be stored",
        times: int | None = None,
    ) -> None:
        """Images that are made (``copied``: only copies, or only captures) end in the state ``failed``."""
        with self._lock:
            self._images.append(_ImageFault(region, copied, reason, times))

    def endpoint_dies(self) -> None:
        """From now on the API's address refuses connections; those that are open break."""
        self.on_endpoint_dies()

    def before(self, action: str, hook: Hook, *, times: int | None = 1) -> None:
        """Calls ``hook`` when a call of ``action`` has arrived, before it is carried out."""
        self._hook("before", action, hook, times)

    def done(self, action: str, hook: Hook, *, times: int | None = 1) -> None:
        """Calls ``hook`` when a call has been carried out and the client does not know it yet."""
        self._hook("done", action, hook, times)

    def after(self, action: str, hook: Hook, *, times: int | None = 1) -> None:
        """Calls ``hook`` when a call has been answered: the answer is with the client."""
        self._hook("after", action, hook, times)

    def clear(self) -> None:
        """Forgets faults and hooks; the calls stay."""
        with self._lock:
            self._faults.clear()
            self._images.clear()
            self._hooks.clear()

    def actions(self, action: str | None = None, *, region: str | None = None) -> list[Call]:
        """The calls so far, of this action and region."""
        return [c for c in list(self.calls) if action in (None, c.action) and region in (None, c.region)]

    # What the account asks.

    def record(self, call: Call) -> None:
        """Notes a call that has arrived."""
        self.calls.append(call)

    def strike(self, call: Call) -> Fault | None:
        """The fault that this call meets, after its delay; uses it up once."""
        with self._lock:
            fault = next((fault for fault in self._faults if fault.matches(call)), None)
            if fault and fault.times is not None:
                fault.times -= 1
        if fault and fault.delay:
            threading.Event().wait(fault.delay)
        return fault

    def image_failure(self, *, region: str, copied: bool) -> str | None:
        """The reason why an image that is being made fails, or None."""
        with self._lock:
            for fault in self._images:
                matches = fault.region in (None, region) and fault.copied in (None, copied)
                if matches and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    return fault.reason
        return None

    def run_hooks(self, when: str, call: Call) -> None:
        """Runs the hooks of this moment."""
        with self._lock:
            due = [
                (hook, left)
                for moment, action, hook, left in self._hooks
                if (moment, action) == (when, call.action) and left[0] != 0
            ]
            for _, left in due:
                left[0] = None if left[0] is None else left[0] - 1
        for hook, _ in due:
            hook(call)

    def _hook(self, when: str, action: str, hook: Hook, times: int | None) -> None:
        with self._lock:
            self._hooks.append((when, action, hook, [times]))


def call(service: str, region: str, action: str, parameters: dict[str, str], agent: str) -> Call:
    """A call that arrives now."""
    return Call(time.time(), service, region, action, parameters, agent)
