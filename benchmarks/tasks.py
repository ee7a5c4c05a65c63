"""The task that measures."""

from __future__ import annotations

from invoke.collection import Collection
from invoke.context import Context

from images.cli import task


@task(
    help={
        "write": "write the table to benchmarks/RESULTS.md",
        "only": "only these rows (a part of the name)",
    }
)
def bench(c: Context, write: bool = False, only: str | None = None) -> None:
    """Measure what a user waits for: builds cold, warm and unchanged, the fast tests, the task list."""
    from benchmarks import bench as bench_

    bench_.main(write=write, only=only)


def collection() -> Collection:
    """This task."""
    return Collection(bench)
