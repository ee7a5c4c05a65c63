"""A stand-in for the library object of ctypes, for what is hard to make a C library do on cue.

The prototypes are no part of it: whether they fit is shown with a real libcuda and with the simulated one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

NAMES = {2: "CUDA_ERROR_OUT_OF_MEMORY", 46: "CUDA_ERROR_DEVICE_UNAVAILABLE", 100: "CUDA_ERROR_NO_DEVICE",
         214: "CUDA_ERROR_ECC_UNCORRECTABLE", 802: "CUDA_ERROR_SYSTEM_NOT_READY",
         803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", 999: "CUDA_ERROR_UNKNOWN"}  # fmt: skip


class FakeCuda:
    """``fails`` holds the codes that a function returns, one a call; when they are used up it works."""

    def __init__(self, gpus: int = 8, *, first_bus: int = 0x0D) -> None:
        self.gpus = gpus
        self.first_bus = first_bus
        self.name = "NVIDIA H100 80GB HBM3"
        self.free = 80 << 30
        self.total = 80 << 30
        self.fails: dict[str, list[int]] = {}
        self.on_copy: Callable[[bytearray], None] = lambda content: (
            None
        )  # what a copy on the device does to it
        self.on_write: Callable[[bytearray], None] = lambda content: None
        self.calls: list[str] = []
        self.memory: dict[int, bytearray] = {}
        self.contexts = 0
        self._next = 0x7F1200000000
        functions: dict[str, Callable[..., None]] = {
            "cuInit": lambda flags: None,
            "cuDriverGetVersion": lambda out: self._set(out, 13000),
            "cuDeviceGetCount": lambda out: self._set(out, self.gpus),
            "cuDeviceGet": lambda out, ordinal: self._set(out, ordinal + 100),
            "cuDeviceGetName": lambda out, size, device: self._text(out, self.name),
            "cuDeviceGetPCIBusId": lambda out, size, device: self._text(out, self._bus(device)),
            "cuDeviceGetUuid_v2": self._uuid,
            "cuDeviceTotalMem_v2": lambda out, device: self._set(out, self.total),
            "cuMemGetInfo_v2": self._memory_info,
            "cuCtxCreate_v2": self._create,
            "cuCtxDestroy_v2": self._destroy,
            "cuMemAlloc_v2": self._allocate,
            "cuMemFree_v2": self._free,
            "cuMemcpyHtoD_v2": self._to_device,
            "cuMemcpyDtoD_v2": self._on_device,
            "cuMemcpyDtoH_v2": self._to_host,
        }
        for function, body in functions.items():
            setattr(self, function, self._function(function, body))
        # A plain function: prototypes are set on it, which a method does not take.
        self.cuGetErrorName = lambda code, out: self._error_name(code, out)

    @staticmethod
    def _error_name(code: int, out: Any) -> int:
        out._obj.value = NAMES[code].encode() if code in NAMES else None
        return 0 if code in NAMES else 1

    def _function(self, name: str, body: Callable[..., None]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if (codes := self.fails.get(name)) and (code := codes.pop(0)):
                return code
            body(*arguments)
            return 0

        return call

    @staticmethod
    def _set(out: Any, value: int) -> None:
        out._obj.value = value

    @staticmethod
    def _text(out: Any, text: str) -> None:
        out.value = text.encode()

    def _bus(self, device: int) -> str:
        return f"0000:{self.first_bus + 8 * (device - 100):02X}:00.0"

    def _uuid(self, out: Any, device: int) -> None:
        out.raw = bytes([device]) * 16

    def _memory_info(self, free: Any, total: Any) -> None:
        self._set(free, self.free)
        self._set(total, self.total)

    def _create(self, out: Any, flags: int, device: int) -> None:
        self.contexts += 1
        self._set(out, 0xC0)

    def _destroy(self, context: Any) -> None:
        assert context.value == 0xC0
        self.contexts -= 1

    def _allocate(self, out: Any, size: int) -> None:
        assert self.contexts
        self.memory[self._next] = bytearray(b"\xaa" * size)
        self._set(out, self._next)
        self._next += 0x100000000

    def _free(self, address: int) -> None:
        del self.memory[address]

    def _place(self, address: int, size: int) -> tuple[bytearray, int]:
        for start, content in self.memory.items():
            if start <= address and address + size <= start + len(content):
                return content, address - start
        raise AssertionError(f"{address:#x} is not allocated")

    def _to_device(self, address: int, host: int, size: int) -> None:
        content, offset = self._place(address, size)
        content[offset : offset + size] = ctypes.string_at(host, size)
        self.on_write(content)

    def _on_device(self, target: int, source: int, size: int) -> None:
        content, _ = self._place(target, size)
        content[:size] = self._place(source, size)[0][:size]
        self.on_copy(content)

    def _to_host(self, host: int, address: int, size: int) -> None:
        content, offset = self._place(address, size)
        ctypes.memmove(host, bytes(content[offset : offset + size]), size)
