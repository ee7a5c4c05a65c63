"""One data file a case: tests/fixtures/nvidia_smi/expected.tsv says what is to come out of each."""

from __future__ import annotations

import json

import pytest

from tests.validation.rows import FIXTURES, rows
from validation.nvidia_smi.__main__ import main
from validation.reader_command import EXIT_CODES

FOLDER = FIXTURES / "nvidia_smi"
CASES = [(*row, *[""] * (5 - len(row))) for row in rows("nvidia_smi/expected.tsv")]


@pytest.mark.parametrize(
    ("file", "arguments", "verdict", "says"),
    [pytest.param(*case[:4], id=" ".join(case[:2]).strip()) for case in CASES],
)
def test_case(
    file: str, arguments: str, verdict: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([str(FOLDER / file), *arguments.split()])
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["verdict"], code) == (verdict, EXIT_CODES[verdict]), document["reason"]
    assert says in printed.out
    assert printed.err == ""
    assert document["reason"]
    assert bool(document["failures"]) == (verdict == "fail")
    assert all(entry["message"] and entry["severity"] for entry in document["failures"])
    assert all(entry["reason"] for entry in document["not_run"])


def test_every_file_is_a_case() -> None:
    listed = {file for file, *_ in CASES} | {"expected.tsv", "README.md"}
    listed |= {path.name for path in FOLDER.glob("help_query_gpu_*")}  # test_fields
    assert {path.name for path in FOLDER.iterdir()} == listed
