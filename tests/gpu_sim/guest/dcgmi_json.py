"""JSON as DCGM writes it."""

from __future__ import annotations

import json


def styled(value):
    """JSON as jsoncpp writes it: keys sorted, tabs, spaces around colons, brackets on lines of their own."""

    def write(item, indent):
        if isinstance(item, dict) and item:
            inner = indent + "\t"
            parts = [f"{inner}{json.dumps(name)} : {nested(item[name], inner)}" for name in sorted(item)]
            return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
        if isinstance(item, list) and item:
            inner = indent + "\t"
            return "[\n" + ",\n".join(inner + write(part, inner) for part in item) + f"\n{indent}]"
        return json.dumps(item, ensure_ascii=False)

    def nested(item, indent):
        text = write(item, indent)
        return f"\n{indent}{text}" if isinstance(item, (dict, list)) and item else text

    return write(value, "") + "\n"
