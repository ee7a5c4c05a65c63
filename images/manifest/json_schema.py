"""The JSON Schemas of the documents, for programs in other languages and for people.

They describe what a writer may write; a reader ignores fields it does not know.
``python -m images.manifest.json_schema`` writes them anew after a change of ``documents.py``; a test
notices when that was forgotten.
"""

from __future__ import annotations

import json
from pathlib import Path

from images.manifest import documents

FOLDER = Path(__file__).parent / "schemas"


def render() -> dict[str, str]:
    """File name -> content, a file for each kind of document."""
    files = {}
    for model in documents.ALL:
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"urn:gpu-image:{model.kind}:v1",
            **model.model_json_schema(),
        }
        files[f"{model.kind}.schema.json"] = json.dumps(schema, indent=2) + "\n"
    return files


def write(folder: Path = FOLDER) -> None:
    """Writes the schemas into ``folder``."""
    folder.mkdir(exist_ok=True)
    for name, text in render().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    write()
