"""The CUDA driver API by ctypes: errors, tries of cuInit, and every way in which memory can be wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.validation.fake_cuda import FakeCuda
from validation import cuda
from validation.cuda import driver_api, memory
from validation.cuda.__main__ import main

MIB = 1 << 20
CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    made = FakeCuda()
    monkeypatch.setattr(driver_api.ctypes, "CDLL", lambda name: made)
    return made


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that would have been made; the clock goes on by them."""
    made: list[float] = []
    monkeypatch.setattr(driver_api.time, "sleep", made.append)
    monkeypatch.setattr(driver_api.time, "monotonic", lambda: sum(made))
    return made


def test_a_gpu_gives_back_what_was_written(fake: FakeCuda) -> None:
    judged = cuda.judge(cuda.Cuda(), 3, size=3 * MIB + 5, seed=7)
    assert (judged.verdict, judged.data["wrong_bytes"]) == ("pass", 0)
    device = "GPU 0000:25:00 (NVIDIA H100 80GB HBM3, CUDA device 3)"
    assert judged.reason == f"{device}: 3 MiB came back as written"
    assert judged.data["size"] == 3 * MIB + 5
    assert judged.data["pci"] == "0000:25:00"
    assert judged.data["uuid"] == "GPU-67676767-6767-6767-6767-676767676767"
    assert (fake.memory, fake.contexts) == ({}, 0)
    json.dumps(judged.data, allow_nan=False)


def test_the_pattern_is_random_and_can_be_had_again() -> None:
    once, again, other = (cuda.Pattern(seed) for seed in (1, 1, 2))
    size = memory.CHUNK
    chunks = [once.content(number, size) for number in range(64)]
    assert [again.content(number, size) for number in range(64)] == chunks
    assert len({*chunks, *(other.content(number, size) for number in range(64))}) == 128
    # Half of all bits are set. The chunks share a block of 2 Mibit: five sigma are 0.17 percent.
    ones = sum(int.from_bytes(chunk, "little").bit_count() for chunk in chunks)
    assert abs(ones / (64 * size * 8) - 0.5) < 0.0017


def flip(offset: int, mask: int = 1) -> object:
    def change(content: bytearray) -> None:
        content[offset] ^= mask

    return change


@pytest.mark.parametrize("offset", [0, memory.CHUNK - 1, memory.CHUNK, 2 * MIB + 17, 3 * MIB + 4])
def test_one_wrong_bit_is_found_wherever_it_is(fake: FakeCuda, offset: int) -> None:
    fake.on_copy = flip(offset, 0x10)  # type: ignore[assignment]
    judged = cuda.judge(cuda.Cuda(), 0, size=3 * MIB + 5, seed=7)
    assert judged.verdict == "fail"
    assert {key: judged.data[key] for key in ("wrong_bytes", "wrong_bits", "first_wrong")} == {
        "wrong_bytes": 1,
        "wrong_bits": 1,
        "first_wrong": offset,
    }
    assert "the buffer they were copied from is right there" in judged.reason
    assert (fake.memory, fake.contexts) == ({}, 0)


def test_memory_that_is_wrong_before_the_copy_is_told_apart(fake: FakeCuda) -> None:
    fake.on_write = lambda content: content.__setitem__(5, 0)
    judged = cuda.judge(cuda.Cuda(), 0, size=2 * MIB, seed=7)
    assert judged.verdict == "fail"
    assert judged.data["wrong_before_copy"] == judged.data["wrong_bytes"] == 1
    assert "the buffer they were copied from is wrong there too" in judged.reason


def test_a_copy_that_does_nothing_is_no_copy(fake: FakeCuda) -> None:
    def stale(content: bytearray) -> None:
        content[:] = b"\xaa" * len(content)

    fake.on_copy = stale
    judged = cuda.judge(cuda.Cuda(), 0, size=2 * MIB, seed=7)
    assert judged.verdict == "fail"
    assert judged.data["wrong_bytes"] > 0.99 * 2 * MIB
    assert judged.data["first_wrong"] < 10


def test_swapped_chunks_are_noticed(fake: FakeCuda) -> None:
    """An address line that is stuck: each chunk is good, but in the wrong place."""

    def swap(content: bytearray) -> None:
        content[:MIB], content[MIB:] = content[MIB:], content[:MIB]

    fake.on_copy = swap
    assert cuda.judge(cuda.Cuda(), 0, size=2 * MIB, seed=7).verdict == "fail"


FUNCTIONS = [
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid_v2",
    "cuDeviceTotalMem_v2",
    "cuCtxCreate_v2",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemFree_v2",
    "cuCtxDestroy_v2",
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_error_of_any_call_is_a_failure_and_nothing_is_kept(fake: FakeCuda, function: str) -> None:
    fake.fails[function] = [214]
    judged = cuda.judge(cuda.Cuda(), 0, size=MIB, seed=7)
    assert judged.verdict == "fail"
    name = "CUDA_ERROR_ECC_UNCORRECTABLE"
    assert f"{function}: {name} (214)" in judged.reason
    assert judged.data["error"] == {"function": function, "code": 214, "name": name}
    allocated = fake.calls.count("cuMemAlloc_v2") - (function == "cuMemAlloc_v2")
    assert fake.calls.count("cuMemFree_v2") == allocated
    created = fake.calls.count("cuCtxCreate_v2") - (function == "cuCtxCreate_v2")
    assert fake.calls.count("cuCtxDestroy_v2") == created


def test_the_second_of_two_allocations_fails(fake: FakeCuda) -> None:
    fake.fails["cuMemAlloc_v2"] = [0, 999]
    judged = cuda.judge(cuda.Cuda(), 0, size=MIB, seed=7)
    assert (judged.verdict, fake.memory, fake.contexts) == ("fail", {}, 0)


def test_the_first_of_several_errors_is_the_one_to_report(fake: FakeCuda) -> None:
    fake.fails = {"cuMemcpyDtoD_v2": [999], "cuMemFree_v2": [700, 700], "cuCtxDestroy_v2": [700]}
    judged = cuda.judge(cuda.Cuda(), 0, size=MIB, seed=7)
    assert "cuMemcpyDtoD_v2: CUDA_ERROR_UNKNOWN (999)" in judged.reason
    assert [name for name in fake.calls if name in ("cuMemFree_v2", "cuCtxDestroy_v2")] == [
        "cuMemFree_v2",
        "cuMemFree_v2",
        "cuCtxDestroy_v2",
    ]


@pytest.mark.parametrize(
    ("function", "code"), [("cuCtxCreate_v2", 2), ("cuMemAlloc_v2", 2), ("cuCtxCreate_v2", 46)]
)
def test_a_gpu_that_others_use_cannot_be_judged(fake: FakeCuda, function: str, code: int) -> None:
    fake.fails[function] = [code]
    assert cuda.judge(cuda.Cuda(), 0, size=MIB, seed=7).verdict == "unknown"


def test_it_takes_less_where_less_is_free(fake: FakeCuda) -> None:
    fake.free = 10 * MIB
    judged = cuda.judge(cuda.Cuda(), 0, size=64 * MIB, seed=7)
    assert (judged.verdict, judged.data["size"]) == ("pass", 10 * MIB * 9 // 20)
    fake.free = 2 * MIB
    judged = cuda.judge(cuda.Cuda(), 0, size=64 * MIB, seed=7)
    assert judged.verdict == "unknown"
    assert "of 81920 MiB only 2 MiB are free" in judged.reason


def test_an_older_libcuda_without_uuid_v2(fake: FakeCuda) -> None:
    del fake.cuDeviceGetUuid_v2  # type: ignore[attr-defined]
    fake.cuDeviceGetUuid = fake._function("cuDeviceGetUuid", fake._uuid)  # type: ignore[attr-defined]
    assert cuda.Cuda().gpu(0).uuid == "GPU-64646464-6464-6464-6464-646464646464"


def test_a_mig_instance(fake: FakeCuda) -> None:
    fake.name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    gpu = cuda.Cuda().gpu(0)
    assert gpu.is_mig
    assert gpu.uuid.startswith("MIG-")
    fake.name = "NVIDIA A100-SXM4-40GB"
    assert not cuda.Cuda().gpu(0).is_mig


def test_an_error_without_a_name(fake: FakeCuda) -> None:
    fake.fails["cuInit"] = [12345]
    with pytest.raises(cuda.CudaError, match=r"cuInit: unknown error \(12345\)"):
        cuda.Cuda().init()


def test_no_libcuda_and_no_libcuda_at_all(tmp_path: Path) -> None:
    with pytest.raises(cuda.CudaUnavailable, match=r"libcuda\.so\.1 cannot be loaded"):
        cuda.Cuda(str(tmp_path / "libcuda.so.1"))
    (tmp_path / "libcuda.so.1").write_text("not a library")
    with pytest.raises(cuda.CudaUnavailable, match=r"libcuda\.so\.1 cannot be loaded"):
        cuda.Cuda(str(tmp_path / "libcuda.so.1"))
    with pytest.raises(cuda.CudaUnavailable, match="cannot be loaded"):
        cuda.Cuda("libm.so.6")  # a library, but not this one


def all_tries(fake: FakeCuda, codes: list[int], **options: object) -> cuda.Start:
    fake.fails["cuInit"] = codes
    library = cuda.Cuda()
    start = cuda.initialise(library, **options)  # type: ignore[arg-type]
    while start.again:
        start = cuda.initialise(library, start, **options)  # type: ignore[arg-type]
    return start


def test_cuinit_works_at_once(fake: FakeCuda, no_pauses: list[float]) -> None:
    assert all_tries(fake, [])[:3] == ((0,), 0, None)
    assert no_pauses == []


@pytest.mark.parametrize("codes", [[999], [3, 999], [100, 100, 100, 100], [46, 304, 999, 999, 999]])
def test_cuinit_that_flakes_is_tried_again(fake: FakeCuda, no_pauses: list[float], codes: list[int]) -> None:
    start = all_tries(fake, [*codes])
    assert (start.codes, start.error) == ((*codes, 0), None)
    assert sum(no_pauses) < driver_api.PATIENCE


def test_cuinit_is_tried_three_times_in_a_process(fake: FakeCuda, no_pauses: list[float]) -> None:
    fake.fails["cuInit"] = [999] * 100
    start = cuda.initialise(cuda.Cuda())
    assert (start.codes, start.again) == ((999, 999, 999), True)


def test_its_patience_ends(fake: FakeCuda, no_pauses: list[float]) -> None:
    start = all_tries(fake, [999] * 1000)
    assert start.error
    assert start.error.code == 999
    assert driver_api.PATIENCE < sum(no_pauses) < driver_api.PATIENCE + 2 * driver_api.LONGEST_PAUSE
    assert 6 < len(start.codes) < 20


def test_the_fabric_manager_gets_a_minute(fake: FakeCuda, no_pauses: list[float]) -> None:
    start = all_tries(fake, [802] * 20)
    assert (start.codes[-1], start.error) == (0, None)
    assert sum(no_pauses) > driver_api.PATIENCE
    no_pauses.clear()
    start = all_tries(fake, [802] * 1000)
    assert start.error
    assert 60 < sum(no_pauses) < 65


@pytest.mark.parametrize("code", [34, 803, 804])
def test_what_cannot_change_is_not_tried_again(fake: FakeCuda, no_pauses: list[float], code: int) -> None:
    start = all_tries(fake, [code] * 10)
    assert (start.codes, no_pauses) == ((code,), [])


def test_without_a_module_no_more_tries(fake: FakeCuda, no_pauses: list[float]) -> None:
    assert all_tries(fake, [100] * 10, hopeless=lambda: True).codes == (100,)


def run(fake: FakeCuda, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, object]]:
    code = main([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_all_gpus_by_hand(fake: FakeCuda, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = run(fake, capsys, "--all-gpus", "--bytes", "1M", "--seed", "5")
    assert (code, document["verdict"], document["count"], document["tries"]) == (0, "pass", 8, [0])
    assert document["reason"] == "8 of 8 GPUs gave back what was written"
    gpus = document["gpus"]
    assert isinstance(gpus, list)
    assert [(gpu["ordinal"], gpu["seed"], gpu["verdict"]) for gpu in gpus] == [
        (number, 5 + number, "pass") for number in range(8)
    ]
    assert len({gpu["pci"] for gpu in gpus}) == 8


def test_one_bad_gpu_of_all(fake: FakeCuda, capsys: pytest.CaptureFixture[str]) -> None:
    chunks = MIB // memory.CHUNK
    fake.fails["cuMemcpyDtoH_v2"] = [*[0] * 2 * chunks, 214]
    code, document = run(fake, capsys, "--bytes", "1M")
    assert (code, document["verdict"]) == (1, "fail")
    gpus = document["gpus"]
    assert isinstance(gpus, list)
    assert [gpu["verdict"] for gpu in gpus] == ["pass", "pass", "fail", *["pass"] * 5]
    fake.fails["cuCtxCreate_v2"] = [2]
    assert run(fake, capsys, "--bytes", "1M")[0] == 2


@pytest.mark.parametrize(("codes", "verdict", "code"), [([100] * 99, "not_run", 3), ([803], "fail", 1)])
def test_cuda_that_does_not_start(
    fake: FakeCuda,
    no_pauses: list[float],
    capsys: pytest.CaptureFixture[str],
    codes: list[int],
    verdict: str,
    code: int,
) -> None:
    fake.fails["cuInit"] = codes
    found, document = run(fake, capsys)
    assert (found, document["verdict"], document["gpus"]) == (code, verdict, [])


def test_no_gpu_is_no_pass(fake: FakeCuda, capsys: pytest.CaptureFixture[str]) -> None:
    fake.gpus = 0
    assert run(fake, capsys)[0] == 3
    fake.gpus = 2
    code, document = run(fake, capsys, "--gpu", "2")
    assert (code, document["reason"]) == (2, "there is no device 2: CUDA shows 2")


@pytest.mark.parametrize(
    "argv", [["--bytes", "10"], ["--bytes", "x"], ["--gpu", "-1"], ["--gpu", "1", "--all-gpus"], ["--all"]]
)
def test_wrong_arguments_are_no_verdict(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(argv)
    assert error.value.code == 64
    assert "Traceback" not in capsys.readouterr().err


def test_as_a_command_on_a_machine_without_a_driver(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "validation.cuda", f"--root={tmp_path}", "--json"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert json.loads(done.stdout)["reason"].startswith("no NVIDIA driver: libcuda.so.1 cannot be loaded")
