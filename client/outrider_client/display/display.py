"""Shows an answer while it is written, in the display that fits the output."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from outrider_client.client import Client
from outrider_client.core.answer_text import AnswerText
from outrider_client.core.events import WAITING, Event, Finished, Warned
from outrider_client.display.json_display import JsonDisplay
from outrider_client.display.messages import print_message
from outrider_client.display.stop_texts import stop_at
from outrider_client.display.terminal import LiveDisplay, MarkdownDisplay
from outrider_client.models.local_models import Prompt
from outrider_proto.terminal.console import TerminalConsole
from outrider_proto.terminal.text import printable


def display_for(client: Client, *, as_json: bool, markdown: bool = False) -> Display:
    """Make a display for standard output: JSON if asked for, styled text on a terminal, else plain text."""
    if as_json:
        return JsonDisplay(sys.stdout)
    console = TerminalConsole(highlight=False)
    if not console.is_terminal:
        return PlainDisplay(sys.stdout)
    return (MarkdownDisplay if markdown else LiveDisplay)(console, client.link_state)


def show_answer(
    client: Client,
    prompt: Prompt,
    display: Display,
    stops: Sequence[str] = (),
    **overrides: Any,  # as in ClientConfig.for_answer
) -> Finished:
    """Generate an answer and show it, up to the first of `stops`; return its last event. Raises as Client.generate."""
    finished = None
    events = client.generate(prompt, **overrides)
    warnings: list[str] = []  # printed after the answer: the display redraws the end of the terminal
    with contextlib.closing(display):
        for event in stop_at(stops, events) if stops else events:
            display.show(event)
            match event:
                case Finished():
                    finished = event
                case Warned(message=message) if message == WAITING:
                    if isinstance(display, PlainDisplay):
                        print_message(message)
                case Warned(message=message):
                    warnings.append(message)
    for message in warnings:
        print_message(f"warning: {message}")
    assert finished is not None
    return finished


def cut_remark(finished: Finished, max_new_tokens: int) -> str | None:
    """Return that and why an answer is cut; None if it is not."""
    match finished.reason:
        case "context":
            return "the answer is cut: the model's context is full"
        case "repetition":
            return "the answer goes round in circles and is stopped: ask in other words (--set stop-loops=false)"
        case "limit" | "unverified" if finished.statistics.new_tokens >= max_new_tokens:
            return f"the answer is cut after {max_new_tokens} tokens (--max-new-tokens)"
        case _:
            return None


class PlainDisplay:
    """Plain text for pipes and files.

    Printed text cannot be taken back, so unverified text waits until it is verified or built on, or the answer ends.
    Where another target goes on, and verifies something else, its text is printed whole on a new line.
    """

    def __init__(self, out: TextIO) -> None:
        self.written = AnswerText()
        self._out = out
        self._printed = ""

    def show(self, event: Event) -> None:
        self.written.take(event)
        text = self.written.text
        settled = "".join(span.text for span in self.written.spans[: self.written.num_settled])
        ready = text if isinstance(event, Finished) else settled
        if ready.startswith(self._printed):
            self._print(ready[len(self._printed) :])
        elif isinstance(event, Finished) or not self._printed.startswith(ready):
            self._print("\n")
            self._printed = ""
            self._print(ready)

    def close(self) -> None:
        """End the last line with a newline."""
        if self.written.text and not self.written.text.endswith("\n"):
            self._print("\n")

    def _print(self, text: str) -> None:
        if text:
            self._out.write(printable(text) if self._out.isatty() else text)
            self._out.flush()
            self._printed += text


Display = JsonDisplay | LiveDisplay | MarkdownDisplay | PlainDisplay
