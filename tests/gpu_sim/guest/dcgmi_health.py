"""The health report of the simulated dcgmi (NVIDIA/DCGM dcgmi/Health.cpp, DcgmiOutput.cpp)."""

from __future__ import annotations


def report(incidents):
    """The health report by GPU and system; incidents of one system in a row share an entry."""
    worse = ("Healthy", "Warning", "Failure")
    overall = max((incident["result"] for incident in incidents), key=worse.index, default="Healthy")
    body = {"Overall Health": {"value": overall}}
    merged = []
    for incident in incidents:
        last = merged[-1] if merged else None
        if last and (last["gpu"], last["system"]) == (incident["gpu"], incident["system"]):
            last["text"] += ", " + incident["text"]
            last["result"] = max(last["result"], incident["result"], key=worse.index)
        else:
            merged.append(dict(incident))
    for incident in merged:
        gpu = body.setdefault("GPU", {"children": {}})["children"].setdefault(
            str(incident["gpu"]), {"children": {"Errors": {"children": {}}}, "value": "Healthy"}
        )
        gpu["value"] = max(gpu["value"], incident["result"], key=worse.index)
        errors = gpu["children"]["Errors"]["children"]
        entry = errors.setdefault(incident["system"], {"overflow": []})
        entry["value"] = incident["result"]
        entry["overflow"] += pieces(incident["text"].replace("\n", " "))
    return body


def pieces(text, width=54):
    """A long message in lines, broken as Health.cpp does it: it can lose a comma or full stop at a break."""
    if len(text) <= width:
        return [text]
    found, end, start = [], 0, 0
    while start < len(text):
        end += width
        if end >= len(text):
            end = len(text) - 1
        elif end != len(text) - 1:
            while end > start and text[end] != " " and text[end + 1] not in " .,/":
                end -= 1
            while end > start and text[end] == " ":
                end -= 1
        while start < len(text) and text[start] == " ":
            start += 1
        if start >= len(text):
            break
        found.append(text[start : end + 1])
        start = end + 2
    return found


def tree(body, header, left, right):
    """The same report for people."""
    rule = f"+{'-' * (left - 1)}+{'-' * (right - 2)}+"
    lines = [rule]
    if header:
        lines += [f"| {text}".ljust(left + right - 1) + "|" for text in header] + [rule.replace("-", "=")]

    def show(level, label, node):
        prefix = "-> ".rjust(level * 3) if level else ""
        lines.append(row(prefix + label, node.get("value", "")))
        lines.extend(row("", text) for text in node.get("overflow", ()))
        for name, child in node.get("children", {}).items():
            show(level + 1, name, child)

    def row(label, value):
        return f"| {label:<{left - 3}} | {value:<{right - 4}} |"

    for name, node in body.items():
        show(0, name, node)
    return "\n".join([*lines, rule]) + "\n"
