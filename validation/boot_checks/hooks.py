"""What a site does with an unhealthy machine: the executables of ``/etc/gpu-image/on-unhealthy.d``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from validation.boot_checks import image, supervisor
from validation.boot_checks.results import Verdict

DEADLINE = 30.0  # seconds for one hook
TOTAL = 60.0  # seconds for all of them; what does not get its turn is reported as not started


def run_once(verdict: Verdict, *, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Runs the hooks one after another by name, and says how each ended.

    Once a boot: a second call does nothing. They get ``GPU_IMAGE_VERDICT`` and ``GPU_IMAGE_REPORT`` in
    the environment. Raises ``OSError`` when it cannot be remembered that they ran; then none does.
    """
    folder = image.at(image.HOOKS)
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except FileNotFoundError:
        return []
    try:
        os.close(os.open(image.at(image.HOOKS_RAN), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return []
    environment = {
        **env,
        "GPU_IMAGE_VERDICT": verdict.value,
        "GPU_IMAGE_REPORT": image.at(image.REPORT),
    }
    left = TOTAL
    outcomes = []
    for name in names:
        if left <= 0:
            outcomes.append({"hook": name, "exit_code": None, "problem": "no time left", "seconds": 0.0})
            continue
        program = supervisor.Program(os.path.join(folder, name), DEADLINE)
        (ended,) = supervisor.run([program], env=environment, deadline=left)
        left -= ended.seconds
        outcomes.append(
            {
                "hook": name,
                "exit_code": ended.exit_code,
                "problem": ended.problem,
                "seconds": ended.seconds,
            }
        )
    return outcomes
