"""Decides which text of an answer may be sent to an app, and when. Pure: events in, text chunks out.

Text that could be the beginning of a stop string is held back. What happens to text that the drafter writes during an
outage is the app's choice:

    policy   unverified text
    hold     is sent once the target has verified it
    keep     is sent at once and final, whatever the target would have written (on_reconnect="keep")
    stream   is sent at once, and taken back if the target writes something else
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from outrider_client.core.answer_text import AnswerText, Span
from outrider_client.core.events import Event, Finished, RolledBack, Verified
from outrider_client.core.gateway_config import UnverifiedPolicy
from outrider_client.text.logprobs import TokenLogprobs
from outrider_client.text.stop_strings import StopStrings
from outrider_client.text.transcript import Origin


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Text of one origin that begins at character `offset` of the answer.

    `rollback_to`: cut the answer to this many characters first. `verified_to`: the text sent from `offset` to there is
    now verified.
    """

    text: str
    origin: Origin
    offset: int
    rollback_to: int | None = None
    verified_to: int | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()


class TextStream:
    """The text of one answer."""

    def __init__(self, stops: StopStrings, policy: UnverifiedPolicy) -> None:
        self.stopped = False  # by a stop string in final text: the rest is not needed
        self._stops = stops
        self._policy = policy
        self._written = AnswerText()
        self._text = ""
        self._starts: list[int] = []  # characters before each span
        self._sent = 0  # characters
        self._searched = 0  # characters known to hold no stop string
        self._num_logprob_spans = 0  # spans whose log probabilities were sent
        self._end: int | None = None  # of the stop string, in characters
        self._is_over = False

    def take(self, event: Event) -> list[TextChunk]:
        """Apply an event; return what may be sent now."""
        if self.stopped:
            return []
        self._written.take(event)
        self._is_over = isinstance(event, Finished)
        match event:
            case RolledBack():
                self._shrink()
            case Verified() if self._policy == "stream":
                return [*self._verified(event), *self._flow()]
            case _:
                self._grow()
        return self._flow()

    @property
    def has_stopped(self) -> bool:
        """True if a stop string ended the text, even in its unverified end."""
        return self._end is not None

    @property
    def last_token(self) -> int | None:
        return next((span.tokens[-1] for span in reversed(self._spans) if span.tokens), None)

    def num_tokens(self, decode: Callable[[Sequence[int]], str]) -> int:
        """Number of tokens up to the stop string that ended the text, or of all."""
        if self._end is None:
            return sum(len(span.tokens) for span in self._spans)
        # The stop string may end inside a span of several tokens: count those of it that reach the end. Decoding them
        # after a few tokens of context keeps the blanks and the half characters that a tokenizer merges.
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
        """Number of characters that can no longer be taken back."""
        if self._policy == "keep" or self._is_over:
            return len(self._text)
        settled = self._written.num_settled
        return self._starts[settled] if settled < len(self._starts) else len(self._text)

    def _grow(self) -> None:
        for span in self._spans[len(self._starts) :]:
            self._starts.append(len(self._text))
            self._text += span.text

    def _shrink(self) -> None:
        num_spans = len(self._spans)
        if num_spans < len(self._starts):
            self._text = self._text[: self._starts[num_spans]]
            del self._starts[num_spans:]
        self._searched = min(self._searched, len(self._text))
        self._num_logprob_spans = min(self._num_logprob_spans, num_spans)

    def _flow(self) -> list[TextChunk]:
        limit = self._limit()
        # After a rollback, text that was sent can turn out to begin a stop string: take it back, too.
        if limit < self._sent:
            self._sent = limit
            return [TextChunk("", "corrected", limit, rollback_to=limit)]
        return list(self._chunks(limit))

    def _limit(self) -> int:
        """The character up to which text may be sent. Remembers a stop string that is found."""
        settled = self._settled
        ready = self._text if self._policy != "hold" else self._text[:settled]
        found = self._stops.find(ready, self._searched)
        self._end = None if found is None else found.end
        if found is not None:
            self.stopped = found.end <= settled
            return found.start
        self._searched = len(ready)
        return len(ready) if self._is_over else len(ready) - self._stops.num_held(ready)

    def _chunks(self, limit: int) -> Iterator[TextChunk]:
        while self._sent < limit:
            at = bisect_right(self._starts, self._sent) - 1
            span, start = self._spans[at], self._starts[at]
            end = min(limit, start + len(span.text))
            logprobs = self._logprobs(at + 1) if end == start + len(span.text) else ()
            yield TextChunk(self._text[self._sent : end], span.origin, self._sent, logprobs=logprobs)
            self._sent = end

    def _logprobs(self, num_spans: int) -> tuple[TokenLogprobs, ...]:
        """The log probabilities of spans before `num_spans` that were not sent yet."""
        unsent = tuple(one for span in self._spans[self._num_logprob_spans : num_spans] for one in span.logprobs)
        self._num_logprob_spans = num_spans
        return unsent

    def _verified(self, event: Verified) -> Iterator[TextChunk]:
        """Tell the app which text it already has is now verified."""
        for span, start in zip(self._spans, self._starts, strict=True):
            end = min(start + len(span.text), self._sent)
            if event.first <= span.first < event.first + event.count and start < end:
                yield TextChunk("", "accepted", start, verified_to=end, logprobs=span.logprobs)


def _num_tokens_for(
    num_chars: int, before: Sequence[int], tokens: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> int:
    """Number of `tokens`, after `before`, whose text reaches `num_chars` characters."""
    known = len(decode(before))
    enough = (n for n in range(1, len(tokens)) if len(decode([*before, *tokens[:n]])) - known >= num_chars)
    return next(enough, len(tokens))
