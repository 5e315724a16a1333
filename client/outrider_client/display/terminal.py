"""Answers on a terminal, with a status line: as text colored by origin, or as rendered Markdown.

Colors of origins, and the marks that stand for them where there are no colors:

    accepted green, bonus cyan, unverified yellow {~ ~}, corrected magenta {= =}, private blue {# #}
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.segment import Segments as Drawn
from rich.text import Text

from outrider_client.connection.link_state import LinkState
from outrider_client.core.answer_text import AnswerText, Span
from outrider_client.core.events import WAITING, Event, Finished, LinkChanged, Stats, Warned
from outrider_client.core.head_statistics import HeadUse
from outrider_client.core.statistics import Statistics
from outrider_client.privacy.safe_prefix import HUNG_UP
from outrider_client.text.transcript import Origin
from outrider_proto.terminal.text import printable

STYLES: dict[Origin, str] = {
    "prompt": "",
    "accepted": "green",
    "bonus": "cyan",
    "corrected": "bold magenta",
    "unverified": "yellow italic",
    "private": "blue",
}
_MARKS: dict[Origin, str] = {"unverified": "~", "corrected": "=", "private": "#"}
_LINK_STYLES = {
    LinkState.CONNECTING: "yellow",
    LinkState.ONLINE: "green",
    LinkState.OFFLINE: "red",
    LinkState.RESUMING: "yellow",
    LinkState.CLOSED: "dim",
}
_STATUS_LINES = 2  # which the status may wrap to


class LiveDisplay:
    """An answer as text colored by origin. `state` is the link's at its start.

    Lines that can no longer change scroll away above; only the rest is redrawn. Where another target takes all of the
    answer back, it is shown anew below them.
    """

    def __init__(self, console: Console, state: LinkState = LinkState.CONNECTING) -> None:
        self.written = AnswerText()
        self._console = console
        self._status = StatusLine(state)
        self._first_span = 0  # those before it have scrolled away, or their styling would take longer with every token
        self._num_scrolled = 0  # characters of the text from there on
        self._live = Live(console=console, refresh_per_second=12, transient=True)
        self._live.start()

    def show(self, event: Event) -> None:
        self.written.take(event)
        self._status.take(event)
        if not self.written.spans:
            self._first_span = self._num_scrolled = 0
        text = self._styled(len(self.written.spans))
        settled = text if isinstance(event, Finished) else self._styled(self.written.num_settled)
        self._scroll(text, len(settled))
        self._live.update(Group(self._visible(text[self._num_scrolled :]), self._status.text(self.written)))
        self._forget_scrolled()

    def close(self) -> None:
        """Leave the text and the last status on the terminal."""
        self._live.stop()
        text = self._styled(len(self.written.spans))
        if len(text) > self._num_scrolled:
            self._console.print(text[self._num_scrolled :], soft_wrap=True)
        self._console.print(self._status.text(self.written))

    def _styled(self, num_spans: int) -> Text:
        return styled(self.written.spans[self._first_span : num_spans], self._console)

    def _scroll(self, text: Text, num_settled: int) -> None:
        """Print the complete lines among the settled characters for good."""
        end = text.plain.rfind("\n", self._num_scrolled, num_settled)
        if end >= 0:
            self._console.print(text[self._num_scrolled : end], soft_wrap=True)
            self._num_scrolled = end + 1

    def _forget_scrolled(self) -> None:
        """Leave out the leading spans that have scrolled away as wholes, marks included."""
        for _, group in groupby(self.written.spans[self._first_span :], lambda span: _MARKS.get(span.origin, "")):
            spans = list(group)
            # Marks stand around all neighbors of one kind: these go together.
            for together in [spans] if spans[0].origin in _MARKS else [[span] for span in spans]:
                length = len(styled(together, self._console))
                if length > self._num_scrolled:
                    return
                self._num_scrolled -= length
                self._first_span += len(together)

    def _visible(self, text: Text) -> Text:
        """The last lines, as many as the terminal holds."""
        # Lines that have left the screen cannot be drawn over: Live would print them again at every refresh.
        lines = text.wrap(self._console, self._console.width)
        room = max(self._console.height - _STATUS_LINES - 1, 1)
        return Text("\n").join(lines[-room:])


class MarkdownDisplay:
    """An answer as rendered Markdown. `state` is the link's at its start.

    Only verified text is rendered; the unverified end stands below it in its color. The end of the answer is redrawn as
    far as the terminal holds it, and the whole answer is printed at its end.
    """

    def __init__(self, console: Console, state: LinkState = LinkState.CONNECTING) -> None:
        self.written = AnswerText()
        self._console = console
        self._status = StatusLine(state)
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._drawn)
        self._live.start()

    def show(self, event: Event) -> None:
        self.written.take(event)
        self._status.take(event)

    def close(self) -> None:
        """Leave the answer and the last status on the terminal."""
        self._live.stop()
        self._console.print(self._answer())
        self._console.print(self._status.text(self.written))

    def _answer(self) -> RenderableType:
        spans, settled = list(self.written.spans), self.written.num_settled
        approved = Markdown(printable("".join(span.text for span in spans[:settled])))
        return Group(approved, styled(spans[settled:], self._console)) if spans[settled:] else approved

    def _drawn(self) -> RenderableType:
        """The last lines, as many as the terminal holds, and the status."""
        lines = self._console.render_lines(self._answer(), pad=False)
        room = max(self._console.height - _STATUS_LINES - 1, 1)
        ended = [segment for line in lines[-room:] for segment in (*line, Segment.line())]
        return Group(Drawn(ended), self._status.text(self.written))


def styled(spans: Sequence[Span], console: Console) -> Text:
    """Show origins by color, or by marks if the console has no colors."""
    return marked(spans) if console.no_color or console.color_system is None else colored(spans)


def colored(spans: Sequence[Span]) -> Text:
    text = Text()
    for span in spans:
        text.append(printable(span.text), style=STYLES[span.origin])
    return text


def marked(spans: Sequence[Span]) -> Text:
    """Show origins by marks. Accepted and bonus text has none."""
    text = Text()
    for mark, group in groupby(spans, lambda span: _MARKS.get(span.origin, "")):
        content = printable("".join(span.text for span in group))
        text.append(f"{{{mark}{content}{mark}}}" if mark and content else content)
    return text


class StatusLine:
    """The status of one answer. `state` is the link's at its start."""

    def __init__(self, state: LinkState) -> None:
        self.state = state
        self._is_hung_up = False  # closed on purpose, for a private answer
        self._is_waiting = False
        self._statistics = Statistics()

    def take(self, event: Event) -> None:
        match event:
            case Warned(message=message):
                self._is_waiting = message == WAITING
            case LinkChanged():
                self._is_waiting = False
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
            f"↑ {decimal(statistics.bytes_up)} ↓ {decimal(statistics.bytes_down)}",
        ]
        if len(statistics.heads.cycles) > 1:
            parts.append(_heads(statistics.heads))
        num_unverified = written.origins.count("unverified")
        if num_unverified:
            parts.append(f"{num_unverified} unverified")
        if statistics.rolled_back:
            parts.append(f"{statistics.rolled_back} rolled back")
        word, style = ("hung up", "dim") if self._is_hung_up else (self.state.value, _LINK_STYLES[self.state])
        if self._is_waiting:
            word = "waiting for the link"
        status = Text(f"● {word}", style=style)
        return status.append(" · " + " · ".join(parts), style="dim")


def _heads(use: HeadUse) -> str:
    """Share of each head in the drafts, and draft trees per 1000 tokens."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in use.shares.items())
    return f"{shares} of drafts, {use.drafts_per_1000_tokens:.0f} trees/1000 tokens"
