"""One data file a case: expected.tsv in each reader's fixtures says what is to come out of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from tests.validation.rows import FIXTURES, rows
from validation.dcgm.__main__ import main as dcgm
from validation.nvidia_smi.__main__ import main as nvidia_smi
from validation.reader_command import EXIT_CODES

READERS: dict[str, Callable[[Sequence[str]], int]] = {"dcgm": dcgm, "nvidia_smi": nvidia_smi}
CASES = {
    reader: [(*row, *[""] * (5 - len(row))) for row in rows(f"{reader}/expected.tsv")] for reader in READERS
}


@pytest.mark.parametrize(
    ("reader", "file", "arguments", "verdict", "says"),
    [
        pytest.param(reader, *case[:4], id=" ".join([reader, *case[:2]]).strip())
        for reader, cases in CASES.items()
        for case in cases
    ],
)
def test_case(
    reader: str,
    file: str,
    arguments: str,
    verdict: str,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = READERS[reader]([str(FIXTURES / reader / file), *arguments.split()])
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["verdict"], code) == (verdict, EXIT_CODES[verdict]), document["reason"]
    assert says in printed.out
    assert printed.err == ""
    assert document["reason"]
    assert bool(document["failures"]) == (verdict == "fail")
    assert all(entry["message"] and entry["severity"] for entry in document["failures"])
    assert all(entry["reason"] for entry in document["not_run"])


@pytest.mark.parametrize("reader", READERS)
def test_every_file_is_a_case(reader: str) -> None:
    folder = FIXTURES / reader
    listed = {file for file, *_ in CASES[reader]} | {"expected.tsv", "README.md"}
    listed |= {path.name for path in folder.glob("help_query_gpu_*")}  # nvidia_smi/test_fields.py
    assert {path.name for path in folder.iterdir()} == listed
