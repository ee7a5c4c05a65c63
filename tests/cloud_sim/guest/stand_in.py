#!/usr/bin/python3
"""Stands in for systemctl, cloud-init, shutdown and their like in a machine of the chroot target.

There is no systemd: what cannot be done without it fails and says so, so that nothing passes by mistake.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

STATUS = Path("/run/cloud-init/status")
UNITS = Path("/etc/systemd/system")
UNITS_OF_TIME = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}


def main() -> int:
    name, *words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    command = globals()[name.replace("-", "_")]
    return command([word for word in words if not word.startswith("-")], set(words))


def refuse(what: str) -> int:
    print(f"{what} is not simulated: this machine has no systemd", file=sys.stderr)
    return 1


def systemctl(words: list, options: set) -> int:
    verb, *names = words or [""]
    if verb == "is-system-running":
        while "--wait" in options and STATUS.read_text() == "running":
            time.sleep(0.1)
        state = {"running": "starting", "done": "running", "error": "degraded"}[STATUS.read_text()]
        print(state)
        return 0 if state == "running" else 1
    if verb in ("poweroff", "halt", "reboot"):
        return globals()[verb]([], options)
    if verb in ("mask", "unmask"):
        UNITS.mkdir(parents=True, exist_ok=True)
        for unit in names:
            file = UNITS / (unit if "." in unit else f"{unit}.service")
            if file.is_symlink():
                file.unlink()
            if verb == "mask":
                file.symlink_to("/dev/null")
        return 0
    if verb == "daemon-reload":
        return 0
    return refuse(f"systemctl {' '.join(words)}")


def cloud_init(words: list, options: set) -> int:
    verb = words[0] if words else ""
    if verb == "status":
        while "--wait" in options and STATUS.read_text() == "running":
            time.sleep(0.1)
        state = STATUS.read_text()
        print(f"status: {state}")
        return {"done": 0, "running": 0, "error": 1}[state]
    if verb == "clean":
        shutil.rmtree("/var/lib/cloud", ignore_errors=True)
        if "--machine-id" in options:
            Path("/etc/machine-id").write_text("uninitialized\n")
        return 0
    return refuse(f"cloud-init {' '.join(words)}")


def cloud_id(_words: list, _options: set) -> int:
    print("aws")
    return 0


def shutdown(words: list, options: set) -> int:
    pending = Path("/run/box-shutdown.pid")
    if "-c" in options:
        if pending.exists():
            os.kill(int(pending.read_text()), signal.SIGKILL)
            pending.unlink()
        return 0
    when = words[0] if words else "+1"
    if when != "now" and not re.fullmatch(r"\+?\d+", when):
        return refuse(f"shutdown {when}")
    signum = signal.SIGINT if options & {"-r", "--reboot"} else signal.SIGPWR
    if when not in ("now", "+0", "0"):
        words = ["sh", "-c", f"sleep {int(when) * 60}; kill -{int(signum)} 1"]
        later = subprocess.Popen(words, start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
        pending.write_text(str(later.pid))
        return 0
    os.kill(1, signum)
    return 0


def poweroff(_words: list, _options: set) -> int:
    return shutdown(["now"], set())


def halt(_words: list, _options: set) -> int:
    return shutdown(["now"], set())


def reboot(_words: list, _options: set) -> int:
    return shutdown(["now"], {"-r"})


def systemd_run(words: list, options: set) -> int:
    for option in options:
        if found := re.fullmatch(r"--on-(?:active|boot)=(\d+)([a-z]*)", option):
            seconds = int(found[1]) * UNITS_OF_TIME[found[2]]
            words = ["sh", "-c", 'sleep "$1"; shift; exec "$@"', "sh", str(seconds), *words]
    subprocess.Popen(words, start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
