"""CUDA without a toolkit: the driver's own library, libcuda.so.1, by ctypes.

``driver_api``  the calls, their errors, and how often cuInit is tried
``memory``      writes to a GPU's memory, copies there, reads back and compares

``python -m validation.cuda`` checks GPUs by hand; ``boot-checks.d/30-gpu-memory`` is the boot check.
"""

from validation.cuda.driver_api import Cuda, CudaError, CudaUnavailable, Gpu, Start, initialise
from validation.cuda.memory import Judgement, Outcome, Pattern, check_gpu, judge

__all__ = [
    "Cuda",
    "CudaError",
    "CudaUnavailable",
    "Gpu",
    "Judgement",
    "Outcome",
    "Pattern",
    "Start",
    "check_gpu",
    "initialise",
    "judge",
]
