#!/usr/bin/python3 -IBS
"""The simulated nvidia-smi: prints what the scenario's driver and GPUs would have it print.

Texts, streams and exit codes are those of the real one: the captures named in models.json, public logs for
the error messages, and its manual page, RETURN VALUE, for the codes.
"""

from __future__ import annotations

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../share/gpu-sim"))
import simulated

ARGUMENT, NOT_FOUND = 2, 6
HELP = "Please run 'nvidia-smi -h' for help."
REMAPPED = (
    "gpu_name",
    "gpu_bus_id",
    "gpu_serial",
    "gpu_uuid",
    "remapped_rows.correctable",
    "remapped_rows.uncorrectable",
    "remapped_rows.pending",
    "remapped_rows.failure",
)
TABLE_HEAD = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {cuda:<9}|
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
"""
TABLE_ROW = """\
| {index:>3}  {name:<31}{persistence:<3} | {bus:>18} {display:<3} | {ecc:>20} |
|{fan:>4}{temp:>6}{perf:>6}{power:>24} | {memory:>22} | {util:>7} {compute:>12} |
|                                         |                        | {mig:>20} |
+-----------------------------------------+------------------------+----------------------+
"""
TABLE_TAIL = """
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|  No running processes found                                                             |
+-----------------------------------------------------------------------------------------+
"""
QUERY = (
    ("Product Name", "name"),
    ("Persistence Mode", "persistence_mode"),
    ("Serial Number", "serial"),
    ("GPU UUID", "uuid"),
    ("VBIOS Version", "vbios_version"),
    ("GPU Recovery Action", "gpu_recovery_action"),
    ("Bus Id", "pci.bus_id"),
    ("Performance State", "pstate"),
    ("FB Memory Total", "memory.total"),
    ("GPU Current Temp", "temperature.gpu"),
    ("Pending", "remapped_rows.pending"),
    ("Remapping Failure Occurred", "remapped_rows.failure"),
)


class Wrong(Exception):
    """The command line is refused; the message is printed as it is."""


def main(arguments):
    """Returns the exit code."""
    try:
        options = parse(arguments)
    except Wrong as wrong:
        print(wrong)
        print()
        return ARGUMENT
    machine = simulated.machine()
    smi = machine["smi"]
    if options["help"] == "query":
        print_fields(smi)
        return 0
    if options["help"]:
        print(
            f"NVIDIA System Management Interface -- v{smi['driver']}\n\n"
            f"simulated: see {simulated.SHARE}/scenario.json"
        )
        return 0
    simulated.begin("nvidia-smi", machine)
    if machine["no_nvml"]:
        sys.stdout.write(machine["no_nvml"])
        return 12
    if smi["fails"]:
        sys.stdout.write(smi["fails"]["text"])
        return smi["fails"]["code"]
    chosen = choose(smi, options["id"])
    if not chosen:
        print("No devices were found")
        return NOT_FOUND
    for gpu in chosen:
        refresh(gpu)
    code = run(smi, chosen, options)
    for warning in smi["warnings"]:
        print(warning)
    if smi["warnings"] and options["eow"]:
        return 14
    return code


def parse(arguments):
    """The command line as options."""
    options = {
        "do": "table",
        "fields": None,
        "format": None,
        "id": None,
        "help": None,
        "mode": None,
        "eow": False,
    }
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, glued, value = word.partition("=")
        if name in ("-i", "--id", "-pm", "--persistence-mode", "--format", "-f", "--filename") and not glued:
            value = rest.pop(0) if rest else ""
        if name in ("-h", "--help"):
            options["help"] = "short"
        elif name == "--help-query-gpu":
            options["help"] = "query"
        elif name == "--version":
            options["do"] = "version"
        elif name in ("-L", "--list-gpus"):
            options["do"] = "list"
        elif name in ("-q", "--query"):
            options["do"] = "query"
        elif name in ("--query-gpu", "--query-remapped-rows"):
            options["do"] = name[2:]
            options["fields"] = [field.strip() for field in value.split(",") if field.strip()]
        elif name == "--format":
            options["format"] = [part.strip() for part in value.split(",")]
        elif name in ("-i", "--id"):
            options["id"] = [part.strip() for part in value.split(",")]
        elif name in ("-pm", "--persistence-mode"):
            options["do"] = "persistence"
            options["mode"] = {
                "0": "Disabled",
                "1": "Enabled",
                "DISABLED": "Disabled",
                "ENABLED": "Enabled",
            }.get(value.upper())
            if options["mode"] is None:
                raise Wrong(f'Invalid argument to option "{name}". {HELP}')
        elif name in ("-eow", "--error-on-warning"):
            options["eow"] = True
        else:
            raise Wrong(f"ERROR: Option {word} is not recognized. {HELP}")
    if options["do"].startswith("query-"):
        if options["format"] is None:
            raise Wrong(f'"--format=" switch is missing. {HELP}')
        if "csv" not in options["format"]:
            raise Wrong(f'"csv" is missing from "--format=" switch. {HELP}')
    return options


def choose(smi, wanted):
    """The GPUs that -i names by index, bus id, UUID or serial; all of them without it."""
    if wanted is None:
        return smi["gpus"]
    names = ("index", "pci.bus_id", "uuid", "serial")
    return [gpu for gpu in smi["gpus"] if any(gpu["row"].get(name) in wanted for name in names)]


def refresh(gpu):
    """What may have changed since the scenario was written: persistence mode, and a fabric that settles."""
    mode = simulated.read_state("persistence-" + gpu["place"])
    if mode and not gpu["error"]:
        gpu["row"]["persistence_mode"] = mode
    settling = gpu["settling"]
    if settling and simulated.seconds_since_first_look("fabric") < settling["seconds"]:
        gpu["row"].update(settling["row"])


def run(smi, chosen, options):
    """Prints what was asked for; the code is that of the last GPU whose handle could not be had."""
    do = options["do"]
    if do == "version":
        print(f"NVIDIA-SMI version  : {smi['driver']}\nNVML version        : {smi['nvml']}")
        print(f"DRIVER version      : {smi['driver']}\nCUDA Version        : {smi['cuda']}")
        return 0
    if do == "query-gpu":
        return query(smi, chosen, options, {name: (name, unit) for name, unit in known(smi)})
    if do == "query-remapped-rows":
        return query(smi, chosen, options, {name: (name, "") for name in ("timestamp", *REMAPPED)})
    if do == "table":
        print(time.strftime("%a %b %e %H:%M:%S %Y").ljust(31))
        print(TABLE_HEAD.format(driver=smi["driver"], cuda=smi["cuda"]), end="")
    elif do == "query":
        print("\n==============NVSMI LOG==============\n")
        print(line("Timestamp", time.strftime("%a %b %e %H:%M:%S %Y")))
        print(line("Driver Version", smi["driver"]), line("CUDA Version", smi["cuda"]), "", sep="\n")
        print(line("Attached GPUs", str(len(smi["gpus"]))))
    code, shown = 0, 0
    for gpu in chosen:
        if gpu["error"] and gpu["error"]["rows"] != "fields":
            print(gpu["error"]["text"])
            code = gpu["error"]["code"]
            continue
        shown += 1
        {"list": show_name, "table": show_row, "query": show_all, "persistence": set_mode}[do](
            gpu["row"], gpu, options
        )
    if not shown:
        print("No devices were found")
        return code or NOT_FOUND
    if do == "table":
        print(TABLE_TAIL, end="")
    if do == "persistence":
        print("All done.")
    return code


def known(smi):
    """Every name that can be asked for: its name in the header, and its unit."""
    for name, alias, unit in smi["fields"]:
        yield name, unit
        if alias:
            yield alias, unit


def query(smi, chosen, options, offered):
    """The csv of --query-gpu. One field that this version does not know and there is no answer at all."""
    for field in options["fields"]:
        if field not in offered:
            print(f'Field "{field}" is not a valid field to query.\n')
            return ARGUMENT
    canonical = {alias: name for name, alias, _ in smi["fields"] if alias}
    names = [
        field if options["do"] == "query-remapped-rows" else canonical.get(field, field)
        for field in options["fields"]
    ]
    units = [offered[field][1] for field in options["fields"]]
    code = 0
    if (
        not any(gpu["error"] and gpu["error"]["rows"] == "only" for gpu in chosen)
        and "noheader" not in options["format"]
    ):
        # The header keeps its units with nounits.
        print(
            ", ".join(f"{name} [{unit}]" if unit else name for name, unit in zip(names, units, strict=True))
        )
    now = time.time()
    stamp = time.strftime("%Y/%m/%d %H:%M:%S.", time.localtime(now)) + f"{int(now % 1 * 1000):03d}"
    for gpu in chosen:
        error = gpu["error"]
        if error and error["rows"] != "fields":
            print(error["text"])
            code = error["code"]
            if error["rows"] == "only":
                return code
            if error["rows"] == "message":
                continue
        cells = []
        for name, unit in zip(names, units, strict=True):
            value = stamp if name == "timestamp" else gpu["row"].get(canonical.get(name, name), "[N/A]")
            if options["do"] == "query-remapped-rows" and value in ("Yes", "No"):
                value = "1" if value == "Yes" else "0"
            if unit and "nounits" in options["format"] and value.endswith(f" {unit}"):
                value = value[: -len(unit) - 1]
            cells.append(value)
        print(", ".join(cells))
    return code


def print_fields(smi):
    """The help of --query-gpu: names in quotes, then a text; as in the real one it can have quotes too."""
    print('List of valid properties to query for the switch "--query-gpu":\n')
    section = ""
    for name, alias, unit in smi["fields"]:
        head = name.rsplit(".", 1)[0] if "." in name else ""
        if head != section and head:
            print(f"Section about {head} properties\nWhat the driver reports about {head}.\n")
        section = head
        print(f'"{name}" or "{alias}"' if alias else f'"{name}"')
        print(f"What the driver reports as {name}" + (f", in {unit}." if unit else "."))
        if name == "compute_mode":
            print('"0: Default" means multiple contexts are allowed per device.')
        print()


def line(label, value, indent=0):
    """One line of -q."""
    return f"{' ' * indent + label:<55}: {value}"


def show_name(row, gpu, options):
    """One line of -L."""
    print(f"GPU {row['index']}: {row['name']} (UUID: {row['uuid']})")
    if gpu["mig"]:
        print(f"  MIG 1g.10gb     Device  0: (UUID: {gpu['mig']})")


def show_all(row, gpu, options):
    """A short -q of one GPU."""
    print(f"GPU {row['pci.bus_id']}")
    for label, name in QUERY:
        if name in row:
            print(line(label, row[name].strip("[]"), 4))
    print()


def show_row(row, gpu, options):
    """One GPU of the table."""

    def bare(name):
        return row[name].replace(" ", "").strip("[]")

    power = f"{float(row['power.draw'].split()[0]):.0f}W" if row["power.draw"][0].isdigit() else "N/A"
    limit = f"{float(row['power.limit'].split()[0]):.0f}W" if row["power.limit"][0].isdigit() else "N/A"
    error = row["name"].startswith("[") or row["temperature.gpu"].startswith("[")
    print(
        TABLE_ROW.format(
            index=row["index"],
            name=row["name"][:30],
            persistence="On" if row["persistence_mode"] == "Enabled" else "Off",
            bus=row["pci.bus_id"],
            display="Off",
            ecc=bare("ecc.errors.uncorrected.volatile.total"),
            fan="ERR!" if error else bare("fan.speed"),
            temp="ERR!" if error else row["temperature.gpu"] + "C",
            perf="ERR!" if error else row["pstate"],
            power=f"{power} / {limit:>5}",
            memory=f"{bare('memory.used')} / {bare('memory.total')}",
            util="ERR!" if error else bare("utilization.gpu"),
            compute=row["compute_mode"].strip("[]"),
            mig=bare("mig.mode.current"),
        ),
        end="",
    )


def set_mode(row, gpu, options):
    """Sets the persistence mode of one GPU, until the next boot."""
    mode = options["mode"]
    if row["persistence_mode"] == mode:
        print(f"Persistence mode is already {mode} for GPU {row['pci.bus_id']}.")
        return
    simulated.write_state("persistence-" + gpu["place"], mode)
    print(f"{mode} persistence mode for GPU {row['pci.bus_id']}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
