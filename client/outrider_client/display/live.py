"""An answer on a terminal: text colored by origin as it grows and shrinks, with a status line under it.

Lines that can no longer change scroll away above; only the rest is drawn again and again.
"""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from outrider_client.connection.link_state import LinkState
from outrider_client.core.answer_text import Written
from outrider_client.core.events import Event, Finished
from outrider_client.display.origin_styles import styled
from outrider_client.display.status_line import StatusLine

_STATUS_LINES = 2


class LiveDisplay:
    """One answer. `state` is where the link stands at its start."""

    def __init__(self, console: Console, state: LinkState = LinkState.CONNECTING) -> None:
        self.written = Written()
        self._console = console
        self._status = StatusLine(state)
        self._num_scrolled = 0
        self._live = Live(console=console, refresh_per_second=12, transient=True)
        self._live.start()

    def show(self, event: Event) -> None:
        self.written.take(event)
        self._status.take(event)
        text = self._styled(len(self.written.spans))
        settled = text if isinstance(event, Finished) else self._styled(self.written.num_settled)
        self._scroll(text, len(settled))
        self._live.update(Group(self._visible(text[self._num_scrolled :]), self._status.text(self.written)))

    def close(self) -> None:
        """Leave the text and a last line of figures on the terminal."""
        self._live.stop()
        text = self._styled(len(self.written.spans))
        if len(text) > self._num_scrolled:
            self._console.print(text[self._num_scrolled :], soft_wrap=True)
        self._console.print(self._status.text(self.written))

    def _styled(self, num_spans: int) -> Text:
        return styled(self.written.spans[:num_spans], self._console)

    def _scroll(self, text: Text, num_settled: int) -> None:
        """Print the whole lines among the settled characters for good."""
        end = text.plain.rfind("\n", self._num_scrolled, num_settled)
        if end >= 0:
            self._console.print(text[self._num_scrolled : end], soft_wrap=True)
            self._num_scrolled = end + 1

    def _visible(self, text: Text) -> Text:
        """The last lines, as many as the terminal holds: what is longer cannot be drawn over."""
        lines = text.wrap(self._console, self._console.width)
        room = max(self._console.height - _STATUS_LINES - 1, 1)
        return Text("\n").join(lines[-room:])
