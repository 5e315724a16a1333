"""rich's console for text of strangers. Only commands that draw import it: rich takes a while."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from outrider_proto.terminal.text import printable


class TerminalConsole(Console):
    """A console that shows of every text, also of tables, bars and Markdown, what a terminal may get.

    Brackets are text, not markup, unless `markup` is given.
    """

    def __init__(self, **settings: Any) -> None:  # Any: of rich's console
        super().__init__(**{"markup": False, **settings})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        # At the end, not before: Markdown makes characters of &#8238; and the like.
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))
