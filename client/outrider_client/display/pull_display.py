"""The progress of a pull: a bar on a terminal, lines of text or JSON elsewhere."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from outrider_client.display.json_display import event_name
from outrider_client.pull.pull import BundleTried, BytesPulled, Pulled, PullEvent, PullStarted, PullWaiting
from outrider_proto.terminal.text import one_line


def print_json(event: PullEvent) -> None:
    """Print one JSON object per event and line, but none for bytes."""
    if not isinstance(event, BytesPulled):
        print(json.dumps({"event": event_name(event), **asdict(event)}, default=str), flush=True)


class TextPullDisplay:
    """Draw a bar if `console` is a terminal, and write a line to `out` at the end."""

    def __init__(self, console: Console, out: TextIO) -> None:
        self._out = out
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self._bar = Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True)
        self._task = self._bar.add_task("asking the server", total=None)
        self._last_line = ""
        if console.is_terminal:
            self._bar.start()

    def show(self, event: PullEvent) -> None:
        match event:
            case PullStarted():
                name = escape(one_line(f"{event.target}, {event.drafter}, {event.weights}"))
                self._bar.update(self._task, description=name, total=event.size_bytes, completed=event.kept_bytes)
                if event.kept_bytes:
                    self._print(f"{event.kept_bytes:,} of {event.size_bytes:,} bytes are here already")
            case BytesPulled():
                self._bar.advance(self._task, event.count)
            case BundleTried():
                self._bar.update(self._task, description="loading it once, to see whether it can be used")
            case PullWaiting():
                self._print(f"{event.reason}; trying again")
            case Pulled():
                self.close()
                self._out.write(one_line(_summary(event)) + "\n")

    def close(self) -> None:
        """Restore the terminal. Safe to call twice."""
        if self._console.is_terminal:
            self._bar.stop()

    def _print(self, text: str) -> None:
        """Print a line once, however often it comes in a row."""
        if text != self._last_line:
            self._console.print(one_line(text), style="yellow", markup=False, soft_wrap=True)
        self._last_line = text


def _summary(pulled: Pulled) -> str:
    what = f"{pulled.size_bytes:,} bytes, drafter {pulled.drafter}, {pulled.weights}, for target {pulled.target}"
    state = "" if pulled.changed else "up to date, nothing to download: "
    return f"{pulled.directory}: {state}{what} ({pulled.target_fingerprint})"
