"""The line under an answer: the state of the link, and statistics of the answer so far."""

from __future__ import annotations

from rich.text import Text

from outrider_client.connection.link_state import LinkState
from outrider_client.core.answer_text import AnswerText
from outrider_client.core.events import Event, Finished, LinkChanged, Stats
from outrider_client.core.head_statistics import HeadUse
from outrider_client.core.statistics import Statistics
from outrider_client.privacy.safe_prefix import HUNG_UP

_LINK_STYLES: dict[LinkState, str] = {
    LinkState.CONNECTING: "yellow",
    LinkState.ONLINE: "green",
    LinkState.OFFLINE: "red",
    LinkState.RESUMING: "yellow",
    LinkState.CLOSED: "dim",
}


class StatusLine:
    """The status of one answer. `state` is the link's at its start."""

    def __init__(self, state: LinkState) -> None:
        self.state = state
        self._is_hung_up = False  # closed on purpose, for a private answer
        self._statistics = Statistics()

    def take(self, event: Event) -> None:
        match event:
            case LinkChanged():
                self.state, self._is_hung_up = event.state, event.detail == HUNG_UP
            case Stats() | Finished():
                self._statistics = event.statistics

    def text(self, written: AnswerText) -> Text:
        statistics = self._statistics
        parts = [
            f"R {statistics.rtt_ms:.0f} ms",
            f"τ {statistics.mean_acceptance_length:.2f}",
            f"{statistics.tokens_per_second:.1f} tokens/s",
            f"{statistics.target_calls} calls",
            f"↑ {format_bytes(statistics.bytes_up)} ↓ {format_bytes(statistics.bytes_down)}",
        ]
        if len(statistics.heads.cycles) > 1:
            parts.append(_heads(statistics.heads))
        num_unverified = written.origins.count("unverified")
        if num_unverified:
            parts.append(f"{num_unverified} unverified")
        if statistics.rolled_back:
            parts.append(f"{statistics.rolled_back} rolled back")
        word, style = ("hung up", "dim") if self._is_hung_up else (self.state.value, _LINK_STYLES[self.state])
        status = Text(f"● {word}", style=style)
        return status.append(" · " + " · ".join(parts), style="dim")


def format_bytes(count: int) -> str:
    """A size with its unit, such as 1.2 kB."""
    return f"{count} B" if count < 1000 else f"{count / 1000:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def _heads(use: HeadUse) -> str:
    """Share of each head in the drafts, and draft trees per 1000 tokens."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in use.shares.items())
    return f"{shares} of drafts, {use.drafts_per_1000_tokens:.0f} trees/1000 tokens"
