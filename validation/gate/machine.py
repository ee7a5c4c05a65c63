"""The machine under test: runs the probes once and hands out what they printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import testinfra

from validation.gate import probes
from validation.gate.checks import Unknown


class Machine:
    """Asks ``host`` (a testinfra host) all of ``names``: a call for each stage of ``probes`` that they need.

    ``variables`` are shell variables that probes use.
    """

    def __init__(
        self, host: Any, names: Iterable[str], *, variables: Mapping[str, str] | None = None
    ) -> None:
        self._host = host
        self._names = frozenset(names)
        self._variables = dict(variables or {})
        self._diag_level = int(self._variables.get("diag_level", 0))
        self._outputs: dict[str, probes.Output] | None = None
        self._broken = ""

    def collect(self) -> None:
        """Asks the machine now. Whatever goes wrong is kept for those who read the answers."""
        self._collected()

    def output(self, name: str) -> probes.Output:
        """What the probe left, whatever its exit code. Raises ``Unknown`` when it hung or did not answer."""
        output = self._collected().get(name)
        if output is None:
            raise Unknown(self._broken or f"the machine did not answer {name}")
        if output.code is None:
            seconds = probes.deadline([name], self._diag_level)
            raise Unknown(
                f"{probes.PROGRAMS.get(name, probes.PROBES[name].split()[0])} did not end within {seconds} s"
            )
        return output

    def text(self, name: str) -> str:
        """What the probe printed. Raises ``Unknown`` when it failed, hung, or the machine is not reached."""
        output = self.output(name)
        if output.code:
            last = output.text.strip().splitlines()[-1:] or [""]
            raise Unknown(f"{probes.PROBES[name][:60]!r} ended with code {output.code}: {last[0][:200]}")
        return output.text

    def save(self, folder: Path, names: Mapping[str, str]) -> None:
        """Writes what probes printed into ``folder``: probe -> file name. Nothing for those not asked."""
        folder.mkdir(parents=True, exist_ok=True)
        for probe, name in names.items():
            if output := self._collected().get(probe):
                (folder / name).write_text(output.text, errors="replace")

    def seconds(self, names: Iterable[str]) -> float:
        """How long the probes ``names`` ran on the machine, the longest of them."""
        outputs = self._outputs or {}
        return max((outputs[name].seconds for name in names if name in outputs), default=0.0)

    def _collected(self) -> dict[str, probes.Output]:
        if self._outputs is None:
            self._outputs = {}
            for stage in probes.stages(self._names):
                if self._broken:
                    break
                self._outputs |= self._ask(stage)
        return self._outputs

    def _ask(self, names: Iterable[str]) -> dict[str, probes.Output]:
        try:
            # Code 255 is ssh's own failure: then testinfra's backend raises.
            script = probes.script(
                names, deadline=probes.deadline(names, self._diag_level), variables=self._variables
            )
            result = self._host.run(script)
        except RuntimeError as error:
            self._broken = f"SSH failed: {reason_of(error)}"
            return {}
        outputs = probes.read(result.stdout_bytes)
        if not outputs:
            said = result.stderr_bytes.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
            self._broken = f"the machine ran no command (code {result.rc}): {said[0][:200]}"
        return outputs


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
