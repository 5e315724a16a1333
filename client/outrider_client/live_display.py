"""An answer on a terminal: text coloured by origin as it grows and shrinks, with a status line under it.

Lines that can no longer change scroll away above; only the rest is drawn again and again.
"""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from outrider_client.events import Event, Finished, LinkChanged, Stats
from outrider_client.head_use import HeadUse
from outrider_client.link_state import LinkState
from outrider_client.statistics import Statistics
from outrider_client.transcript import Origin
from outrider_client.written import Written

STYLES: dict[Origin, str] = {
    "prompt": "",
    "accepted": "green",
    "bonus": "cyan",
    "corrected": "bold magenta",
    "unverified": "yellow italic",
}
_LINK_STYLES: dict[LinkState, str] = {
    LinkState.CONNECTING: "yellow",
    LinkState.ONLINE: "green",
    LinkState.OFFLINE: "red",
    LinkState.RESUMING: "yellow",
    LinkState.CLOSED: "dim",
}
_STATUS_LINES = 2


class LiveDisplay:
    """One answer. `state` is where the link stands at its start."""

    def __init__(self, console: Console, state: LinkState = LinkState.CONNECTING) -> None:
        self.written = Written()
        self.state = state
        self._console = console
        self._statistics = Statistics()
        self._num_scrolled = 0
        self._live = Live(console=console, refresh_per_second=12, transient=True)
        self._live.start()

    def show(self, event: Event) -> None:
        self.written.take(event)
        match event:
            case LinkChanged():
                self.state = event.state
            case Stats() | Finished():
                self._statistics = event.statistics
        text = coloured(self.written)
        self._scroll(text, len(text) if isinstance(event, Finished) else self.written.num_settled_chars)
        self._live.update(Group(self._visible(text[self._num_scrolled :]), self._status()))

    def close(self) -> None:
        """Leave the text and a last line of figures on the terminal."""
        self._live.stop()
        text = coloured(self.written)
        if len(text) > self._num_scrolled:
            self._console.print(text[self._num_scrolled :], soft_wrap=True)
        self._console.print(self._status())

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

    def _status(self) -> Text:
        statistics = self._statistics
        parts = [
            f"R {statistics.rtt_ms:.0f} ms",
            f"τ {statistics.mean_acceptance_length:.2f}",
            f"{statistics.tokens_per_second:.1f} tokens/s",
            f"{statistics.target_calls} calls",
            f"↑ {_bytes(statistics.bytes_up)} ↓ {_bytes(statistics.bytes_down)}",
        ]
        if len(statistics.heads.cycles) > 1:
            parts.append(_heads(statistics.heads))
        num_unverified = self.written.origins.count("unverified")
        if num_unverified:
            parts.append(f"{num_unverified} unverified")
        if statistics.rolled_back:
            parts.append(f"{statistics.rolled_back} rolled back")
        status = Text(f"● {self.state.value}", style=_LINK_STYLES[self.state])
        return status.append(" · " + " · ".join(parts), style="dim")


def coloured(written: Written) -> Text:
    """The text in the colours of its origins."""
    text = Text()
    for span in written.spans:
        text.append(span.text, style=STYLES[span.origin])
    return text


def _heads(use: HeadUse) -> str:
    """Whose drafts were sent, and the trees it took."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in use.shares.items())
    return f"{shares} of drafts, {use.drafts_per_1000_tokens:.0f} trees/1000 tokens"


def _bytes(count: int) -> str:
    return f"{count} B" if count < 1000 else f"{count / 1000:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"
