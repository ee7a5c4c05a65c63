"""The simulated libcuda.so.1 and libnvidia-ml.so.1, called as programs call the real ones."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import uuid
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p, create_string_buffer
from typing import Any

import pytest

# cuda.h 13.0
INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT = (
    1,
    2,
    3,
    100,
    101,
    201,
)
SYSTEM_NOT_READY, SYSTEM_DRIVER_MISMATCH, UNKNOWN = 802, 803, 999
SIZE = 1 << 20


class Cuda:
    """The library of one machine; functions return CUDA's codes."""

    def __init__(self, machine: Any) -> None:
        self.library = ctypes.CDLL(machine.library)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)

    def start(self, device: int = 0) -> c_void_p:
        context = c_void_p()
        assert self.cuInit(0) == 0
        assert self.cuCtxCreate_v2(byref(context), 0, device) == 0
        return context

    def allocate(self, size: int = SIZE) -> c_uint64:
        pointer = c_uint64()
        assert self.cuMemAlloc_v2(byref(pointer), c_size_t(size)) == 0
        return pointer

    def write(self, pointer: c_uint64, content: bytes) -> int:
        code: int = self.cuMemcpyHtoD_v2(pointer, content, c_size_t(len(content)))
        return code

    def read(self, pointer: c_uint64, size: int) -> bytes:
        host = create_string_buffer(size)
        assert self.cuMemcpyDtoH_v2(host, pointer, c_size_t(size)) == 0
        return host.raw


def test_nothing_works_before_cuinit(gpu_machine: Any) -> None:
    cuda = Cuda(gpu_machine())
    count, device = c_int(), c_int()
    assert cuda.cuDeviceGetCount(byref(count)) == NOT_INITIALIZED
    assert cuda.cuDeviceGet(byref(device), 0) == NOT_INITIALIZED
    assert cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(1)) == NOT_INITIALIZED
    assert cuda.cuInit(1) == INVALID_VALUE  # its flags must be 0
    assert cuda.cuInit(0) == 0
    assert (cuda.cuDeviceGetCount(byref(count)), count.value) == (0, 1)
    assert cuda.cuDeviceGet(byref(device), 1) == INVALID_DEVICE
    assert cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(1)) == INVALID_CONTEXT
    version = c_int()
    assert (cuda.cuDriverGetVersion(byref(version)), version.value) == (0, 13000)


def test_libcuda_and_nvidia_smi_speak_of_the_same_gpus(gpu_machine: Any) -> None:
    machine = gpu_machine(gpus=4, model="a100-sxm-80")
    cuda = Cuda(machine)
    cuda.cuInit(0)
    asked = machine.run(
        "nvidia-smi", "--query-gpu=name,uuid,pci.bus_id,memory.total", "--format=csv,noheader,nounits"
    )
    for device, line in enumerate(asked.stdout.splitlines()):
        name, bus, raw, size = (
            create_string_buffer(64),
            create_string_buffer(16),
            create_string_buffer(16),
            c_size_t(),
        )
        assert cuda.cuDeviceGetName(name, 64, device) == 0
        assert cuda.cuDeviceGetPCIBusId(bus, 16, device) == 0
        assert cuda.cuDeviceGetUuid_v2(raw, device) == 0
        assert cuda.cuDeviceTotalMem_v2(byref(size), device) == 0
        gpu_name, gpu_uuid, gpu_bus, total = line.split(", ")
        assert name.value.decode() == gpu_name
        assert f"GPU-{uuid.UUID(bytes=raw.raw)}" == gpu_uuid
        assert f"0000{bus.value.decode()}" == gpu_bus
        assert 0.95 < size.value / (int(total) << 20) < 1


def test_memory_keeps_what_is_written(gpu_machine: Any) -> None:
    cuda = Cuda(gpu_machine())
    context = cuda.start()
    first, second = cuda.allocate(), cuda.allocate()
    content = os.urandom(SIZE)
    assert cuda.write(first, content) == 0
    assert cuda.cuMemcpyDtoD_v2(second, first, c_size_t(SIZE)) == 0
    assert cuda.read(second, SIZE) == content
    assert cuda.cuMemsetD8_v2(c_uint64(first.value + 10), 0xAB, c_size_t(5)) == 0
    assert cuda.cuMemsetD32_v2(c_uint64(first.value + 16), 0x01020304, c_size_t(2)) == 0
    assert cuda.read(first, 24) == content[:10] + b"\xab" * 5 + content[15:16] + b"\x04\x03\x02\x01" * 2
    assert cuda.gpu_sim_outstanding() == 2
    assert cuda.cuMemFree_v2(first) == cuda.cuMemFree_v2(second) == 0
    assert cuda.gpu_sim_outstanding() == 0
    assert cuda.cuCtxDestroy_v2(context) == 0


def test_wrong_pointers_are_refused(gpu_machine: Any) -> None:
    cuda = Cuda(gpu_machine())
    cuda.start()
    pointer = cuda.allocate(4096)
    beyond, inside = c_uint64(pointer.value + 4096), c_uint64(pointer.value + 8)
    assert cuda.write(beyond, b"x") == INVALID_VALUE
    assert cuda.write(c_uint64(pointer.value + 4095), b"xy") == INVALID_VALUE
    assert cuda.write(c_uint64(0), b"x") == INVALID_VALUE
    assert cuda.write(c_uint64(2**64 - 1), b"xy") == INVALID_VALUE
    assert cuda.cuMemcpyDtoH_v2(None, pointer, c_size_t(1)) == INVALID_VALUE
    assert cuda.cuMemFree_v2(inside) == INVALID_VALUE
    assert cuda.cuMemFree_v2(pointer) == 0
    assert cuda.cuMemFree_v2(pointer) == INVALID_VALUE
    assert cuda.write(pointer, b"x") == INVALID_VALUE
    assert cuda.cuMemAlloc_v2(byref(pointer), c_size_t(0)) == INVALID_VALUE
    assert cuda.cuMemAlloc_v2(None, c_size_t(1)) == INVALID_VALUE


def test_memory_is_finite(gpu_machine: Any) -> None:
    cuda = Cuda(gpu_machine({"kind": "out_of_memory", "gpu": 1, "free_mib": 10}, gpus=2, memory_mib=64))
    cuda.start()
    left, total = c_size_t(), c_size_t()
    assert cuda.cuMemGetInfo_v2(byref(left), byref(total)) == 0
    assert total.value == 64 << 20 and 0 < left.value < total.value
    pointer = c_uint64()
    assert cuda.cuMemAlloc_v2(byref(pointer), c_size_t(left.value + 1)) == OUT_OF_MEMORY
    assert cuda.cuMemAlloc_v2(byref(pointer), left) == 0
    assert cuda.cuMemAlloc_v2(byref(pointer), c_size_t(1 << 20)) == OUT_OF_MEMORY
    cuda.start(1)
    assert cuda.cuMemGetInfo_v2(byref(left), byref(total)) == 0
    assert left.value == 10 << 20


def test_a_context_takes_its_memory_along(gpu_machine: Any) -> None:
    cuda = Cuda(gpu_machine(gpus=2))
    first = cuda.start(0)
    pointer = cuda.allocate()
    second = cuda.start(1)
    device = c_int()
    assert (cuda.cuCtxGetDevice(byref(device)), device.value) == (0, 1)
    assert cuda.cuCtxDestroy_v2(second) == 0
    assert (cuda.cuCtxGetDevice(byref(device)), device.value) == (0, 0)
    assert cuda.cuCtxDestroy_v2(first) == 0
    assert cuda.gpu_sim_outstanding() == 0
    assert cuda.cuMemFree_v2(pointer) == INVALID_CONTEXT
    assert cuda.cuCtxDestroy_v2(first) == INVALID_CONTEXT


def test_the_primary_context_is_counted(gpu_machine: Any) -> None:
    cuda = Cuda(gpu_machine())
    cuda.cuInit(0)
    one, two = c_void_p(), c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(byref(one), 0) == cuda.cuDevicePrimaryCtxRetain(byref(two), 0) == 0
    assert one.value == two.value
    assert cuda.cuCtxSetCurrent(one) == 0
    cuda.allocate()
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0
    assert cuda.gpu_sim_outstanding() == 1
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0
    assert cuda.gpu_sim_outstanding() == 0
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == INVALID_CONTEXT


@pytest.mark.parametrize("path", ["HtoD", "DtoD", "DtoH"])
def test_a_miscompare_is_where_and_only_where_it_should_be(gpu_machine: Any, path: str) -> None:
    fault = {"kind": "memory_miscompare", "gpu": 1, "offset": 70000, "mask": 0x81, "path": path}
    cuda = Cuda(gpu_machine(fault, gpus=2))
    content = os.urandom(SIZE)
    for device in range(2):
        cuda.start(device)
        first, second = cuda.allocate(), cuda.allocate()
        for offset in range(0, SIZE, 4096):  # in pieces, as checks do it
            assert cuda.write(c_uint64(first.value + offset), content[offset : offset + 4096]) == 0
        assert cuda.cuMemcpyDtoD_v2(second, first, c_size_t(SIZE)) == 0
        back = b"".join(cuda.read(c_uint64(second.value + offset), 4096) for offset in range(0, SIZE, 4096))
        wrong = {
            place: one ^ other
            for place, (one, other) in enumerate(zip(back, content, strict=True))
            if one != other
        }
        assert wrong == ({70000: 0x81} if device == 1 else {})


@pytest.mark.parametrize(
    ("faults", "settings", "code"),
    [
        ([{"kind": "driver_not_loaded"}], {}, NO_DEVICE),
        ([{"kind": "driver_not_loaded", "cuda": 999}], {}, UNKNOWN),
        ([{"kind": "version_mismatch"}], {}, SYSTEM_DRIVER_MISMATCH),
        ([{"kind": "no_devices"}], {}, NO_DEVICE),
        ([{"kind": "count_short", "by": 2}], {}, NO_DEVICE),
        ([{"kind": "lost", "gpu": "all"}], {}, NO_DEVICE),
        ([{"kind": "lost", "gpu": 0, "cuda": "fails"}], {}, UNKNOWN),
        # Without a fabric manager no CUDA program starts on a machine with NVSwitches.
        ([{"kind": "fabric"}], {}, SYSTEM_NOT_READY),
        ([{"kind": "fabric"}], {"model": "h100-pcie"}, 0),
        ([{"kind": "mig", "gpu": "all"}], {}, NO_DEVICE),
        ([], {}, 0),
    ],
)
def test_cuinit(gpu_machine: Any, faults: list[Any], settings: dict[str, Any], code: int) -> None:
    assert Cuda(gpu_machine(*faults, gpus=2, **settings)).cuInit(0) == code


def test_cuinit_fails_a_number_of_times(gpu_machine: Any) -> None:
    machine = gpu_machine({"kind": "cuinit_fails", "times": 2, "code": 100})
    command = [sys.executable, "-c", f"import ctypes; print(ctypes.CDLL({machine.library!r}).cuInit(0))"]
    codes = [int(subprocess.check_output(command, text=True)) for _ in range(4)]
    assert codes == [100, 100, 0, 0]  # counted on the machine, not in the process


def test_a_process_in_which_cuinit_has_failed_may_be_lost(gpu_machine: Any) -> None:
    cuda = Cuda(gpu_machine({"kind": "cuinit_fails", "times": 1, "sticky": True}))
    assert [cuda.cuInit(0) for _ in range(3)] == [999] * 3


def test_cuinit_fails_by_chance(gpu_machine: Any) -> None:
    cuda = Cuda(gpu_machine({"kind": "cuinit_fails", "probability": 0.5, "seed": 7}))
    codes = [cuda.cuInit(0) for _ in range(64)]
    assert 10 < codes.count(999) < 54 and set(codes) == {0, 999}


def test_the_fabric_settles_for_cuda_too(gpu_machine: Any) -> None:
    machine = gpu_machine({"kind": "fabric", "seconds": 3600}, gpus=8)
    cuda = Cuda(machine)
    assert cuda.cuInit(0) == SYSTEM_NOT_READY
    first = machine.root / "run/gpu-sim/fabric"
    first.write_text(str(int(first.read_text()) - 3700 * 10**9))
    assert cuda.cuInit(0) == 0


def test_cuda_sees_fewer_devices_than_the_bus(gpu_machine: Any) -> None:
    cuda = Cuda(gpu_machine({"kind": "cuda_fewer", "by": 2}, {"kind": "lost", "gpu": 0}, gpus=8))
    cuda.cuInit(0)
    count, bus = c_int(), create_string_buffer(16)
    assert (cuda.cuDeviceGetCount(byref(count)), count.value) == (0, 5)
    assert (cuda.cuDeviceGetPCIBusId(bus, 16, 0), bus.value) == (0, b"0000:4B:00.0")


def test_one_mig_instance_is_all_that_cuda_shows(gpu_machine: Any) -> None:
    cuda = Cuda(gpu_machine({"kind": "mig", "gpu": "all", "instances": 2}, gpus=2))
    cuda.cuInit(0)
    count, name, one, two = (
        c_int(),
        create_string_buffer(64),
        create_string_buffer(16),
        create_string_buffer(16),
    )
    assert (cuda.cuDeviceGetCount(byref(count)), count.value) == (0, 1)
    assert (
        cuda.cuDeviceGetName(name, 64, 0)
        == cuda.cuDeviceGetUuid(one, 0)
        == cuda.cuDeviceGetUuid_v2(two, 0)
        == 0
    )
    assert b" MIG " in name.value and one.raw != two.raw


def test_any_function_can_be_made_to_fail(gpu_machine: Any) -> None:
    fault = {"kind": "cuda_error", "function": "cuMemcpyDtoH_v2", "code": 214, "gpu": 1, "times": 2}
    cuda = Cuda(gpu_machine(fault, gpus=2))
    host = create_string_buffer(4)
    for device, codes in ((0, [0, 0, 0]), (1, [214, 214, 0])):
        cuda.start(device)
        pointer = cuda.allocate(4)
        assert [cuda.cuMemcpyDtoH_v2(host, pointer, c_size_t(4)) for _ in range(3)] == codes


@pytest.mark.parametrize(
    ("code", "name", "text"),
    [
        # https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
        (0, b"CUDA_SUCCESS", b"no error"),
        (2, b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"),
        (100, b"CUDA_ERROR_NO_DEVICE", b"no CUDA-capable device is detected"),
        (214, b"CUDA_ERROR_ECC_UNCORRECTABLE", b"uncorrectable ECC error encountered"),
        (802, b"CUDA_ERROR_SYSTEM_NOT_READY", b"system not yet initialized"),
        (999, b"CUDA_ERROR_UNKNOWN", b"unknown error"),
    ],
)
def test_errors_have_names(gpu_machine: Any, code: int, name: bytes, text: bytes) -> None:
    cuda = Cuda(gpu_machine())
    found, said = c_char_p(), c_char_p()
    assert cuda.cuGetErrorName(code, byref(found)) == cuda.cuGetErrorString(code, byref(said)) == 0
    assert (found.value, said.value) == (name, text)
    assert (cuda.cuGetErrorName(12345, byref(found)), found.value) == (INVALID_VALUE, None)


def test_what_was_not_freed_is_told_at_the_end(gpu_machine: Any) -> None:
    machine = gpu_machine()
    program = f"""
import ctypes
cuda = ctypes.CDLL({machine.library!r})
cuda.cuInit(0)
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
for size in (1000, 2000, 3000):
    cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
cuda.cuMemFree_v2(pointer)
"""
    leaks = machine.root / "leaks"
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "GPU_SIM_LEAKS": str(leaks)}
    )
    assert leaks.read_text().split()[1:] == ["allocations=2", "bytes=3000", "contexts=1"]


def test_without_the_marker_nothing_is_simulated(gpu_machine: Any) -> None:
    machine = gpu_machine()
    (machine.root / "usr/share/gpu-sim/scenario.json").unlink()
    assert Cuda(machine).cuInit(0) == UNKNOWN
    assert ctypes.CDLL(machine.library.replace("libcuda", "libnvidia-ml")).nvmlInit_v2() == 999


def test_the_loader_finds_it_by_its_name(gpu_machine: Any) -> None:
    machine = gpu_machine(gpus=3)
    program = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); count = ctypes.c_int(); cuda.cuInit(0);"
        "cuda.cuDeviceGetCount(ctypes.byref(count)); print(count.value)"
    )
    folder = str(machine.root / "usr/lib/x86_64-linux-gnu")
    environment = {**os.environ, "LD_LIBRARY_PATH": folder}
    assert subprocess.check_output([sys.executable, "-c", program], env=environment, text=True) == "3\n"


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t of nvml.h."""

    _fields_ = (
        ("busIdLegacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pciDeviceId", ctypes.c_uint),
        ("pciSubSystemId", ctypes.c_uint),
        ("busId", ctypes.c_char * 32),
    )


def nvml(machine: Any) -> Any:
    library = ctypes.CDLL(machine.library.replace("libcuda", "libnvidia-ml"))
    library.nvmlErrorString.restype = c_char_p
    return library


def test_nvml(gpu_machine: Any) -> None:
    library = nvml(gpu_machine({"kind": "lost", "gpu": 1, "says": "lost"}, gpus=3))
    count, version, handle = ctypes.c_uint(), create_string_buffer(80), c_void_p()
    assert library.nvmlDeviceGetCount_v2(byref(count)) == 1  # NVML_ERROR_UNINITIALIZED
    assert library.nvmlInit_v2() == 0
    assert (library.nvmlDeviceGetCount_v2(byref(count)), count.value) == (0, 3)
    assert (library.nvmlSystemGetDriverVersion(version, 80), version.value) == (0, b"580.95.05")
    assert library.nvmlSystemGetDriverVersion(version, 4) == 7  # NVML_ERROR_INSUFFICIENT_SIZE
    assert library.nvmlDeviceGetHandleByIndex_v2(1, byref(handle)) == 15  # NVML_ERROR_GPU_IS_LOST
    assert library.nvmlErrorString(15) == b"GPU is lost"
    assert library.nvmlDeviceGetHandleByIndex_v2(3, byref(handle)) == 2  # NVML_ERROR_INVALID_ARGUMENT
    assert library.nvmlDeviceGetHandleByIndex_v2(2, byref(handle)) == 0
    pci = PciInfo()
    assert library.nvmlDeviceGetPciInfo_v3(handle, byref(pci)) == 0
    assert (pci.busId, pci.busIdLegacy, pci.bus, pci.pciDeviceId) == (
        b"00000000:53:00.0", b"0000:53:00.0", 0x53, 0x233010DE,
    )  # fmt: skip
    assert library.nvmlDeviceGetName(handle, version, 80) == 0
    assert version.value == b"NVIDIA H100 80GB HBM3"
    assert library.nvmlShutdown() == 0
    assert library.nvmlShutdown() == 1


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"kind": "driver_not_loaded"}, 9),
        ({"kind": "version_mismatch"}, 18),
        ({"kind": "nvml_fails", "code": 4}, 4),
    ],
)
def test_nvml_cannot_be_initialised(gpu_machine: Any, fault: dict[str, Any], code: int) -> None:
    assert nvml(gpu_machine(fault)).nvmlInit_v2() == code
