"""Ends an answer at a text that its user names: a filter between an answer's events and its display.

A display cannot always take text back, so it gets no text that could still change or begin a stop text:

    settled text               "... the end.\\n\\nUs"       stop text "\\n\\nUser:"
    the display gets           "... the end."
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import cast

from outrider_client.core.answer_text import AnswerText, Span
from outrider_client.core.events import Committed, Event, Finished, Private, RolledBack, Stats, Unverified, Verified
from outrider_client.core.statistics import Statistics
from outrider_client.text.stop_strings import StopStrings
from outrider_client.text.transcript import FinishReason

_Text = Committed | Unverified | Private
_CHANGES_TEXT = (Committed, Unverified, Private, Verified, RolledBack, Finished)


def stop_at(stops: Sequence[str], events: Iterator[Event]) -> Iterator[Event]:
    """Yield an answer's events up to the first of some texts, which is left out; then end the answer.

    Unverified text waits until it is verified or the answer ends, so nothing is rolled back.
    """
    filtered, statistics = _Filter(stops), Statistics()
    # Closed as soon as the text is found: this has the server stop, too.
    with closing(cast("Generator[Event, None, None]", events)):
        for event in events:
            if not isinstance(event, _CHANGES_TEXT):
                yield event
                statistics = event.statistics if isinstance(event, Stats) else statistics
                continue
            yield from filtered.take(event)
            if isinstance(event, Finished):
                yield replace(event, text="", reason=_reason(event) if filtered.has_stopped else event.reason)
            elif filtered.has_stopped:
                yield Finished("private" if filtered.is_private else "eos", statistics)
                return


class _Filter:
    """Takes all events that change the text, and passes on what the display may show."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.has_stopped = False
        self._stops = StopStrings(tuple(stops))
        self._written = AnswerText()
        self._num_passed = 0  # spans
        self._searched = 0  # characters that hold no stop text

    @property
    def is_private(self) -> bool:
        return any(span.origin == "private" for span in self._written.spans)

    def take(self, event: Event) -> list[_Text]:
        self._written.take(event)
        is_over = isinstance(event, Finished)
        spans = self._written.spans if is_over else self._written.spans[: self._written.num_settled]
        text = "".join(span.text for span in spans)
        match = self._stops.find(text, self._searched)
        self.has_stopped = match is not None
        if match is not None:
            return self._pass(spans, match.start, cuts=True)
        self._searched = len(text)
        held = 0 if is_over else self._stops.num_held(text)
        return self._pass(spans, len(text) - held, cuts=False)

    def _pass(self, spans: Sequence[Span], num_chars: int, *, cuts: bool) -> list[_Text]:
        """Return the spans within the first `num_chars` characters that were not passed on; `cuts` the last one."""
        begin = sum(len(span.text) for span in spans[: self._num_passed])
        passed: list[_Text] = []
        for span in spans[self._num_passed :]:
            end = begin + len(span.text)
            if end > num_chars:
                if cuts and begin < num_chars:
                    passed.append(_as_event(replace(span, text=span.text[: num_chars - begin])))
                break
            passed.append(_as_event(span))
            self._num_passed += 1
            begin = end
        return passed


def _reason(finished: Finished) -> FinishReason:
    """An answer that a stop text ends is not cut, whatever else would have ended it."""
    return "eos" if finished.reason in ("limit", "context") else finished.reason


def _as_event(span: Span) -> _Text:
    match span.origin:
        case "unverified":
            return Unverified(span.first, span.tokens, span.text)
        case "private":
            return Private(span.first, span.tokens, span.text)
        case origin:
            return Committed(span.first, span.tokens, origin, span.text, span.logprobs)
