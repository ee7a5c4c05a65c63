"""The machine under test: runs the probes once and hands out what they printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import testinfra

from validation.gate import probes
from validation.gate.checks import Unknown


class Machine:
    """Asks ``host`` (a testinfra host) all of ``names`` in one call."""

    def __init__(self, host: Any, names: Iterable[str]) -> None:
        self._host = host
        self._names = frozenset(names)
        self._outputs: dict[str, probes.Output] | None = None
        self._broken = ""

    def collect(self) -> None:
        """Asks the machine now. Whatever goes wrong is kept for those who read the answers."""
        self._collected()

    def text(self, name: str) -> str:
        """What the probe printed. Raises ``Unknown`` when it failed, hung, or the machine is not reached."""
        output = self._collected().get(name)
        if output is None:
            raise Unknown(self._broken or f"the machine did not answer {name}")
        if output.code is None:
            raise Unknown(f"{probes.PROBES[name].split()[0]} did not end within {probes.DEADLINE} s")
        if output.code:
            last = output.text.strip().splitlines()[-1:] or [""]
            raise Unknown(f"{probes.PROBES[name][:60]!r} ended with code {output.code}: {last[0][:200]}")
        return output.text

    def seconds(self, names: Iterable[str]) -> float:
        """How long the probes ``names`` ran on the machine, the longest of them."""
        outputs = self._outputs or {}
        return max((outputs[name].seconds for name in names if name in outputs), default=0.0)

    def _collected(self) -> dict[str, probes.Output]:
        if self._outputs is None:
            self._outputs = {}
            try:
                # Code 255 is ssh's own failure: then testinfra's backend raises.
                result = self._host.run(probes.script(self._names))
            except RuntimeError as error:
                self._broken = f"SSH failed: {reason_of(error)}"
                return self._outputs
            self._outputs = probes.read(result.stdout_bytes)
            if not self._outputs:
                said = result.stderr_bytes.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
                self._broken = f"the machine ran no command (code {result.rc}): {said[0][:200]}"
        return self._outputs


def reason_of(error: RuntimeError) -> str:
    """What ssh said, from the exception that testinfra raises with its result in it."""
    result = error.args[0] if error.args else None
    stderr = getattr(result, "stderr_bytes", b"")
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "the connection broke"


def connect(options: Any) -> Any:
    """The testinfra host that the options ``--hosts``, ``--ssh-config`` and ``--sudo`` name."""
    return testinfra.get_host(
        options.hosts,
        ssh_config=options.ssh_config,
        ssh_identity_file=options.ssh_identity_file,
        sudo=options.sudo,
        sudo_user=options.sudo_user,
        # Sharing a connection is the ssh_config's business: a master that testinfra keeps for a minute
        # outlives a reboot.
        controlpersist=0,
    )
