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

    Unverified text waits until it is verified or the answer ends, so only another target rolls anything back.
    """
    written, num_passed, statistics = AnswerText(), 0, Statistics()
    # Closed as soon as the text is found: this has the server stop, too.
    with closing(cast("Generator[Event, None, None]", events)):
        for event in events:
            if not isinstance(event, _CHANGES_TEXT):
                yield event
                statistics = event.statistics if isinstance(event, Stats) else statistics
                continue
            written.take(event)
            if isinstance(event, RolledBack) and len(written.spans) < num_passed:  # another target writes anew
                yield event
                num_passed = len(written.spans)
            spans, has_stopped = _shown(written, StopStrings(tuple(stops)), is_over=isinstance(event, Finished))
            yield from map(_as_event, spans[num_passed:])
            num_passed = len(spans)
            if isinstance(event, Finished):
                yield replace(event, text="", reason=_reason(event) if has_stopped else event.reason)
            elif has_stopped:
                yield Finished("private" if "private" in written.origins else "eos", statistics)
                return


def _shown(written: AnswerText, stops: StopStrings, *, is_over: bool) -> tuple[list[Span], bool]:
    """Return the spans that a display may get, the last of them cut at a stop text, and whether there is one."""
    spans = written.spans if is_over else written.spans[: written.num_settled]
    text = "".join(span.text for span in spans)
    match = stops.find(text)
    end = len(text) - (0 if is_over else stops.num_held(text)) if match is None else match.start
    shown, begin = list[Span](), 0
    for span in spans:
        rest = end - begin
        if len(span.text) > rest:
            if match is not None and rest:
                shown.append(replace(span, text=span.text[:rest]))
            break
        shown.append(span)
        begin += len(span.text)
    return shown, match is not None


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
