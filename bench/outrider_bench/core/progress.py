"""A progress line on a terminal; nothing where standard error is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from outrider_proto.terminal.console import TerminalConsole

Step = Callable[[str, int, int], None]  # what is being done, how much of it is done, of how much


class ProgressCounter:
    """Counts the steps of one task and passes the count on to `step`."""

    def __init__(self, step: Step, task: str, total: int) -> None:
        self._step, self._task, self._total, self._done = step, task, total, 0

    def __call__(self) -> None:
        self._done += 1
        self._step(self._task, self._done, self._total)


@contextmanager
def progress_line() -> Iterator[Step]:
    """Yield a Step that draws the line; tasks follow one another."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=TerminalConsole(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()
    ) as bars:
        task = bars.add_task("")

        def step(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total)

        yield step
