"""What the boot checks cost: each one's own CPU time beside ``python3 -c pass``, and all side by side.

On a machine laid out in a folder, with eight simulated H100, compiled as the image is. Own time is that of
the check's process alone: without nvidia-smi and systemctl, and without what it spends inside libcuda.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from images import bundle
from images.errors import ExitCode, UserError
from tests import gpu_sim
from validation.boot_checks import runner

PYTHON = "/usr/bin/python3"  # what the checks run with
RUNS = 15
CHECKS = ("10-services", "20-gpus", "30-gpu-memory")
SERVICES = ["ssh.service", "cron.service", "nvidia-persistenced.service"]
SYSTEMCTL = """#!/bin/sh
between=
for name in {names}; do
    printf "${{between}}Id=$name\\nLoadState=loaded\\nActiveState=active\\nSubState=running\\n"
    between='\\n'
done
"""


class Machine:
    """A simulated machine under ``root``, with the bundle of this checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        files = bundle.collect()
        bundle.write(files, root)
        self.lib = root / "usr/lib/gpu-image"
        scenario = gpu_sim.Scenario(gpus=8, model="h100-sxm", machine_type="p5.48xlarge")
        try:
            libraries = gpu_sim.compile_libraries(root / "libraries")
        except gpu_sim.NoCompiler as error:
            raise UserError(str(error), code=ExitCode.USAGE) from None
        gpu_sim.lay_out(root, scenario, libraries)
        systemctl = root / "usr/bin/systemctl"
        systemctl.write_text(SYSTEMCTL.format(names=" ".join(SERVICES)))
        systemctl.chmod(0o755)
        identity = {"family": "bench", "version": "0", "build_id": "bench", "services": SERVICES}
        about = {**identity, "bundle_digest": bundle.digest(files), "driver": scenario.driver}
        (self.lib / "image.json").write_text(json.dumps(about))
        # As roles/boot_checks does.
        compileall = f"{PYTHON} -m compileall -q --invalidation-mode checked-hash {self.lib}/validation"
        subprocess.run(compileall.split(), check=True)
        os.environ["GPU_IMAGE_ROOT"] = str(root)
        self.environment = runner.environment()
        del os.environ["GPU_IMAGE_ROOT"]

    def check(self, name: str) -> float:
        """Own CPU seconds of one run of a check. Raises ``UserError`` when it does not pass."""
        spent, output = own_cpu([str(self.lib / "boot-checks.d" / name)], self.environment)
        result = json.loads(output)
        if result["status"] != "pass":
            raise UserError(f"{name}: {result['status']}: {result['reason']}", code=ExitCode.FAILED)
        return spent - float(result["data"].get("driver_cpu_seconds", 0.0))

    def seconds(self, *names: str) -> float:
        """How long the runner takes with only these checks."""
        aside = self.root / "aside"
        aside.mkdir(exist_ok=True)
        for name in set(CHECKS) - set(names):
            (self.lib / "boot-checks.d" / name).rename(aside / name)
        command = [f"{self.lib}/bin/gpu-boot-check", f"--root={self.root}", "--check-only", "--json"]
        started = time.monotonic()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        spent = time.monotonic() - started
        for path in aside.iterdir():
            path.rename(self.lib / "boot-checks.d" / path.name)
        return spent


def own_cpu(command: list[str], environment: dict[str, str]) -> tuple[float, bytes]:
    """CPU seconds that the process itself has used, without its children, and what it printed."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout
        output = process.stdout.read()
        # Ended and not reaped, so that its account is still there; the first number is in nanoseconds.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        account = Path(f"/proc/{process.pid}/schedstat").read_text()
    return int(account.split()[0]) / 1e9, output


def against_python(machine: Machine, check: str) -> tuple[float, float]:
    """Median of the check's own CPU seconds, and of its ratio to ``python3 -c pass`` run by run in turn."""
    pairs = []
    for _ in range(RUNS + 1):
        own = machine.check(check)
        pairs.append((own, own_cpu([PYTHON, "-c", "pass"], machine.environment)[0]))
    pairs = pairs[1:]  # the first run is the disk's
    return statistics.median(own for own, _ in pairs), statistics.median(own / bare for own, bare in pairs)


def side_by_side(machine: Machine) -> tuple[float, float]:
    """Median seconds of all checks together, and of the slowest of them alone."""
    together = statistics.median(machine.seconds(*CHECKS) for _ in range(5))
    alone = [statistics.median(machine.seconds(name) for _ in range(5)) for name in CHECKS]
    return together, max(alone)


def lay_out(root: Path) -> Machine:
    """A machine under ``root``, made anew."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    return Machine(root)
