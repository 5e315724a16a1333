"""`outrider pull`: fetch from a server what this device needs to use it."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Protocol, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from typer import Argument, Option

from outrider_client.cli.access_options import access_from, with_port
from outrider_client.core.config import ClientConfig
from outrider_client.display.json_display import event_name
from outrider_client.display.messages import print_message
from outrider_client.pull.pull import (
    BytesPulled,
    FilePulled,
    PullConfig,
    Pulled,
    PullEvent,
    PullStarted,
    PullWaiting,
    pull,
)

EXIT_INTERRUPTED = 130


class PullDisplay(Protocol):
    """Shows one pull."""

    def show(self, event: PullEvent) -> None: ...

    def close(self) -> None: ...


def pull_command(
    server: Annotated[str, Argument(help="The server's HOST or HOST:PORT.")] = ClientConfig().server,
    out: Annotated[
        Path | None, Option(help="Directory for the bundle; the user's data directory, where generate looks.")
    ] = None,
    drafter: Annotated[str, Option(help="Which of the server's drafters; its first.")] = "",
    weights: Annotated[str, Option(help="float32, bfloat16, int8 or int4, if on offer; the server's first.")] = "",
    retry: Annotated[float, Option(help="Seconds to try without a byte once the server was reached.")] = 60.0,
    as_json: Annotated[bool, Option("--json", help="One JSON object an event.")] = False,
    **options: Any,  # how the server is reached
) -> None:
    """Fetch what this device needs of a server's target and drafter. Goes on where it was interrupted."""
    server = with_port(server)
    order = PullConfig(server, out, drafter, weights, retry, access=access_from(options))
    display = (
        JsonPullDisplay(sys.stdout) if as_json else TextPullDisplay(Console(stderr=True, highlight=False), sys.stdout)
    )
    try:
        pulled = asyncio.run(pull(order, display.show))
    except KeyboardInterrupt:
        print_message("stopped; what has come is kept: pull again to go on")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        display.close()
    if not as_json:
        target = "" if out is None else f" --target {pulled.directory}"
        print(f"use it with: outrider generate --server {server}{target} PROMPT")


class JsonPullDisplay:
    """One JSON object a line; bytes are not counted out."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, event: PullEvent) -> None:
        if not isinstance(event, BytesPulled):
            self._out.write(json.dumps({"event": event_name(event), **asdict(event)}, default=str) + "\n")
            self._out.flush()

    def close(self) -> None:
        return


class TextPullDisplay:
    """A bar where there is a terminal for it, and a line at the end."""

    def __init__(self, console: Console, out: TextIO) -> None:
        self._out = out
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self._bar = Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True)
        self._task = self._bar.add_task("asking", total=None)
        self._said = ""
        if console.is_terminal:
            self._bar.start()

    def show(self, event: PullEvent) -> None:
        match event:
            case PullStarted():
                name = f"{event.target}, {event.drafter}, {event.weights}"
                self._bar.update(self._task, description=name, total=event.size_bytes, completed=event.kept_bytes)
                if event.kept_bytes:
                    self._say(f"{event.kept_bytes:,} of {event.size_bytes:,} bytes are there already")
            case BytesPulled():
                self._bar.advance(self._task, event.count)
            case PullWaiting():
                self._say(f"{event.reason}; trying again")
            case FilePulled():
                pass
            case Pulled():
                self.close()
                self._out.write(_summary(event) + "\n")

    def close(self) -> None:
        """Leave the terminal as it was. Safe twice."""
        if self._console.is_terminal:
            self._bar.stop()

    def _say(self, text: str) -> None:
        """Once, however often it happens in a row."""
        if text != self._said:
            self._console.print(text, style="yellow", markup=False, soft_wrap=True)
        self._said = text


def _summary(pulled: Pulled) -> str:
    what = f"{pulled.size_bytes:,} bytes, drafter {pulled.drafter}, {pulled.weights}, for target {pulled.target}"
    state = "" if pulled.changed else "is as the server has it, nothing to fetch: "
    return f"{pulled.directory}: {state}{what} ({pulled.target_fingerprint})"
