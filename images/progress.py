"""The one place for progress output.

Everything goes to stderr, so that stdout carries only results (``--json``, ``manifest.resolve``).
On a terminal a running stage shows a live line with its elapsed time; elsewhere each stage prints a
line when it starts and one when it ends.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

console = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Prints one line of information."""
    console.print(escape(text))


def error(text: str, hint: str | None = None) -> None:
    """Prints an error and what to do about it."""
    console.print(f"[bold red]error:[/] {escape(text)}")
    if hint:
        console.print(f"[bold]hint:[/]  {escape(hint)}")


@dataclass
class Stages:
    """The stages of one job: shows each live and remembers how long it took, in seconds."""

    seconds: dict[str, float] = field(default_factory=dict)
    current: str | None = None

    @contextlib.contextmanager
    def stage(self, name: str, text: str) -> Iterator[Stage]:
        """Runs the body as stage ``name``; on an exception ``current`` keeps naming the failed stage."""
        self.current = name
        started = time.monotonic()
        stage = Stage(name, text)
        try:
            with stage:
                yield stage
        except BaseException:
            self.seconds[name] = time.monotonic() - started
            console.print(f"  [red]✗[/] {escape(text)}  {format_seconds(self.seconds[name])}")
            raise
        self.seconds[name] = time.monotonic() - started
        outcome = f": {stage.outcome}" if stage.outcome else ""
        console.print(f"  [green]✓[/] {escape(text + outcome)}  {format_seconds(self.seconds[name])}")
        self.current = None


class Stage:
    """One running stage. ``note`` says what it is doing now, ``outcome`` what came out of it."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.outcome = ""
        self._noted = ""
        self._live: Progress | None = None

    def __enter__(self) -> Stage:
        if console.is_terminal:
            self._live = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._live.add_task(self.text, total=None)
            self._live.start()
        else:
            say(f"  … {self.text}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def note(self, text: str) -> None:
        """Says what the stage is doing now: in the live line on a terminal, else as a line of its own."""
        if text == self._noted:
            return
        self._noted = text
        if self._live:
            width = max(console.width - len(self.text) - 16, 20)
            self._live.update(self._live.task_ids[0], description=f"{self.text}: {text[:width]}")
        else:
            say(f"    {text}")


def format_seconds(seconds: float) -> str:
    """``75.2`` -> ``1 min 15 s``; below ten seconds with one decimal."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
