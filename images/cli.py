"""What every Invoke task shares: clean messages instead of tracebacks, exit codes, ``--dry``, signals."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

from invoke.context import Context
from invoke.tasks import Task
from invoke.tasks import task as invoke_task

from images.errors import ExitCode, Interrupted, UserError


def task(**options: Any) -> Callable[[Callable[..., None]], Task[Any]]:
    """``invoke.task`` for this project, with the same keyword arguments.

    Options are options: an argument is positional only where ``positional`` names it, since Invoke takes
    whatever follows, ``--help`` too, for a positional one. A ``UserError`` becomes its message, its hint and
    its exit code; an interruption becomes exit code 130 after the clean-up code has run. The task's
    docstring is its help.
    """
    options.setdefault("positional", [])

    def decorate(body: Callable[..., None]) -> Task[Any]:
        parameters = list(inspect.signature(body).parameters.values())[1:]
        required = [item.name for item in parameters if item.default is inspect.Parameter.empty]

        @functools.wraps(body)
        def guarded(context: Context, *positional: Any, **named: Any) -> None:
            with guard(context):
                for name in required[len(positional) :]:
                    if named.get(name) is None:
                        option = "--" + name.replace("_", "-")
                        raise UserError(
                            f"{option} is missing", hint="the same command with --help explains it"
                        )
                body(context, *positional, **named)

        return cast(Task[Any], invoke_task(guarded, **options))

    return decorate


@contextlib.contextmanager
def guard(context: Context) -> Iterator[None]:
    """Runs a task's body: sets ``--dry``, and ends the process by the rules of ``docs/exit-codes.md``."""
    from images import progress, run

    run.dry.set(bool(context.config.run.get("dry", False)))
    try:
        with run.interruptible():
            yield
    except UserError as error:
        progress.error(error.message, error.hint)
        sys.exit(error.code)
    except (Interrupted, KeyboardInterrupt):
        progress.error("interrupted; what this command started is cleaned up")
        sys.exit(ExitCode.INTERRUPTED)
