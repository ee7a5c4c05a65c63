"""What must hold for any input."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.validation.kernel_log import mutations
from tests.validation.kernel_log.transports import ONE_LINE, TRANSPORTS
from validation import faults
from validation.kernel_log import events

names = st.text(string.ascii_letters + string.digits + "_-.:[]()/+ ", min_size=1, max_size=15).map(str.strip)
hexadecimal = st.integers(0, 255).map("{:02x}".format)


@st.composite
def xids(draw: st.DrawFn) -> tuple[str, int, str]:
    """A line as the driver prints it (kernel_rc.c), its code and address."""
    code = draw(st.integers(1, 999).filter(lambda code: code != 154))
    bus, device = draw(hexadecimal), draw(hexadecimal)
    mig = draw(st.sampled_from(["", " GPU-I:05", " GPU-I:01 GPU-CI:02"]))
    function = draw(st.sampled_from(["", ".0"]))
    process = draw(st.sampled_from(["", "pid='<unknown>', name=<unknown>, ", "pid=7, ", "named"]))
    if process == "named":
        process = f"pid={draw(st.integers(1, 4194304))}, name={draw(names)}, "
    text = draw(
        st.sampled_from(["Ch 00000008", "x", "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082 0x00000040)"])
    )
    case = draw(st.sampled_from([str.upper, str.lower]))
    address = f"PCI:{case(f'0000:{bus}:{device}')}{function}{mig}"
    return f"NVRM: Xid ({address}): {code}, {process}{text}", code, f"0000:{bus}:{device}"


@settings(deadline=None, max_examples=150)
@given(xids(), st.sampled_from(sorted(ONE_LINE)))
def test_any_xid_in_any_transport(line: tuple[str, int, str], transport: str) -> None:
    text, code, address = line
    (event,) = events([ONE_LINE[transport](text)])
    assert (event.kind, event.code, event.pci, event.line) == ("xid", code, address, text)
    if event.code not in range(144, 151):
        assert event.severity == faults.xid(code).severity.value


@settings(deadline=None, max_examples=150)
@given(st.lists(st.one_of(st.binary(max_size=200), st.sampled_from(mutations.PIECES)), max_size=8))
def test_anything(pieces: list[bytes]) -> None:
    mutations.read(b"".join(pieces))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(max_size=80), max_size=8))
def test_any_text(lines: list[str]) -> None:
    list(events(lines))


def test_mutated_logs() -> None:
    generator = random.Random(20_240_830)
    assert sum(mutations.read(mutations.mutated(generator)) for _ in range(600)) > 300


@pytest.mark.parametrize(
    "piece",
    ["a", ".", " ", "a.", "a:", "a ", ": ", "[", "]", "<", "0", "0x", "{", '"', "\\x0a", "#012", "\n", "\n ",
     "NVRM: ", "NVRM: Xid (", "NVRM: Xid (PCI:0000:01:00): 79, ", "SXid (PCI:", "AER: ",
     "a 0000:01:00.0: AER: ",
     "message repeated 9 times: [ ", "GPU 0000:01:00.0 ", "pid=7, name=", "RLW_A "],
)  # fmt: skip
@pytest.mark.parametrize(
    "head", ["", "[ 1.5] ", "Nov  7 18:17:15 host kernel: ", "<4>1 - ", "{", "4,1,1,-;"]
)
def test_long_lines(head: str, piece: str) -> None:
    """Lines that a pattern with two ways to match would take minutes for."""
    long = piece * (100_000 // len(piece))
    for text in (head + long + " NVRM: x AER: SXid", head + "NVRM: Xid AER: " + long, head + long + "NVRM"):
        list(events([text]))


def test_all_transports_are_tried() -> None:
    assert len(TRANSPORTS) > 40
