"""Progress of a run: a bar on a terminal, lines elsewhere, and JSON lines on disk."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from outrider_proto.terminal.console import TerminalConsole

_EVERY_S = 30.0  # between two lines


class ProgressReporter:
    """Shows progress on `console` and appends records to the run's log file."""

    def __init__(self, directory: Path, title: str, console: Console | None = None) -> None:
        self._log = directory / "log.jsonl"
        self._console = console or TerminalConsole(stderr=True)
        self._last_line_s = float("-inf")
        self._bar: Progress | None = None
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
                       TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[status]}"))  # fmt: skip
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task(title, total=1.0, status="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, progress: float, elapsed_s: float, status: str) -> None:
        """Move the bar; without a terminal, write a line now and then."""
        if self._bar:
            self._bar.update(self._task, completed=progress, status=status)
        elif elapsed_s - self._last_line_s >= _EVERY_S:
            self._last_line_s = elapsed_s
            self._console.print(f"{progress:6.1%}  {elapsed_s:7.0f} s  {status}", highlight=False, soft_wrap=True)

    def say(self, line: str) -> None:
        """Print one line."""
        self._console.print(line, highlight=False, soft_wrap=True)

    def record(self, entry: Mapping[str, object]) -> None:
        """Append one JSON line to the log file."""
        with self._log.open("a") as log:
            log.write(json.dumps(entry) + "\n")
