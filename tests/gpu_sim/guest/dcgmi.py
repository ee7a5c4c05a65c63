#!/usr/bin/python3 -IBS
"""The simulated dcgmi: diag, health, discovery, dmon and version, of DCGM 3.x and 4.x.

Layouts are those of NVIDIA/DCGM dcgmi/Diag.cpp (v3.3.9, v4.6.0), Health.cpp, Query.cpp, DeviceMonitor.cpp;
JSON is written as jsoncpp's toStyledString does (issue NVIDIA/DCGM#139 shows it); messages go to stdout.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../share/gpu-sim"))
import simulated
from dcgmi_diag import document, outcome, table
from dcgmi_health import report, tree
from dcgmi_json import styled

BAD_ARGUMENTS = 254  # main_dcgmi.cpp: -2 for an exception
STRINGS = {
    -3: "Generic unspecified error",
    -6: "Feature not supported",
    -11: "Timeout",
    -12: "API version mismatch",
    -18: "GPU is lost",
    -21: "Host engine connection invalid/disconnected",
    -29: "Unable to watch one or more of the requested fields because doing so requires the host engine "
    "to be running as root.",
    -33: "This request is serviced by a module of DCGM that is not currently loaded",
    -30: "DCGM GPU Diagnostic returned an error",
    -35: "The specified group is empty, and this operation is incompatible with an empty group",
    -36: "Profiling is not supported for this group of GPUs or GPU",
    -37: "The third-party Profiling module returned an unrecoverable error",
    -39: "A diag instance is already running, cannot run a new diag until the current one finishes",
    -51: "The diagnostic returned an error that indicates the need to drain the GPU",
    -52: "The NVVS binary was not found in the specified location; please install it to "
    "/usr/share/nvidia-validation-suite/ or set environment variable NVVS_BIN_PATH to the directory "
    "containing nvvs.",
    -53: "The NVVS process was killed",
    -56: "NVML doesn't exist on this system",
    -57: "The NVML driver timed out",
    -58: "The requested tests are not available on this system",
}
#: Profiling fields that can be watched, as dmon calls them.
PROFILING = {"1001": "GRACT", "1002": "SMACT", "1003": "SMOCC", "1004": "TENSO", "1005": "DRAMA"}
LEVELS = {"1": 1, "quick": 1, "short": 1, "2": 2, "medium": 2, "3": 3, "long": 3, "4": 4, "xlong": 4}
ALL_GPUS = 0x7FFFFFFF  # DCGM_GROUP_ALL_GPUS
#: Options with a value, and without.
TAKES = {
    "-r": "run",
    "--run": "run",
    "-i": "gpus",
    "--entity-id": "gpus",
    "-g": "group",
    "--group": "group",
    "--host": "host",
    "--iterations": "iterations",
    "-p": "parameters",
    "--parameters": "parameters",
    "--timeoutSeconds": "timeout",
    "-e": "fields",
    "--field-id": "fields",
    "-d": "delay",
    "--delay": "delay",
    "-s": "set",
    "--set": "set",
}
FLAGS = {
    "-j": "json",
    "--json": "json",
    "-v": "verbose",
    "--verbose": "verbose",
    "-c": "check",
    "--check": "check",
    "-f": "fetch",
    "--fetch": "fetch",
    "-l": "list",
    "--list": "list",
    "--fail-early": "early",
}
BUILD = """\
Version : {version}
Build ID : 0
Build Date : 2025-09-02
Build Type : Release
Commit ID : gpu-sim
Branch Name : gpu-sim
CPU Arch : x86_64
Build Platform : gpu-sim
CRC : 00000000000000000000000000000000
"""


class Wrong(Exception):
    """The command line is refused, as TCLAP does."""


def main(arguments):
    """Returns the exit code: DCGM's status, of which the shell sees eight bits."""
    machine = simulated.machine()
    simulated.begin("dcgmi", machine)
    dcgm = machine["dcgm"]
    commands = {"diag": diag, "health": health, "discovery": discovery, "dmon": dmon}
    if arguments[:1] in (["--version"], ["-v"]):
        return version(dcgm, arguments[0])
    if not arguments or arguments[0] not in commands:
        print("ERROR: Invalid subsystem.\n")
        return -1 & 255
    try:
        status = commands[arguments[0]](dcgm, parse(arguments[0], arguments[1:]))
    except Wrong as wrong:
        print(f"Error: {wrong}.\nAn error occurred trying to parse the command line.", file=sys.stderr)
        return BAD_ARGUMENTS
    return status & 255


def parse(command, words):
    """The options of a subsystem; short ones can stand together, as in ``health -cj``."""
    takes, flags = dict(TAKES), dict(FLAGS)
    if command == "diag":
        takes |= {"-c": "config", "--configfile": "config"}
        del flags["-c"], flags["--check"]
    if command == "dmon":
        takes |= {"-c": "count", "--count": "count"}
        del flags["-c"]
    options = {}
    rest = list(words)
    while rest:
        name, glued, value = rest.pop(0).partition("=")
        if name in flags:
            options[flags[name]] = True
        elif name in takes:
            if not glued and not rest:
                raise Wrong(f"Missing a value for this argument! for arg {name}")
            options[takes[name]] = value if glued else rest.pop(0)
        elif len(name) > 2 and name[0] == "-" and name[1] != "-":
            rest[:0] = [f"-{letter}" for letter in name[1:]]
        else:
            raise Wrong(f"Couldn't find match for argument for arg {name}")
    return options


def connected(dcgm, options):
    """Whether a host engine answers; says so when none does."""
    if dcgm["host_engine"]:
        return True
    print(
        f"Error: unable to establish a connection to the specified host: {options.get('host', 'localhost')}"
    )
    print(f"Error: Unable to connect to host engine. {STRINGS[-21]}.")
    return False


def version(dcgm, option):
    """--version, or -v with more."""
    if option == "--version":
        print(f"\ndcgmi  version: {dcgm['version']}\n")
        return 0
    text = BUILD.format(version=dcgm["version"])
    print(text, end="")
    if dcgm["host_engine"]:
        print(f"\nHostengine build info:\n{text}", end="")
    return 0


def discovery(dcgm, options):
    """discovery -l."""
    if not connected(dcgm, options):
        return -21
    if not options.get("list"):
        raise Wrong("Required argument missing for arg list")
    count = len(dcgm["gpus"])
    print(f"{count} GPU{'' if count == 1 else 's'} found.")
    rows = [
        (str(gpu["id"]) if place == 0 else "", text)
        for gpu in dcgm["gpus"]
        for place, text in enumerate(
            (f"Name: {gpu['name']}", f"PCI Bus ID: {gpu['bus_id']}", f"Device UUID: {gpu['uuid']}")
        )
    ]
    columns((("GPU ID", 8), ("Device Information", 70)), rows)
    count = dcgm["nvswitches"]
    print(f"{count} NvSwitch{'' if count == 1 else 'es'} found.")
    columns((("Switch ID", 11),), [(str(number),) for number in range(count)])
    if int(dcgm["version"].split(".")[0]) >= 4:
        print("0 ConnectX found.")
        columns((("ConnectX", 10),), [])
        print("0 CPUs found.")
        columns((("CPU ID", 8), ("Device Information", 70)), [])
    return 0


def columns(heads, rows):
    """A table with a line under each entity."""
    rule = "+" + "+".join("-" * width for _, width in heads) + "+"

    def show(cells):
        return (
            "| "
            + " | ".join(cell.ljust(width - 2) for cell, (_, width) in zip(cells, heads, strict=True))
            + " |"
        )

    print(rule, show([name for name, _ in heads]), rule, sep="\n")
    for place, row in enumerate(rows):
        if row[0] and place:
            print(rule)
        print(show(row))
    print(rule)


def health(dcgm, options):
    """health -s, -f and -c."""
    if not connected(dcgm, options):
        return -21
    if options.get("set"):
        simulated.write_state("health-watches", options["set"])
        print("Health monitor systems set successfully.")
        return 0
    watched = simulated.read_state("health-watches") or ("a" if dcgm["watches"] else "")
    if options.get("fetch"):
        print("Health monitor systems report")
        names = (
            "PCIe",
            "NVLINK",
            "Memory",
            "SM",
            "InfoROM",
            "Thermal",
            "Power",
            "Driver",
            "NvSwitch NF",
            "NvSwitch F",
        )
        body = {name: {"value": "On" if watched else "Off"} for name in names}
        out(styled({"body": body}) if options.get("json") else tree(body, [], 18, 70))
        return 0
    if not options.get("check"):
        raise Wrong("Required argument missing for arg check")
    if not watched:
        print("Error: Health watches not enabled. Please enable watches. ")
        return -3
    body = report(dcgm["health"])
    header = ["Health Monitor Report"]
    out(styled({"body": body, "header": header}) if options.get("json") else tree(body, header, 28, 60))
    return 0


def dmon(dcgm, options):
    """dmon -e FIELDS -c COUNT. What goes wrong stands on stderr; the head is there before anybody asks."""
    if not connected(dcgm, options):
        return -21
    fields = options.get("fields", "").split(",")
    if not set(fields) <= set(PROFILING):
        print(f"gpu-sim: of dmon's fields only {', '.join(PROFILING)} are simulated", file=sys.stderr)
        return 70
    print("#Entity   " + "".join(PROFILING[field].ljust(13) for field in fields))
    print("ID        " + " " * 13 * len(fields), flush=True)
    status = dcgm["profiling"]
    if status:
        print(
            f"Error setting watches. Result: {status}: {STRINGS.get(status, STRINGS[-3])}\n", file=sys.stderr
        )
        return status
    if not dcgm["gpus"]:
        print("No data returned from the hostengine.", file=sys.stderr)
        return -8
    for _ in range(int(options.get("count", 1))):  # at once: nothing is sampled
        # The first sample after the host engine's start is empty.
        value = "0.000" if status is None and simulated.read_state("profiling") else "N/A"
        simulated.write_state("profiling", "sampled")
        for gpu in dcgm["gpus"]:
            print(f"GPU {gpu['id']}".ljust(10) + value.ljust(13) * len(fields), flush=True)
    return 0


def diag(dcgm, options):
    """diag -r LEVEL or tests. Without a host engine an embedded one is started, silently."""
    if not dcgm["host_engine"]:
        if options.get("host"):
            connected(dcgm, options)
            return -21
        if not dcgm["embedded"]:
            print(f"Error: Unable to start an embedded host engine. {STRINGS[-56]}")
            return -56
    if not options.get("run"):
        raise Wrong("Required argument missing for arg run")
    rounds = int(options.get("iterations", 1))
    chosen = select(dcgm, options)
    error = dcgm["error"] or (None if chosen else {"status": -58, "text": None})
    if error:
        return could_not_run(dcgm, error, options)
    status = outcome(dcgm, chosen)
    if not options.get("json"):
        out(table(dcgm, chosen, options.get("verbose")))
    elif rounds > 1:
        done = [document(dcgm, chosen) for _ in range(rounds if status == 0 else 1)]
        result = {"iterations": done, "Overall Result": "Pass" if status == 0 else "Fail"}
        if status:
            result["warning"] = STRINGS[status]
        out(styled(result) + "\n")
    else:
        out(styled(document(dcgm, chosen)))
    return status


def select(dcgm, options):
    """The tests of the level or by name, and of them the GPUs of -i."""
    wanted = options["run"].split(",")
    level = LEVELS.get(options["run"])
    gpus = (
        [int(gpu) for gpu in options["gpus"].replace("gpu:", "").split(",")] if "gpus" in options else None
    )
    chosen = []
    for test in dcgm["tests"]:
        if test["level"] <= level if level else test["name"] in wanted and test["name"] != "software":
            results = [
                result for result in test["results"] if gpus is None or result["gpu"] in (*gpus, None)
            ]
            chosen.append({**test, "results": results})
    return chosen


def could_not_run(dcgm, error, options):
    """A failure of the diagnostic itself."""
    status, four = error["status"], int(dcgm["version"].split(".")[0]) >= 4
    said = STRINGS.get(status, "Generic unspecified error")
    text, more = error["text"], error.get("more", "")
    if text is None and four:
        text = (
            f"Error: Unable to complete diagnostic for group {ALL_GPUS}. Return: ({status}) : {said}\n{more}"
        )
    elif text is None and more:
        text = more
    elif text is None:
        text = f"Error: Unable to complete diagnostic for group {ALL_GPUS}. Return: ({status}) {said}."
    if options.get("json"):
        name = "DCGM Diagnostic" if four else "DCGM GPU Diagnostic"
        text = styled({name: {"version": dcgm["version"], "runtime_error": text}})
    out(text + "\n")
    return status


def out(text):
    """Prints as it is."""
    sys.stdout.write(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
