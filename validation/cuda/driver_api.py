"""The calls of the CUDA driver API that a check needs, with the prototypes of NVIDIA's cuda.h.

The names with ``_v2`` are what cuda.h has meant by these functions since CUDA 3.2 and 4.0, and what
libcuda.so.1 has exported ever since (https://docs.nvidia.com/cuda/cuda-driver-api/).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from validation.driver import LIBCUDA
from validation.pci import normal

# CUresult codes of cuda.h.
OUT_OF_MEMORY = 2
STUB_LIBRARY = 34
DEVICE_UNAVAILABLE = 46  # another process has it for itself (compute mode)
NO_DEVICE = 100
SYSTEM_NOT_READY = 802  # the fabric manager has not set up the NVSwitches yet
SYSTEM_DRIVER_MISMATCH = 803
COMPAT_NOT_SUPPORTED = 804

# What trying again cannot change. Everything else may be a flake: 999 and 3 while a device file is made, 100
# while nvidia-uvm loads (https://github.com/ggml-org/llama.cpp/issues/27923).
FINAL = frozenset({STUB_LIBRARY, SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED})

PATIENCE = 10.0  # seconds from the first try of cuInit to the last
FABRIC_PATIENCE = 60.0  # the same while the fabric manager works
AT_ONCE = 3  # tries in one process
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between two tries; each pause is twice the one before

_int, _uint, _size, _address = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint64
_void = ctypes.c_void_p
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_uint,),
    "cuDriverGetVersion": (ctypes.POINTER(_int),),
    "cuGetErrorName": (_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuGetErrorString": (_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuDeviceGetCount": (ctypes.POINTER(_int),),
    "cuDeviceGet": (ctypes.POINTER(_int), _int),
    "cuDeviceGetName": (ctypes.c_char_p, _int, _int),
    "cuDeviceGetUuid_v2": (_void, _int),
    "cuDeviceGetUuid": (_void, _int),
    "cuDeviceGetPCIBusId": (ctypes.c_char_p, _int, _int),
    "cuDeviceTotalMem_v2": (ctypes.POINTER(_size), _int),
    "cuCtxCreate_v2": (ctypes.POINTER(_void), _uint, _int),
    "cuCtxDestroy_v2": (_void,),
    "cuMemGetInfo_v2": (ctypes.POINTER(_size), ctypes.POINTER(_size)),
    "cuMemAlloc_v2": (ctypes.POINTER(_address), _size),
    "cuMemFree_v2": (_address,),
    "cuMemcpyHtoD_v2": (_address, _void, _size),
    "cuMemcpyDtoD_v2": (_address, _address, _size),
    "cuMemcpyDtoH_v2": (_void, _address, _size),
}


class CudaUnavailable(Exception):
    """libcuda.so.1 cannot be loaded, or is none; the message says why."""


class CudaError(Exception):
    """A call failed: which, and the CUresult with cuda.h's name for it."""

    def __init__(self, function: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{function}: {name} ({code}){f': {text}' if text else ''}")
        self.function = function
        self.code = code
        self.name = name


class Gpu(NamedTuple):
    """One device as CUDA sees it: a GPU, or in MIG mode the first instance of a GPU."""

    ordinal: int  # CUDA's own order: fastest first, not by bus
    name: str
    uuid: str  # GPU-..., MIG-... for an instance
    pci: str  # dddd:bb:dd
    total_bytes: int

    @property
    def is_mig(self) -> bool:
        """It is a MIG instance: CUDA then shows one instance only, however many there are."""
        return self.uuid.startswith("MIG-")


class Cuda:
    """libcuda.so.1. Every method raises ``CudaError``; before cuInit has worked, all but ``init`` do.

    It shows every GPU: CUDA_VISIBLE_DEVICES, which libcuda would heed, is taken out of the environment.
    ``cpu_seconds`` is the CPU time of this process that its calls have taken so far.
    """

    def __init__(self, library: str = LIBCUDA) -> None:
        """Loads ``library``, a soname or a path. Raises ``CudaUnavailable``."""
        self.cpu_seconds = 0.0
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        try:
            self._library = ctypes.CDLL(library)
            self._library.cuInit  # noqa: B018  a file of that name without it is something else
        except (OSError, AttributeError) as error:
            raise CudaUnavailable(f"{os.path.basename(library)} cannot be loaded: {error}") from None

    def init(self) -> None:
        """cuInit, once."""
        self.call("cuInit", 0)

    def driver_version(self) -> str:
        """The CUDA version that the driver brings, ``13.0``."""
        number = _int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def device_count(self) -> int:
        """How many devices CUDA shows."""
        count = _int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def gpu(self, ordinal: int) -> Gpu:
        """What CUDA says about its device ``ordinal``."""
        device = self._device(ordinal)
        name, bus = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
        total = _size()
        self.call("cuDeviceGetName", name, len(name), device)
        self.call("cuDeviceGetPCIBusId", bus, len(bus), device)
        self.call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
        text = name.value.decode(errors="replace")
        kind = "MIG" if " MIG " in f"{text} " else "GPU"
        return Gpu(ordinal, text, f"{kind}-{self._uuid(device)}", normal(bus.value.decode()), total.value)

    def context(self, ordinal: int) -> Context:
        """A context on device ``ordinal``, for a ``with`` block: without one there is no memory."""
        return Context(self, self._device(ordinal))

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the current context's device."""
        free, total = _size(), _size()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int:
        """The device address of ``size`` bytes, to be given back with ``free``."""
        address = _address()
        self.call("cuMemAlloc_v2", ctypes.byref(address), size)
        return address.value

    def free(self, address: int) -> None:
        """Gives memory back."""
        self.call("cuMemFree_v2", address)

    def to_device(self, address: int, host: int, size: int) -> None:
        """Copies ``size`` bytes from the host address ``host``."""
        self.call("cuMemcpyHtoD_v2", address, host, size)

    def on_device(self, target: int, source: int, size: int) -> None:
        """Copies ``size`` bytes on the device."""
        self.call("cuMemcpyDtoD_v2", target, source, size)

    def to_host(self, host: int, address: int, size: int) -> None:
        """Copies ``size`` bytes to the host address ``host``."""
        self.call("cuMemcpyDtoH_v2", host, address, size)

    def call(self, function: str, *arguments: Any) -> None:
        """Calls ``function`` of libcuda. Raises ``CudaError``, also when there is no such function."""
        try:
            entry = self._entry(function)
        except AttributeError:
            raise CudaError(function, -1, "not in this libcuda", "") from None
        began = time.process_time()
        code = entry(*arguments)
        self.cpu_seconds += time.process_time() - began
        if code:
            raise CudaError(function, code, *self._meaning(code))

    def _entry(self, function: str) -> Any:
        entry = getattr(self._library, function)
        entry.argtypes, entry.restype = PROTOTYPES[function], _int
        return entry

    def _device(self, ordinal: int) -> int:
        device = _int()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        return device.value

    def _uuid(self, device: int) -> str:
        raw = ctypes.create_string_buffer(16)
        try:
            self.call("cuDeviceGetUuid_v2", raw, device)  # since CUDA 11.4; it knows MIG instances
        except CudaError as error:
            if error.code != -1:
                raise
            self.call("cuDeviceGetUuid", raw, device)
        digits = raw.raw.hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def _meaning(self, code: int) -> tuple[str, str]:
        texts = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            with contextlib.suppress(AttributeError):
                self._entry(function)(code, ctypes.byref(text))
            texts.append((text.value or b"").decode(errors="replace"))
        return texts[0] or "unknown error", texts[1]


class Context:
    """A CUDA context for a ``with`` block. An error in the block is more telling than one at its end."""

    def __init__(self, cuda: Cuda, device: int) -> None:
        self._cuda = cuda
        self._device = device
        self._handle = _void()

    def __enter__(self) -> Context:
        self._cuda.call("cuCtxCreate_v2", ctypes.byref(self._handle), 0, self._device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._cuda.call("cuCtxDestroy_v2", self._handle)
        except CudaError:
            if error is None:
                raise


class Start(NamedTuple):
    """What the tries of cuInit gave."""

    codes: tuple[int, ...]  # of each try, oldest first; 0: it worked
    began: float  # of the first try, on the monotonic clock, which all processes share
    error: CudaError | None  # the last try's; None: it worked
    again: bool  # there is prospect and time for more tries


def initialise(
    cuda: Cuda, earlier: Start | None = None, *, hopeless: Callable[[], bool] = lambda: False
) -> Start:
    """Calls cuInit until it works, at most ``AT_ONCE`` times.

    Of 1,000 boots with an L4 one needs more than one try (https://modal.com/blog/gpu-health), and machines
    with NVSwitches need as long as their fabric manager. With the result's ``again`` the caller goes on,
    best in a process of its own, because libcuda may remember a failure: that result is its ``earlier``.
    ``hopeless`` tells, after a failure, that no more tries can help.
    """
    codes, began = (earlier.codes, earlier.began) if earlier else ((), time.monotonic())
    for number in range(AT_ONCE):
        if number:
            time.sleep(min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** (len(codes) - 1)))
        try:
            cuda.init()
        except CudaError as error:
            codes, last = (*codes, error.code), error
        else:
            return Start((*codes, 0), began, None, False)
        patience = FABRIC_PATIENCE if last.code == SYSTEM_NOT_READY else PATIENCE
        if last.code in FINAL or time.monotonic() - began > patience or hopeless():
            return Start(codes, began, last, False)
    return Start(codes, began, last, True)
