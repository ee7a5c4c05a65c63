"""What ``30-gpu-memory`` does on a machine with GPUs: starts CUDA and tests the memory of one of them."""

from __future__ import annotations

import os
import sys
from typing import Any

from validation import cuda, driver
from validation.boot_checks import gpus, image
from validation.boot_checks.check import Result, Status, failed, not_run, unknown
from validation.boot_checks.gpus import Machine
from validation.cuda import driver_api

EARLIER = "GPU_IMAGE_CUINIT"  # what the tries of cuInit in earlier processes gave
SMI_PATIENCE = 30.0  # seconds for nvidia-smi, which is asked only when CUDA shows no GPU at all


def check(machine: Machine, *, seed: int | None, ordinal: int | None) -> Result:
    """Tests one GPU. ``seed`` decides what is written, and which GPU unless ``ordinal`` does."""
    try:
        library = cuda.Cuda(library_path())
    except cuda.CudaUnavailable as error:
        return gpus.without(str(error), machine)
    start = cuda.initialise(library, earlier(), hopeless=lambda: not driver.module_loaded(image.root()))
    if start.again:
        go_on_in_another_process(start)
    data = {**machine.data, "cuinit": list(start.codes)}
    if start.error:
        return not_initialised(start, machine, data)
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "little")
    try:
        return pick_and_test(library, machine, data, seed=seed, ordinal=ordinal)
    except cuda.CudaError as error:
        return failed(str(error), **data)


def pick_and_test(
    library: cuda.Cuda, machine: Machine, data: dict[str, Any], *, seed: int, ordinal: int | None
) -> Result:
    """The result for one GPU, once CUDA works. Raises ``CudaError``."""
    data["cuda"] = library.driver_version()
    count = library.device_count()
    seen = [library.gpu(number) for number in range(count)]
    if not count:
        return no_device("cuDeviceGetCount: 0", machine, data)
    shown = {gpu.pci for gpu in seen}
    missing = [gpu for gpu in machine.gpus if gpu.pci not in shown]
    mig = any(gpu.is_mig for gpu in seen)
    if missing and not mig:  # beside whole GPUs CUDA shows no instances
        in_mig_mode = gpus_in_mig_mode()
        mig, missing = True, [gpu for gpu in missing if gpu.pci not in in_mig_mode]
        if missing:
            names = gpus.named([gpu.address for gpu in missing])
            reason = f"CUDA shows {count} of {gpus.counted(len(machine.gpus))}; missing: {names}"
            return failed(reason, **data)
    if ordinal is None:
        ordinal = seed % count
    if ordinal >= count:
        return unknown(f"there is no device {ordinal}: CUDA shows {gpus.counted(count)}", **data)
    judged = cuda.judge(library, ordinal, seed=seed)
    tries = len(data["cuinit"])
    remarks = [f"cuInit needed {tries} tries"] if tries > 1 else []
    remarks += [f"MIG mode: CUDA shows {count} of {gpus.counted(len(machine.gpus))}"] if mig else []
    reason = judged.reason + (f" ({'; '.join(remarks)})" if remarks else "")
    data = {**data, **judged.data, "mig": mig, "driver_cpu_seconds": round(library.cpu_seconds, 4)}
    return Result(Status(judged.verdict), reason, data)


def not_initialised(start: cuda.Start, machine: Machine, data: dict[str, Any]) -> Result:
    """The result when cuInit does not work."""
    assert start.error
    reason = f"{start.error}, {len(start.codes)} tries"
    root = image.root()
    module = driver.module_version(root)
    if not driver.module_loaded(root):
        return gpus.without(f"the module nvidia is not loaded ({reason})", machine)
    match start.error.code:
        case driver_api.NO_DEVICE:
            return no_device(reason, machine, data)
        case driver_api.SYSTEM_NOT_READY:
            reason += f"; {len(machine.nvswitches)} NVSwitches on the bus"
            reason += ": is nvidia-fabricmanager of this driver's version running?"
        case driver_api.SYSTEM_DRIVER_MISMATCH:
            library = driver.library_version(driver.library(driver.LIBCUDA, root))
            reason += f"; module {module}, libcuda {library or 'unknown'}: reboot, or install one version"
        case driver_api.DEVICE_UNAVAILABLE:
            return unknown(f"{reason}; another process has the GPU for itself", **data)
    return failed(reason, **data)


def no_device(reason: str, machine: Machine, data: dict[str, Any]) -> Result:
    """CUDA shows no device at all. A GPU in MIG mode without an instance is none, and nothing is broken."""
    if gpus_in_mig_mode() >= {gpu.pci for gpu in machine.gpus}:
        return not_run("all GPUs are in MIG mode and have no instance, so CUDA shows none", **data)
    return failed(f"CUDA shows none of {gpus.counted(len(machine.gpus))} on the PCI bus: {reason}", **data)


def gpus_in_mig_mode() -> set[str | None]:
    """The GPUs that are in MIG mode by nvidia-smi, by bus; none when it does not answer."""
    from validation import nvidia_smi  # here: the usual boot need not pay for it

    output = nvidia_smi.query(timeout=SMI_PATIENCE, fields=("pci.bus_id", "mig.mode.current"))
    listed = nvidia_smi.parse(output.text).gpus
    return {gpu.pci for gpu in listed if gpu.fields.get("mig.mode.current") == "Enabled"}


def library_path() -> str:
    """What to load: on a machine the soname, so that the loader decides as for every program."""
    root = image.root()
    if root == "/":
        return driver.LIBCUDA
    return driver.library(driver.LIBCUDA, root) or image.at(f"/usr/lib/{driver.LIBCUDA}")


def earlier() -> cuda.Start | None:
    """The tries of the processes before this one."""
    began, _, codes = os.environ.get(EARLIER, "").partition(":")
    if not codes:
        return None
    return cuda.Start(tuple(int(code) for code in codes.split(",")), float(began), None, True)


def go_on_in_another_process(start: cuda.Start) -> None:
    """Becomes a new process with the same number: for the runner it is still the same check."""
    os.environ[EARLIER] = f"{start.began!r}:{','.join(map(str, start.codes))}"
    os.execv(sys.executable, sys.orig_argv)
