"""What of an answer may go out to an app, and when: text that no stop can still claim, and, for apps that cannot take
text back, only such as stands. Pure: events in, pieces out.

    manner   text that the drafter writes while the link is out
    hold     waits until the target has judged it, or the link stays away and the answer ends
    keep     goes out at once and stands, whatever the target would have said (on_reconnect="keep")
    stream   goes out at once, and is taken back where the target says something else
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from outrider_client.core.answer_text import AnswerText, Span
from outrider_client.core.events import Event, Finished, RolledBack, Verified
from outrider_client.text.logprobs import TokenLogprobs
from outrider_client.text.transcript import Origin

UnverifiedPolicy = Literal["hold", "keep", "stream"]


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Text of one origin, from character `offset` of the answer on.

    `rollback_to`: first cut the answer to so many characters. `verified_to`: what went out from `offset` to there has
    been verified.
    """

    text: str
    origin: Origin
    offset: int
    rollback_to: int | None = None
    verified_to: int | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()


class TextStream:
    """One answer's."""

    def __init__(self, stops: StopStrings, manner: UnverifiedPolicy) -> None:
        self.stopped = False  # by a stop in text that stands: no more is wanted
        self._stops = stops
        self._manner = manner
        self._written = AnswerText()
        self._text = ""
        self._starts: list[int] = []  # where each span's text begins
        self._sent = 0  # characters
        self._searched = 0  # characters without a stop
        self._told = 0  # spans whose log probabilities have gone out
        self._end: int | None = None  # after the stop
        self._is_over = False

    def take(self, event: Event) -> list[TextChunk]:
        """What goes out now."""
        if self.stopped:
            return []
        self._written.take(event)
        self._is_over = isinstance(event, Finished)
        match event:
            case RolledBack():
                self._shrink()
            case Verified() if self._manner == "stream":
                return [*self._notices(event), *self._flow()]
            case _:
                self._grow()
        return self._flow()

    @property
    def has_stopped(self) -> bool:
        """Whether a stop ended the text, also one in its unverified end."""
        return self._end is not None

    @property
    def last_token(self) -> int | None:
        return next((span.tokens[-1] for span in reversed(self._spans) if span.tokens), None)

    def num_tokens(self, decode: Callable[[Sequence[int]], str]) -> int:
        """Tokens up to the stop that ended the text, or all."""
        if self._end is None:
            return sum(len(span.tokens) for span in self._spans)
        within = bisect_right(self._starts, self._end - 1) - 1
        before = [token for span in self._spans[:within] for token in span.tokens]
        return len(before) + _num_tokens_for(
            self._end - self._starts[within], before[-4:], self._spans[within].tokens, decode
        )

    @property
    def _spans(self) -> list[Span]:
        return self._written.spans

    @property
    def _settled(self) -> int:
        """So many characters can no longer be taken back."""
        if self._manner == "keep" or self._is_over:
            return len(self._text)
        settled = self._written.num_settled
        return self._starts[settled] if settled < len(self._starts) else len(self._text)

    def _grow(self) -> None:
        for span in self._spans[len(self._starts) :]:
            self._starts.append(len(self._text))
            self._text += span.text

    def _shrink(self) -> None:
        kept = len(self._spans)
        if kept < len(self._starts):
            self._text = self._text[: self._starts[kept]]
            del self._starts[kept:]
        self._searched = min(self._searched, len(self._text))
        self._told = min(self._told, kept)

    def _flow(self) -> list[TextChunk]:
        limit = self._limit()
        if limit < self._sent:
            self._sent = limit
            return [TextChunk("", "corrected", limit, rollback_to=limit)]
        return list(self._pieces(limit))

    def _limit(self) -> int:
        """Text before this character may go out; notes a stop."""
        settled = self._settled
        ready = self._text if self._manner != "hold" else self._text[:settled]
        found = self._stops.find(ready, self._searched)
        self._end = None if found is None else found.end
        if found is not None:
            self.stopped = found.end <= settled
            return found.start
        self._searched = len(ready)
        return len(ready) if self._is_over else len(ready) - self._stops.num_held(ready)

    def _pieces(self, limit: int) -> Iterator[TextChunk]:
        while self._sent < limit:
            at = bisect_right(self._starts, self._sent) - 1
            span, start = self._spans[at], self._starts[at]
            end = min(limit, start + len(span.text))
            told = self._logprobs(at + 1) if end == start + len(span.text) else ()
            yield TextChunk(self._text[self._sent : end], span.origin, self._sent, logprobs=told)
            self._sent = end

    def _logprobs(self, num_spans: int) -> tuple[TokenLogprobs, ...]:
        """Those of the spans up to there that have not gone out."""
        told = tuple(one for span in self._spans[self._told : num_spans] for one in span.logprobs)
        self._told = num_spans
        return told

    def _notices(self, event: Verified) -> Iterator[TextChunk]:
        """That text which has gone out is verified."""
        for span, start in zip(self._spans, self._starts, strict=True):
            end = min(start + len(span.text), self._sent)
            if event.first <= span.first < event.first + event.count and start < end:
                yield TextChunk("", "accepted", start, verified_to=end, logprobs=span.logprobs)


def _num_tokens_for(
    num_chars: int, before: Sequence[int], tokens: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> int:
    """So many of `tokens` after `before` bring out the first `num_chars` of their text."""
    known = len(decode(before))
    enough = (n for n in range(1, len(tokens)) if len(decode([*before, *tokens[:n]])) - known >= num_chars)
    return next(enough, len(tokens))


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop text, from its first character to after its last."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StopStrings:
    """None is empty."""

    texts: tuple[str, ...] = ()

    def find(self, text: str, first: int = 0) -> StopMatch | None:
        """The stop that ends first after the first characters, which hold the end of none."""
        ends = [StopMatch(at, at + len(stop)) for stop in self.texts if (at := self._find(text, stop, first)) >= 0]
        return min(ends, key=lambda found: (found.end, found.start), default=None)

    def num_held(self, text: str) -> int:
        """So many characters at the end could still begin a stop."""
        return max((_overlap(text, stop) for stop in self.texts), default=0)

    @staticmethod
    def _find(text: str, stop: str, first: int) -> int:
        return text.find(stop, max(first - len(stop) + 1, 0))


def _overlap(text: str, stop: str) -> int:
    longest = min(len(stop) - 1, len(text))
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
