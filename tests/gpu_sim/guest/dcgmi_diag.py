"""Results of a diagnostic in the simulated dcgmi: status, JSON, table (NVIDIA/DCGM dcgmi/Diag.cpp)."""

from __future__ import annotations

WIDTH = 45  # of one line of the table's right column
ISOLATE = 2  # severity


def outcome(dcgm, chosen):
    """The status: 4.x looks at error objects, whatever the status word; 3.x only at those of a Fail."""
    four = int(dcgm["version"].split(".")[0]) >= 4
    found = [
        warning["error_severity"]
        for test in chosen
        for result in test["results"]
        if four or result["status"] == "Fail"
        for warning in result["warnings"]
    ]
    return 0 if not found else -51 if ISOLATE in found else -30


def document(dcgm, chosen):
    """The JSON document of one run."""
    four = int(dcgm["version"].split(".")[0]) >= 4
    categories = {}
    for test in chosen:
        entry = test_4(dcgm, test) if four else test_3(test)
        if entry:
            categories.setdefault(test["category"], []).append(entry)
    listed = [{"category": name, "tests": tests} for name, tests in categories.items()]
    if not four:
        return {
            "DCGM GPU Diagnostic": {"test_categories": listed},
            "Driver Version Detected": dcgm["driver"],
            "GPU Device IDs": [gpu["device_id"] for gpu in dcgm["gpus"]],
            "GPU Device Serials": {str(gpu["id"]): gpu["serial"] for gpu in dcgm["gpus"]},
            "version": dcgm["version"],
        }
    entities = [
        {"device_id": gpu["device_id"], "entity_id": gpu["id"], "serial_num": gpu["serial"]}
        for gpu in dcgm["gpus"]
    ]
    return {
        "DCGM Diagnostic": {"test_categories": listed},
        "entity_groups": [{"entities": entities, "entity_group": "GPU", "entity_group_id": 1}],
        "metadata": {"Driver Version Detected": dcgm["driver"], "version": dcgm["version"]},
    }


def test_4(dcgm, test):
    """One test in 4.x. A result that was not run is left out, and then the summary too."""
    entry = {"name": test["name"]}
    ran = [result for result in test["results"] if result["status"] != "Not Run"]
    for result in ran:
        one = {
            "entity_group": "GPU",
            "entity_group_id": 1,
            "entity_id": result["gpu"],
            "status": result["status"],
        }
        if result["warnings"]:
            one["warnings"] = result["warnings"]
        if result["info"]:
            one["info"] = result["info"]
        entry.setdefault("results", []).append(one)
    if ran:
        summary = {"status": overall(ran)}
        warnings = [warning for result in ran for warning in result["warnings"]]
        if warnings and tuple(int(part) for part in dcgm["version"].split(".")[:2]) >= (4, 6):
            summary["warnings"] = warnings  # older ones keep those of no entity only
        entry["test_summary"] = summary
    return entry


def overall(results):
    """The status of a test: failed anywhere, else passed anywhere, else skipped."""
    words = {result["status"] for result in results}
    return next(word for word in ("Fail", "Pass", "Skip") if word in words)


def test_3(test):
    """One test in 3.x: the GPU is a text here, and a number in a deployment test's error."""
    entry = {"name": test["name"], "results": []}
    for result in test["results"]:
        if result["status"] == "Not Run":
            continue
        one = {"status": result["status"]}
        if test["category"] == "Deployment":
            if result["warnings"]:
                one["gpu_id"] = result["gpu"]
                one["warnings"] = [
                    {("warnings" if key == "warning" else key): value for key, value in warning.items()}
                    for warning in result["warnings"]
                ]
        else:
            one["gpu_id"] = str(result["gpu"])
            if result["warnings"]:
                one["warnings"] = result["warnings"]
            if result["info"]:
                one["info"] = ", ".join(f"GPU {result['gpu']} {info}" for info in result["info"])
        entry["results"].append(one)
    return entry if entry["results"] else None


def table(dcgm, chosen, verbose):
    """The table for people."""
    four = int(dcgm["version"].split(".")[0]) >= 4
    rule = "+---------------------------+------------------------------------------------+"
    lines = [
        "Successfully ran diagnostic for group.",
        rule,
        row("Diagnostic", "Result"),
        rule.replace("-", "="),
    ]
    lines.append("|-----  Metadata  ----------+------------------------------------------------|")
    lines += [row("DCGM Version", dcgm["version"]), row("Driver Version Detected", dcgm["driver"])]
    ids = (", " if four else ",").join(gpu["device_id"] for gpu in dcgm["gpus"])
    lines.append(row("GPU Device IDs Detected", ids))
    order = (
        ("Deployment", "Hardware", "Integration", "Stress")
        if four
        else ("Deployment", "Integration", "Hardware", "Stress")
    )
    for category in order:
        tests = [test for test in chosen if test["category"] == category]
        if tests:
            edge = "|" if category == "Deployment" else "+"
            head = f"-----  {category}  ".ljust(27, "-")
            lines.append(f"{edge}{head}+{'-' * 48}{edge}")
        for test in tests:
            lines += rows_4(test, verbose) if four else rows_3(test, verbose)
    return "\n".join([*lines, rule]) + "\n"


def row(name, text):
    """One line of the table."""
    return f"| {name:<25} | {text:<46} |"


def wrapped(name, text):
    """A long text, cut every 45 characters wherever that is."""
    text = text.strip().replace("\t", " ")
    return [
        row(name if place == 0 else "", text[place : place + WIDTH]) for place in range(0, len(text), WIDTH)
    ]


def rows_4(test, verbose):
    """A test in 4.x: one line for it, one for each GPU."""
    ran = [result for result in test["results"] if result["status"] != "Not Run"]
    lines = [row(test["name"], overall(ran) if ran else "Not Run")]
    for result in ran:
        lines.append(row("", f"GPU{result['gpu']}: {result['status']}"))
        for warning in result["warnings"]:
            lines += wrapped(f"Warning: GPU{result['gpu']}", warning["warning"])
        for info in result["info"] if verbose else ():
            lines += wrapped(f"Info: GPU{result['gpu']}", info)
    return lines


def rows_3(test, verbose):
    """A test in 3.x: the GPUs of each status together."""
    if test["category"] == "Deployment":
        result = test["results"][0]
        lines = [row(test["name"], result["status"])]
        return lines + [
            line for warning in result["warnings"] for line in wrapped("Error", warning["warning"])
        ]
    lines = []
    ran = [result for result in test["results"] if result["status"] != "Not Run"]
    for word in ("Pass", "Fail", "Skip"):
        gpus = [result["gpu"] for result in ran if result["status"] == word]
        if gpus and len(gpus) == len(ran):
            lines.append(row(test["name"], f"{word} - All"))
        elif gpus:
            numbers = ", ".join(map(str, gpus))
            lines.append(
                row("" if lines else test["name"], f"{word} - GPU{'s' if len(gpus) > 1 else ''}: {numbers}")
            )
    for result in ran:
        for warning in result["warnings"]:
            lines += wrapped("Warning", warning["warning"])
    return lines
