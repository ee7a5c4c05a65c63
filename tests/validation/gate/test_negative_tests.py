"""Checks that cannot fail are worse than none: every check of the suite has been seen to fail."""

from __future__ import annotations

from tests.validation.gate import gate, test_capture, test_gpu_checks, test_hygiene, test_machine_checks
from validation.gate.checks import Level
from validation.gate.probes import PROBES

SEEN_TO_FAIL = {
    **test_capture.NEGATIVE,
    **test_hygiene.DIRT,
    **test_machine_checks.NEGATIVE,
    **test_gpu_checks.NEGATIVE,
}


def test_every_check_has_a_negative_test() -> None:
    assert gate.checks().keys() == SEEN_TO_FAIL.keys()
    assert all(SEEN_TO_FAIL.values())


def test_static_checks_ask_no_machine_and_the_others_do() -> None:
    for check, _ in gate.checks().values():
        assert bool(check.probes) != (check.level is Level.STATIC), check.id


def test_every_probe_exists_and_is_read() -> None:
    read = {probe for check, _ in gate.checks().values() for probe in check.probes}
    assert read == PROBES.keys()
