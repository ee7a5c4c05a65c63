from __future__ import annotations

import json
from pathlib import Path

import pytest

from images.clouds.local import accel
from images.errors import UserError


def test_the_guest_really_ends_qemu() -> None:
    seconds = accel.run_guest("tcg", 30)
    assert seconds is not None and seconds > 0


def test_a_guest_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accel, "GUEST", b"\xf4\xeb\xfd")  # hlt for ever
    assert accel.run_guest("tcg", 0.7) is None


def test_a_guest_that_crashes_did_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # A triple fault: -no-reboot makes QEMU end with 0. lidt of an empty table, then int3.
    monkeypatch.setattr(accel, "GUEST", bytes.fromhex("0f011e107ccc") + bytes(16))
    monkeypatch.setattr(accel, "GUEST_DONE", 85)
    assert accel.run_guest("tcg", 2) is None


def test_no_device_means_emulation(tmp_path: Path) -> None:
    verdict = accel.probe(device=tmp_path / "kvm")
    assert verdict.accelerator == "tcg"
    assert "does not exist" in verdict.reason


@pytest.mark.parametrize(
    ("kvm", "tcg", "expected", "words"),
    [
        (0.3, 0.4, "kvm", "kvm: a test guest ran in 0.3 s"),
        (None, 0.4, "tcg", "exists but a test guest did not end in 4 s, emulated in 0.4 s"),
    ],
)
def test_the_guest_decides(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kvm: float | None,
    tcg: float,
    expected: str,
    words: str,
) -> None:
    device = tmp_path / "kvm"
    device.touch()
    monkeypatch.setattr(accel, "run_guest", lambda name, timeout: {"kvm": kvm, "tcg": tcg}[name])
    verdict = accel.probe(device=device)
    assert verdict.accelerator == expected
    assert words in verdict.reason
    assert "\n" not in verdict.reason


def test_qemu_that_runs_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "kvm"
    device.touch()
    monkeypatch.setattr(accel, "run_guest", lambda name, timeout: None)
    with pytest.raises(UserError, match="runs no guest"):
        accel.probe(device=device)


def test_an_override_needs_no_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accel, "probe", lambda: pytest.fail("probed"))
    assert accel.choose("kvm", cache=tmp_path)[0] == "kvm"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="no accelerator 'xen'"):
        accel.choose("xen", cache=tmp_path)


def test_a_verdict_holds_until_the_next_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = []

    def probe() -> accel.Verdict:
        probes.append(1)
        return accel.Verdict("tcg", f"tcg: probe {len(probes)}")

    boot = tmp_path / "boot_id"
    boot.write_text("one\n")
    monkeypatch.setattr(accel, "BOOT_ID", boot)
    monkeypatch.setattr(accel, "probe", probe)
    cache = tmp_path / "cache"
    assert accel.choose(cache=cache) == accel.choose(cache=cache) == ("tcg", "tcg: probe 1")
    boot.write_text("two\n")
    assert accel.choose(cache=cache) == ("tcg", "tcg: probe 2")
    (only,) = cache.iterdir()
    assert json.loads(only.read_text())["reason"] == "tcg: probe 2"
    only.write_text("{")
    assert accel.choose(cache=cache) == ("tcg", "tcg: probe 3")
