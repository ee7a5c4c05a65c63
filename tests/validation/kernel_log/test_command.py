"""The command as a person types it."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from images.settings import CHECKOUT
from validation.kernel_log import events_of_stream, source

COMMAND = [sys.executable, "-m", "validation.kernel_log"]
XID = "[ 1.5] NVRM: Xid (PCI:0000:3B:00): 79, GPU has fallen off the bus.\n"


def run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=CHECKOUT, input=text, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("how", ["file", "-", "nothing"])
def test_one_object_an_event(how: str, tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text(XID + XID.replace("3B", "3C"))
    done = run(str(path)) if how == "file" else run(*(["-"] if how == "-" else []), text=path.read_text())
    assert (done.returncode, done.stderr) == (0, "")
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert {
        key: first[key] for key in ("kind", "code", "pci", "severity", "count", "first", "last", "injected")
    } == {
        "kind": "xid",
        "code": 79,
        "pci": "0000:3b:00",
        "severity": "fatal",
        "count": 1,
        "first": 1.5,
        "last": 1.5,
        "injected": False,
    }
    assert first["line"] == XID.strip().removeprefix("[ 1.5] ")
    assert first["action"]
    assert second["pci"] == "0000:3c:00"


def test_nothing_found_is_no_error() -> None:
    done = run(text="[ 1.5] usb 1-1: new device\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_help_is_the_manual() -> None:
    done = run("--help")
    assert done.returncode == 0
    for word in ("dmesg", "journalctl", "severity", "injected", "Exit codes", "related"):
        assert word in done.stdout


@pytest.mark.parametrize("arguments", [["--frobnicate"], ["-x"], ["a.log", "b.log"]])
def test_wrong_arguments(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage:" in done.stderr
    assert "Traceback" not in done.stderr


def test_unreadable(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"LPKSHHRH" + bytes(100))
    (tmp_path / "kern.log.2.gz").write_bytes(gzip.compress(XID.encode()))
    for name, why in {
        "missing.log": "No such file",
        ".": "folder",
        "journal": "journalctl --file",
        "kern.log.2.gz": "zcat",
        "nul\0": "",
    }.items():
        if "\0" in name:
            with pytest.raises(source.Unreadable):
                source.reader(name)
            continue
        done = run(str(tmp_path / name))
        assert (done.returncode, done.stdout) == (2, "")
        assert str(tmp_path) in done.stderr and why in done.stderr
        assert "Traceback" not in done.stderr


def test_standard_input_that_is_closed() -> None:
    words = " ".join(COMMAND)
    done = subprocess.run(
        ["sh", "-c", f"{words} <&-"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "standard input" in done.stderr


def test_reader_that_has_enough() -> None:
    """``| head -1`` ends it at once and without a word, though its input never ends."""
    words = " ".join(COMMAND)
    endless = 'i=0; while :; do i=$((i + 100)); echo "[$i.5] NVRM: Xid (PCI:0000:01:00): 79"; done'
    script = f"({endless}) 2>/dev/null | {words} | head -n 1"
    done = subprocess.run(["sh", "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["code"] == 79
    assert done.stderr == ""


def test_fifo(tmp_path: Path) -> None:
    """A pipe whose writer has not opened it yet is waited for."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with subprocess.Popen([*COMMAND, str(path)], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        path.write_text(XID)
        out, _ = process.communicate()
    assert json.loads(out)["code"] == 79


class Kmsg:
    """Reads of /dev/kmsg: a record each, EPIPE where records were overwritten, EAGAIN at the end."""

    def __init__(self, *reads: bytes | Exception) -> None:
        self.reads = list(reads)

    def __call__(self, file: int, buffers: list[memoryview]) -> int:
        read = self.reads.pop(0)
        if isinstance(read, Exception):
            raise read
        return io.BytesIO(read).readinto(buffers[0])


@pytest.fixture
def kmsg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "kmsg"
    path.touch()
    monkeypatch.setattr(source, "_is_kmsg", lambda status: True)
    return str(path)


def test_kernel_buffer(kmsg: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Kmsg(
        b"6,1,1000000,-;usb 1-1: new device\n SUBSYSTEM=usb\n",
        BrokenPipeError(32, "Broken pipe"),
        b"4,900,1843308145,-;NVRM: Xid (PCI:0000:3b:00): 79, off\n",
        b"12,901,1843308999,-;NVRM: Xid (PCI:0000:3c:00): 79, off\n",
        BlockingIOError(11, "Resource temporarily unavailable"),
    )
    monkeypatch.setattr(os, "readv", reads)
    found = list(events_of_stream(source.reader(kmsg)))
    assert [(event.pci, event.injected) for event in found] == [("0000:3b:00", False), ("0000:3c:00", True)]
    assert not reads.reads


def test_log_that_fails_midway(kmsg: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "readv", Kmsg(b"x\n", OSError(5, "Input/output error")))
    with pytest.raises(source.Unreadable, match="Input/output error"):
        list(events_of_stream(source.reader(kmsg)))
