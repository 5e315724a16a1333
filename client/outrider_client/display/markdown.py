"""An answer on a terminal as rendered Markdown, with a status line under it.

What the target has approved is rendered; the unverified end stands below it as it is, in its color. The whole answer
is drawn again and again, as far as the terminal holds it, and printed at its end.
"""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.segment import Segments as Drawn

from outrider_client.connection.link_state import LinkState
from outrider_client.core.answer_text import Written
from outrider_client.core.events import Event
from outrider_client.display.origin_styles import styled
from outrider_client.display.printable import printable
from outrider_client.display.status_line import StatusLine

_STATUS_LINES = 2


class MarkdownDisplay:
    """One answer. `state` is where the link stands at its start."""

    def __init__(self, console: Console, state: LinkState = LinkState.CONNECTING) -> None:
        self.written = Written()
        self._console = console
        self._status = StatusLine(state)
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._drawn)
        self._live.start()

    def show(self, event: Event) -> None:
        self.written.take(event)
        self._status.take(event)

    def close(self) -> None:
        """Leave the answer and a last line of figures on the terminal."""
        self._live.stop()
        self._console.print(self._answer())
        self._console.print(self._status.text(self.written))

    def _answer(self) -> RenderableType:
        spans, settled = list(self.written.spans), self.written.num_settled
        approved = Markdown(printable("".join(span.text for span in spans[:settled])))
        return Group(approved, styled(spans[settled:], self._console)) if spans[settled:] else approved

    def _drawn(self) -> RenderableType:
        """The last lines, as many as the terminal holds: what is longer cannot be drawn over."""
        lines = self._console.render_lines(self._answer(), pad=False)
        room = max(self._console.height - _STATUS_LINES - 1, 1)
        ended = [segment for line in lines[-room:] for segment in (*line, Segment.line())]
        return Group(Drawn(ended), self._status.text(self.written))
