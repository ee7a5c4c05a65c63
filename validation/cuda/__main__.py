"""Checks the memory of GPUs by hand: ``python -m validation.cuda [--all-gpus] [--json]``.

Exit codes: 0 pass, 1 fail, 2 unknown, 3 not run (no GPU), 64 wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from validation import driver
from validation.arguments import Parser
from validation.boot_checks import image
from validation.cuda import driver_api, memory

EXIT_CODES = {"pass": 0, "fail": 1, "unknown": 2, "not_run": 3}


def _arguments() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m validation.cuda",
        description="Writes to the memory of GPUs, copies there, reads back and compares.",
        epilog="Exit codes: 0 pass, 1 fail, 2 unknown, 3 not run, 64 wrong arguments.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all-gpus", action="store_true", help="every GPU that CUDA shows (default)")
    which.add_argument("--gpu", type=int, metavar="N", help="only CUDA's device N")
    parser.add_argument(
        "--bytes",
        type=_size,
        default=memory.SIZE,
        metavar="N",
        help="size of each of the two buffers, with K, M or G for KiB, MiB, GiB (default: %(default)d)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the pattern (default: random)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--root", default=image.root(), metavar="DIR", help="a machine laid out in a folder (tests)"
    )
    return parser


def _size(text: str) -> int:
    unit = {"k": 10, "m": 20, "g": 30}.get(text[-1:].lower())
    size = int(text[:-1] if unit else text) << (unit or 0)
    if size < memory.LEAST:
        raise argparse.ArgumentTypeError(f"less than {memory.LEAST} bytes say nothing")
    return size


def main(argv: Sequence[str]) -> int:
    """Runs the command with these arguments and returns its exit code."""
    options = _arguments().parse_args(argv)
    if options.gpu is not None and options.gpu < 0:
        _arguments().error("--gpu is a number from 0 on")
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "little")
    document = check(options.root, only=options.gpu, size=options.bytes, seed=seed)
    if options.json:
        print(json.dumps(document))
    else:
        print(f"{document['verdict'].upper()}: {document['reason']}")
        for gpu in document["gpus"]:
            print(f"{gpu['verdict']:<7} {gpu['reason']}")
    return EXIT_CODES[document["verdict"]]


def check(root: str, *, only: int | None, size: int, seed: int) -> dict[str, Any]:
    """Checks all GPUs, or the one with the ordinal ``only``; returns what ``--json`` prints.

    One of ``gpus`` for each: its verdict and reason, and what ``memory.Outcome`` has.
    """
    document: dict[str, Any] = {"verdict": "unknown", "reason": "", "cuda": None, "tries": [], "gpus": []}
    library = driver.LIBCUDA if root == "/" else driver.library(driver.LIBCUDA, root)
    try:
        cuda = driver_api.Cuda(library or os.path.join(root, driver.LIBCUDA))
    except driver_api.CudaUnavailable as error:
        return {**document, "verdict": "not_run", "reason": f"no NVIDIA driver: {error}"}
    start = driver_api.initialise(cuda)
    while start.again:
        start = driver_api.initialise(cuda, start)
    document["tries"] = list(start.codes)
    if start.error:
        verdict = "not_run" if start.error.code == driver_api.NO_DEVICE else "fail"
        return {**document, "verdict": verdict, "reason": f"{start.error} in {len(start.codes)} tries"}
    try:
        document["cuda"] = cuda.driver_version()
        count = cuda.device_count()
    except driver_api.CudaError as error:
        return {**document, "verdict": "fail", "reason": str(error)}
    document["count"] = count
    if not count:
        return {**document, "verdict": "not_run", "reason": "CUDA shows no GPU"}
    if only is not None and only >= count:
        return {**document, "reason": f"there is no device {only}: CUDA shows {count}"}
    for ordinal in range(count) if only is None else [only]:
        judged = memory.judge(cuda, ordinal, size=size, seed=seed + ordinal)
        document["gpus"].append({**judged.data, "verdict": judged.verdict, "reason": judged.reason})
    return {**document, **_together(document["gpus"])}


def _together(gpus: Sequence[dict[str, Any]]) -> dict[str, str]:
    for verdict in ("fail", "unknown"):
        if bad := [gpu["reason"] for gpu in gpus if gpu["verdict"] == verdict]:
            return {"verdict": verdict, "reason": "; ".join(bad)}
    return {"verdict": "pass", "reason": f"{len(gpus)} of {len(gpus)} GPUs gave back what was written"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
