"""What the simulated programs share on the machine; lies beside the marker in /usr/share/gpu-sim.

Standard library only and few imports: it is part of the time that a program takes to start.
"""

from __future__ import annotations

import json
import os
import sys
import time

SHARE = "usr/share/gpu-sim"
RUN = "run/gpu-sim"  # what changes while the machine runs: counters, watches, persistence mode
HUNG = "hung"  # a line for each program that hangs: its name and pid
HOLDERS = "holders"  # pids of processes that hold a hung program's pipes open


def root():
    """The folder the machine lies in, told from where this file is: ROOT/usr/share/gpu-sim/simulated.py."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))


def machine():
    """The simulated machine. Without its marker there is none, and nothing is said."""
    folder = os.path.join(root(), SHARE)
    try:
        with open(os.path.join(folder, "scenario.json"), encoding="utf-8"):
            pass
        with open(os.path.join(folder, "machine.json"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        print(f"gpu-sim: no scenario in {folder}: {error}", file=sys.stderr)
        sys.exit(70)


def state(name):
    """The path of a state file."""
    folder = os.path.join(root(), RUN)
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, name)


def read_state(name):
    """What a state file holds; None when there is none."""
    try:
        with open(os.path.join(root(), RUN, name), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def write_state(name, text):
    """Sets a state file, in one step."""
    path = state(name)
    with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(file.name, path)


def seconds_since_first_look(name):
    """How long ago somebody asked first, on the clock that starts at boot; the C library shares the file."""
    path = state(name)
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(str(now))
        return 0.0
    except FileExistsError:
        with open(path, encoding="utf-8") as file:
            return (now - int(file.read() or now)) / 1e9


def begin(program, settings):
    """Hangs or waits before a program does anything, if the scenario says so."""
    for how in settings["slow"]:
        if how["program"] == program:
            time.sleep(how["seconds"])
    for how in settings["hung"]:
        if how["program"] == program:
            hang(how)


def hang(how):
    """Never returns."""
    import signal

    if how["holds_pipes"]:
        _leave_a_holder()
    if how["ignores_sigterm"]:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
    with open(state(HUNG), "a", encoding="utf-8") as file:
        file.write(f"{how['program']} {os.getpid()}\n")
    if how["blocks_on"]:
        # A file on a frozen file system or a suspended device: the kernel holds us in D state.
        with open(how["blocks_on"], "wb", buffering=0) as file:
            file.write(b"!")
            os.fsync(file.fileno())
    while True:
        signal.pause()


def _leave_a_holder():
    """A process of another session keeps our pipes open when we are killed; it ends after a minute."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    with open(state(HOLDERS), "a", encoding="utf-8") as file:
        file.write(f"{pid}\n")
