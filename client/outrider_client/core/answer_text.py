"""The text, tokens and origins that an answer's events add up to. Pure: a fold over events."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outrider_client.core.events import Committed, Event, Finished, Private, RolledBack, Unverified, Verified
from outrider_client.text.logprobs import TokenLogprobs
from outrider_client.text.transcript import Origin


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one origin and their text."""

    first: int
    tokens: tuple[int, ...]
    text: str
    origin: Origin
    logprobs: tuple[TokenLogprobs, ...] = ()  # empty where there are none


class AnswerText:
    """The answer so far as spans in order: pass every event to `take`."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def take(self, event: Event) -> None:
        match event:
            case Committed():
                self.spans.append(Span(event.first, event.tokens, event.text, event.origin, event.logprobs))
            case Unverified():
                self.spans.append(Span(event.first, event.tokens, event.text, "unverified"))
            case Private():
                self.spans.append(Span(event.first, event.tokens, event.text, "private"))
            case Verified():
                self.spans = [_verified(span, event) for span in self.spans]
            case RolledBack():
                self.spans = [span for span in self.spans if span.first < event.first]
            case Finished() if event.text:
                origin: Origin = "private" if event.reason == "private" else "bonus"
                self.spans.append(Span(len(self.token_ids), (), event.text, origin))

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for span in self.spans for token in span.tokens)

    @property
    def origins(self) -> tuple[Origin, ...]:
        return tuple(span.origin for span in self.spans for _ in span.tokens)

    @property
    def logprobs(self) -> tuple[TokenLogprobs | None, ...]:
        """Log probabilities by token; None where the target has not verified it or was not asked."""
        return tuple(one for span in self.spans for one in span.logprobs or (None,) * len(span.tokens))

    @property
    def num_settled(self) -> int:
        """Number of spans that can no longer be rolled back: all up to the last one that the target approved.

        Unverified tokens before such a span are settled too, since the target has built on them.
        """
        return next((i + 1 for i in reversed(range(len(self.spans))) if self.spans[i].origin != "unverified"), 0)


def _verified(span: Span, event: Verified) -> Span:
    """Return the span as `event` leaves it."""
    # Unverified spans hold one token each, so a span is verified as a whole or not at all.
    at = span.first - event.first
    return replace(span, origin="accepted", logprobs=event.logprobs[at : at + 1]) if 0 <= at < event.count else span
