"""The verdict over what nvidia-smi printed.

``fail`` is a broken GPU or driver; what is only about the tool (a field it does not know, no permission, a
container's cgroup) is ``unknown``. "No devices were found" is an answer: no GPU. It fails where GPUs are
expected, passes where none is, and is ``unknown`` where nobody says what to expect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from validation.judgement import INPUT_LIMIT, Judgement, counted, decide, quote, unknown
from validation.nvidia_smi import messages, rules, words
from validation.nvidia_smi.exit_status import ExitStatus, exit_status
from validation.nvidia_smi.reader import Gpu, Query, parse

# Asked and N/A, these are not verified; a model that lacks another field lacks nothing.
REQUIRED = ("driver_version", "count", "uuid", "pci.bus_id")
_KINDS = (  # what else nvidia-smi prints
    ("| NVIDIA-SMI", "a table for people: ask --query-gpu=... --format=csv"),
    ("NVSMI LOG", "the log of nvidia-smi -q: ask --query-gpu=... --format=csv"),
    ("<nvidia_smi_log>", "XML: ask --query-gpu=... --format=csv"),
    ("(UUID: GPU-", "the list of nvidia-smi -L: ask --query-gpu=... --format=csv"),
    ("List of valid properties to query", "the help of --query-gpu: ask --query-gpu=... --format=csv"),
)


def judge(text: str, *, expect_gpus: int | None = None, exit_code: int | None = None) -> Judgement:
    """Judges the csv of ``nvidia-smi --query-gpu`` with its header, or what was printed instead.

    ``expect_gpus`` is how many GPUs the machine should have. ``exit_code`` is nvidia-smi's, if it is known:
    it never makes a pass. Never raises for a text.
    """
    if len(text) > INPUT_LIMIT:
        return unknown(f"more than {INPUT_LIMIT // 2**20} MiB: nothing that nvidia-smi prints is as long")
    status = exit_status(exit_code) if exit_code else None
    query = parse(text)
    verdict = _Verdict(query)
    if query.gpus:
        verdict.judge_rows()
        verdict.judge_count(expect_gpus)
    else:
        verdict.judge_nothing(text, expect_gpus, status)
    verdict.judge_messages(expect_gpus)
    if query.gpus or not query.messages:
        verdict.not_run += [{"reason": problem} for problem in query.problems]
    if status:
        verdict.judge_exit_code(status)
    return verdict.decided()


class _Verdict:
    """Collects what follows from a query."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.failures: list[dict[str, Any]] = []
        self.not_run: list[dict[str, Any]] = []
        self.degraded: list[str] = []
        self.notes: list[str] = []
        self.no_gpu_is_right = False
        self.not_available: set[str] = set()
        # A loop (nvidia-smi -l) prints every GPU again; each row is judged, each GPU is counted once.
        self.gpus = list({gpu.identity or row: gpu for row, gpu in enumerate(query.gpus)}.values())

    def decided(self) -> Judgement:
        gpus = [
            {"index": gpu.index, "name": gpu.name, "uuid": gpu.uuid, "pci": gpu.pci}
            for gpu in self.gpus[:256]
        ]
        first = self.gpus[0].fields if self.gpus else {}
        data = {
            "driver_version": rules.value(first, "driver_version"),
            "gpus": gpus,
            "notes": list(dict.fromkeys(self.notes))[:256],
            "not_asked": sorted(rules.HEALTH - set(self.query.header)) if self.gpus else [],
            "not_available": sorted(self.not_available),
        }
        passed = f"{counted(len(self.gpus), 'GPU')}, {self._model()}no fault"
        if self.no_gpu_is_right:
            passed = "no GPU, and none is expected"
        return decide(
            passed=passed, failures=self.failures, not_run=self.not_run, degraded=self.degraded, data=data
        )

    def _model(self) -> str:
        names = sorted({gpu.name for gpu in self.gpus if gpu.name})
        return f"{', '.join(names[:3])}: " if names else ""

    def judge_rows(self) -> None:
        """Every cell of every row, and that the rows are of different GPUs of one machine."""
        for gpu in self.query.gpus:
            self._judge_statuses(gpu)
            for finding in rules.judge_fields(gpu.fields):
                self._add(gpu, finding)
            self._judge_evidence(gpu)
        self._judge_repetition()
        versions = _values(self.query.gpus, "driver_version")
        if len(versions) > 1:
            message = f"drivers of different versions on one machine: {', '.join(versions[:5])}"
            self.failures.append({"field": "driver_version", "message": message, "severity": rules.FATAL})

    def _judge_statuses(self, gpu: Gpu) -> None:
        """Statuses in the place of values: [GPU is lost] and the like, once for each."""
        found: dict[words.Status, list[str]] = {}
        for field, cell in gpu.fields.items():
            status = words.of_cell(cell)
            if status and status.kind != words.NOT_APPLICABLE:
                found.setdefault(status, []).append(field)
            elif field in REQUIRED and (status or not cell):
                reason = f"{gpu}: {field} is {cell or 'empty'}, so it is not verified"
                self.not_run.append({**_place(gpu), "field": field, "reason": reason})
            elif status and field in rules.HEALTH:
                self.not_available.add(field)
        if not any(gpu.fields.values()):
            message = f"{gpu}: an empty row"
            self.failures.append({**_place(gpu), "message": message, "severity": rules.FATAL})
        for status, fields in found.items():
            where = f"{fields[0]}{f' and {len(fields) - 1} more' if len(fields) > 1 else ''}"
            message = f"{gpu}: {status.meaning} ({where})"
            entry = {**_place(gpu), "field": fields[0], "fields": fields[:50]}
            if status.kind == words.BROKEN:
                action = {"action": status.action}
                self.failures.append({**entry, "message": message, "severity": rules.FATAL, **action})
            elif any(field in rules.HEALTH or field in REQUIRED for field in fields):
                self.not_run.append({**entry, "reason": message})
            else:
                self.notes.append(message)

    def _add(self, gpu: Gpu, finding: rules.Finding) -> None:
        message = f"{gpu}: {finding.message}"
        entry = {**_place(gpu), "field": finding.field}
        if finding.kind == rules.FAIL:
            action = {"action": finding.action} if finding.action else {}
            self.failures.append({**entry, "message": message, "severity": finding.severity, **action})
        elif finding.kind == rules.UNCLEAR:
            self.not_run.append({**entry, "reason": message})
        elif finding.kind == rules.DEGRADED:
            self.degraded.append(f"{message} ({finding.field})")
        else:
            self.notes.append(message)

    def _judge_evidence(self, gpu: Gpu) -> None:
        if not any(rules.value(gpu.fields, field) for field in rules.HEALTH):
            reason = f"{gpu}: no field that tells its health has a value"
            self.not_run.append({**_place(gpu), "reason": reason})

    def _judge_repetition(self) -> None:
        """No two GPUs share a uuid or a bus id; one that is there again must be a later sample of a loop."""
        told = [(gpu, identity) for gpu in self.query.gpus if (identity := gpu.identity)]
        if len(told) < len(self.query.gpus):
            reason = "nothing that was asked tells the GPUs apart: ask uuid and pci.bus_id"
            self.not_run.append({"reason": reason})
        for field in ("uuid", "pci"):
            owners: dict[str, set[tuple[str, ...]]] = {}
            for gpu, identity in told:
                if key := getattr(gpu, field):
                    owners.setdefault(key, set()).add(identity)
            for key in (key for key, identities in owners.items() if len(identities) > 1):
                message = f"two GPUs have the {field} {key}"
                self.failures.append({"field": field, "message": message, "severity": rules.FATAL})
        counts = Counter(identity for _, identity in told)
        samples = Counter((identity, gpu.fields.get("timestamp", "")) for gpu, identity in told)
        loop = len(set(counts.values())) == 1 and all(
            time and count == 1 for (_, time), count in samples.items()
        )
        for gpu, identity in {identity: (gpu, identity) for gpu, identity in told}.values():
            if counts[identity] > 1 and not loop:
                message = f"{gpu} is there {counts[identity]} times"
                self.failures.append({**_place(gpu), "message": message, "severity": rules.FATAL})

    def judge_count(self, expect: int | None) -> None:
        """The rows against "count", which is how many the driver has, and against the expectation."""
        told = _values(self.query.gpus, "count")
        if len(told) > 1 or (told and not (told[0].isascii() and told[0].isdigit() and len(told[0]) <= 4)):
            self.not_run.append({"field": "count", "reason": f"count is {', '.join(told[:5])!r}"})
            told = []
        rows, count = len(self.gpus), int(told[0]) if told else None
        if count is not None and rows < count:
            self._missing(f"the driver has {counted(count, 'GPU')}, {rows} answered")
        elif count is not None and rows > count:
            self.not_run.append({"field": "count", "reason": f"{rows} GPUs answered, count is {count}"})
        has = max(rows, count or 0)
        if expect is not None and has < expect:
            self._missing(f"{counted(has, 'GPU')}, {expect} expected")
        elif expect is not None and has > expect:
            self.not_run.append({"reason": f"{counted(has, 'GPU')}, only {expect} expected"})

    def _missing(self, message: str) -> None:
        action = "find the missing GPU: lspci, kernel log"
        self.failures.append(
            {"field": "count", "message": message, "severity": rules.FATAL, "action": action}
        )

    def judge_messages(self, expect: int | None) -> None:
        """The lines between the rows, or instead of them."""
        for message in self.query.messages:
            place = {"pci": message.pci} if message.pci else {}
            entry = {**place, "line": message.line}
            broken = message.kind in (messages.LOST, messages.BROKEN)
            if broken and not (message.driver and expect == 0):
                action = {"action": message.action} if message.action else {}
                failure = {**entry, "message": message.reason, "severity": rules.FATAL, **action}
                self.failures.insert(0, failure)
            elif broken or message.kind == messages.UNCLEAR:
                self.not_run.append({**entry, "reason": message.reason})
            elif message.kind == messages.DEGRADED:
                self.degraded.append(message.reason)

    def judge_nothing(self, text: str, expect: int | None, status: ExitStatus | None) -> None:
        """A text without any row."""
        kinds = {message.kind for message in self.query.messages}
        if messages.ABSENT in kinds or (self.query.header and not kinds - {messages.NOTE}):
            if expect:
                self._missing(f"the driver has no GPU, {expect} expected")
            elif expect is None:
                reason = "the driver has no GPU, and nobody says how many there should be"
                self.not_run.append({"reason": reason})
            else:
                self.no_gpu_is_right = True
        elif not text.strip() and not (status and status.broken):
            self.not_run.append({"reason": "nothing was printed: nvidia-smi hung or was ended"})
        elif not kinds - {messages.NOTE, messages.DEGRADED} and text.strip():
            what = next((what for mark, what in _KINDS if mark in text), None)
            self.query.problems[:] = self.query.problems if what is None else []
            if what or not self.query.problems:
                reason = what or f"no query output and no message of nvidia-smi: {quote(text, 80)!r}"
                self.not_run.append({"reason": reason})

    def judge_exit_code(self, status: ExitStatus) -> None:
        """The exit code, which the text should have explained."""
        if status.code == 14 and self.query.gpus:
            self.degraded.append(str(status))
        elif status.broken and not self.failures:
            self.failures.append({"message": f"nvidia-smi ended with {status}", "severity": rules.FATAL})
        elif not self.failures and not self.not_run and not self.no_gpu_is_right:
            self.not_run.append({"reason": f"the text shows no fault, and nvidia-smi ended with {status}"})


def _place(gpu: Gpu) -> dict[str, Any]:
    place = {"gpu": gpu.index, "pci": gpu.pci}
    return {key: value for key, value in place.items() if value is not None}


def _values(gpus: Iterable[Gpu], field: str) -> list[str]:
    """The different values of a field, in order."""
    return list(dict.fromkeys(found for gpu in gpus if (found := rules.value(gpu.fields, field))))
