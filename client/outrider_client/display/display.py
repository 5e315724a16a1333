"""Showing an answer as it comes, in whichever display fits where it goes."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Protocol, TextIO

from rich.console import Console

from outrider_client.client import Client
from outrider_client.core.answer_text import AnswerText
from outrider_client.core.events import Event, Finished, Warned
from outrider_client.display.json_display import JsonDisplay
from outrider_client.display.messages import print_message, printable
from outrider_client.display.terminal import LiveDisplay, MarkdownDisplay
from outrider_client.models.local_models import Prompt


class Display(Protocol):
    """Shows one answer."""

    written: AnswerText

    def show(self, event: Event) -> None: ...

    def close(self) -> None: ...


def display_for(client: Client, *, as_json: bool, markdown: bool = False) -> Display:
    """For standard output: JSON if asked for, colors or rendered Markdown on a terminal, else plain text."""
    if as_json:
        return JsonDisplay(sys.stdout)
    console = Console(highlight=False)
    if not console.is_terminal:
        return PlainDisplay(sys.stdout)
    return (MarkdownDisplay if markdown else LiveDisplay)(console, client.link_state)


def show_answer(
    client: Client,
    prompt: Prompt,
    display: Display,
    **overrides: Any,  # as in ClientConfig.for_answer
) -> Finished:
    """Returns how it ended. Raises as Client.generate."""
    finished = None
    warnings: list[str] = []  # for after the answer, whose place on a terminal they would take
    with contextlib.closing(display):
        for event in client.generate(prompt, **overrides):
            display.show(event)
            match event:
                case Finished():
                    finished = event
                case Warned(message=message):
                    warnings.append(message)
    for message in warnings:
        print_message(f"warning: {message}")
    assert finished is not None
    return finished


class PlainDisplay:
    """One answer."""

    def __init__(self, out: TextIO) -> None:
        self.written = AnswerText()
        self._out = out
        self._num_printed = 0

    def show(self, event: Event) -> None:
        self.written.take(event)
        text = self.written.text
        end = len(text) if isinstance(event, Finished) else self.written.num_settled_chars
        self._print(text[self._num_printed : end])

    def close(self) -> None:
        """End the line, if there is one."""
        if self.written.text and not self.written.text.endswith("\n"):
            self._print("\n")

    def _print(self, text: str) -> None:
        if text:
            self._out.write(printable(text) if self._out.isatty() else text)
            self._out.flush()
            self._num_printed += len(text)
