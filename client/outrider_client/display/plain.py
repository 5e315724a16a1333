"""An answer as plain text, for pipes and files. What is printed cannot be taken back, so unverified text waits until it
is verified, built on, or the answer ends."""

from __future__ import annotations

from typing import TextIO

from outrider_client.core.answer_text import Written
from outrider_client.core.events import Event, Finished
from outrider_client.display.printable import printable


class PlainDisplay:
    """One answer."""

    def __init__(self, out: TextIO) -> None:
        self.written = Written()
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
