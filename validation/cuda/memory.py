"""Writes to a GPU's memory, copies it there, reads it back and compares.

It shows that a GPU can be used at all: bus, copy engines, memory. It is no memory test: it touches a small
part of the memory once. DCGM's memtest and memory diagnostics are that.
"""

from __future__ import annotations

import ctypes
import time
from _random import Random  # what random.Random is made of; importing random costs more than the test
from typing import Any, NamedTuple

from validation.cuda.driver_api import DEVICE_UNAVAILABLE, OUT_OF_MEMORY, Cuda, CudaError, Gpu

SIZE = 16 * 1024 * 1024  # bytes of one buffer, unless told otherwise; there are two
LEAST = 1024 * 1024  # bytes of one buffer below which it says nothing
CHUNK = 128 * 1024  # bytes of one transfer: the host needs three of these, whatever the size
STEP = 4099  # a prime: no two chunks of 16 GiB get the same bytes, so that swapped addresses are noticed


class Pattern:
    """Random bytes for a buffer of any size: the same seed gives the same bytes.

    Each chunk is another window of one random block: random bytes for all of a large buffer take seconds.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        block = Random(seed).getrandbits(8 * 2 * CHUNK).to_bytes(2 * CHUNK, "little")
        self._block = ctypes.create_string_buffer(block, len(block))

    def address(self, chunk: int) -> int:
        """Where in our memory the bytes of chunk number ``chunk`` are, ``CHUNK`` of them."""
        return ctypes.addressof(self._block) + chunk * STEP % (CHUNK + 1)

    def content(self, chunk: int, size: int) -> bytes:
        """The first ``size`` bytes of chunk number ``chunk``."""
        return ctypes.string_at(self.address(chunk), size)


class Outcome(NamedTuple):
    """What came back from one GPU."""

    gpu: Gpu
    size: int  # bytes of each of the two buffers
    seed: int
    free_bytes: int  # before
    seconds: float
    wrong_bytes: int = 0  # in what was read back
    wrong_bits: int = 0
    first_wrong: int | None = None  # offset
    wrong_before_copy: int = (
        0  # of the wrong chunks' bytes, those that were wrong in the first buffer already
    )

    @property
    def good(self) -> bool:
        """Everything came back as it was written."""
        return not self.wrong_bytes


class TooLittleMemory(Exception):
    """The GPU has no room for the test: something else uses it. The message has the numbers."""


def check_gpu(cuda: Cuda, ordinal: int, *, size: int = SIZE, seed: int) -> Outcome:
    """Writes ``size`` bytes to device ``ordinal``, copies them there, reads the copy back and compares.

    ``cuda`` is initialised. Takes less than ``size`` when less is free. Everything allocated is given back
    whatever happens. Raises ``CudaError``, and ``TooLittleMemory`` when other programs have the memory.
    """
    started = time.monotonic()
    gpu = cuda.gpu(ordinal)
    try:
        with cuda.context(ordinal):
            free, total = cuda.memory_info()
            # A tenth stays free: what is free is not free in one piece.
            size = min(size, free * 9 // 20 // CHUNK * CHUNK or free * 9 // 20)
            if size < min(LEAST, total // 4):
                raise TooLittleMemory(f"of {total >> 20} MiB only {free >> 20} MiB are free")
            outcome = _write_copy_compare(cuda, Outcome(gpu, size, seed, free, 0.0))
    except CudaError as error:
        if error.code == OUT_OF_MEMORY:
            raise TooLittleMemory(str(error)) from None
        raise
    return outcome._replace(seconds=round(time.monotonic() - started, 3))


class Judgement(NamedTuple):
    """The verdict over one GPU: pass, fail or unknown, one line for people, and facts as JSON."""

    verdict: str
    reason: str
    data: dict[str, Any]


def judge(cuda: Cuda, ordinal: int, *, size: int = SIZE, seed: int) -> Judgement:
    """``check_gpu`` with its verdict; no error of CUDA comes out as an exception."""
    name = f"CUDA device {ordinal}"
    data: dict[str, Any] = {"ordinal": ordinal, "seed": seed}
    try:
        gpu = cuda.gpu(ordinal)
        name = f"GPU {gpu.pci} ({gpu.name}, {name})"
        data.update(gpu._asdict())
        outcome = check_gpu(cuda, ordinal, size=size, seed=seed)
    except TooLittleMemory as error:
        return Judgement("unknown", f"{name} has too little free memory: {error}", data)
    except CudaError as error:
        data["error"] = {"function": error.function, "code": error.code, "name": error.name}
        if error.code == DEVICE_UNAVAILABLE:
            return Judgement("unknown", f"{name} is taken by another process: {error}", data)
        return Judgement("fail", f"{name}: {error}", data)
    data.update((key, value) for key, value in outcome._asdict().items() if key != "gpu")
    if outcome.good:
        return Judgement("pass", f"{name}: {outcome.size >> 20} MiB came back as written", data)
    bits = f"{outcome.wrong_bits} bit{'s' * (outcome.wrong_bits > 1)}"
    wrong = f"of {outcome.size} bytes {outcome.wrong_bytes} came back wrong ({bits})"
    first = "wrong there too" if outcome.wrong_before_copy else "right there"
    reason = f"{wrong}, the first at {outcome.first_wrong:#x}; the buffer they were copied from is {first}"
    return Judgement("fail", f"{name}: {reason}", data)


def _write_copy_compare(cuda: Cuda, outcome: Outcome) -> Outcome:
    with _Buffer(cuda, outcome.size) as first, _Buffer(cuda, outcome.size) as second:
        pattern = Pattern(outcome.seed)
        for chunk, (offset, length) in enumerate(_chunks(outcome.size)):
            cuda.to_device(first + offset, pattern.address(chunk), length)
        cuda.on_device(second, first, outcome.size)
        return _compare(cuda, outcome, pattern, first, second)


def _compare(cuda: Cuda, outcome: Outcome, pattern: Pattern, first: int, second: int) -> Outcome:
    memcmp = ctypes.PyDLL(None).memcmp
    memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    host = ctypes.create_string_buffer(CHUNK)
    for chunk, (offset, length) in enumerate(_chunks(outcome.size)):
        cuda.to_host(ctypes.addressof(host), second + offset, length)
        if not memcmp(host, pattern.address(chunk), length):
            continue
        expected = pattern.content(chunk, length)
        difference = _difference(host.raw[:length], expected)
        wrong = length - difference.count(0)
        cuda.to_host(ctypes.addressof(host), first + offset, length)
        before = _difference(host.raw[:length], expected)
        outcome = outcome._replace(
            wrong_bytes=outcome.wrong_bytes + wrong,
            wrong_bits=outcome.wrong_bits + int.from_bytes(difference, "little").bit_count(),
            first_wrong=_first(outcome.first_wrong, offset + length - len(difference.lstrip(b"\0"))),
            wrong_before_copy=outcome.wrong_before_copy + length - before.count(0),
        )
    return outcome


def _first(known: int | None, offset: int) -> int:
    return offset if known is None else known


def _difference(one: bytes, other: bytes) -> bytes:
    """Exclusive or, byte by byte."""
    number = int.from_bytes(one, "little") ^ int.from_bytes(other, "little")
    return number.to_bytes(len(one), "little")


def _chunks(size: int) -> list[tuple[int, int]]:
    """Offset and length of each chunk."""
    return [(offset, min(CHUNK, size - offset)) for offset in range(0, size, CHUNK)]


class _Buffer:
    """Memory on the device for a ``with`` block, which gets its address."""

    def __init__(self, cuda: Cuda, size: int) -> None:
        self._cuda = cuda
        self._size = size
        self._address = 0

    def __enter__(self) -> int:
        self._address = self._cuda.allocate(self._size)
        return self._address

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self._cuda.free(self._address)
        except CudaError:
            if error is None:  # one in the block says more
                raise
