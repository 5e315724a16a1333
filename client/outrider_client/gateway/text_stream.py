"""Decides which text of an answer may be sent to an app, and when. Pure: events in, text chunks out.

Text that could be the beginning of a stop string is held back. What happens to text that the drafter writes during an
outage is the app's choice:

    policy   unverified text
    hold     is sent once the target has verified it
    keep     is sent at once and final, whatever the target would have written (on_reconnect="keep")
    stream   is sent at once, and taken back if the target writes something else
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outrider_client.core.answer_text import AnswerText, Span
from outrider_client.core.events import Event, Finished, RolledBack, Verified
from outrider_client.core.gateway_config import UnverifiedPolicy
from outrider_client.text.detokenizer import Decode, Detokenizer
from outrider_client.text.logprobs import TokenLogprobs
from outrider_client.text.stop_strings import StopStrings
from outrider_client.text.transcript import Origin

_Logprobs = tuple[tuple[TokenLogprobs, int], ...]  # with the character at which each token begins


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
    logprobs: _Logprobs = ()


def text_of(chunks: Sequence[TextChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


class TextStream:
    """The text of one answer."""

    def __init__(self, stops: StopStrings, policy: UnverifiedPolicy, decode: Decode, *, has_logprobs: bool) -> None:
        self._has_logprobs = has_logprobs
        self._decode = decode
        self.stopped = False  # by a stop string in final text: the rest is not needed
        self._stops = stops
        self._policy = policy
        self._written = AnswerText()
        self._text = ""
        self._starts: list[int] = []  # characters before each span
        self._sent = 0  # characters
        self._searched = 0  # characters known to hold no stop string
        self._pieces = Detokenizer(decode)  # token by token, whatever came together
        self._num_placed = 0  # spans whose tokens it has
        self._ends: list[int] = []  # see _token_ends
        self._num_held = 0  # tokens behind those
        self._num_with_logprobs = 0  # tokens whose log probabilities were sent, or will be once they are verified
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

    @property
    def num_tokens(self) -> int:
        """Number of tokens up to the stop string that ended the text, or of all."""
        all_tokens = self._written.token_ids
        if self._end is None:
            return len(all_tokens)
        ends = self._token_ends()
        last = bisect_left(ends, self._end)
        return bisect_right(ends, ends[last]) if last < len(ends) else len(all_tokens)

    @property
    def unrestored(self) -> str:
        """The text up to a stop string as the target wrote it, with placeholders."""
        text = self._decode(self._written.token_ids)
        stop = self._stops.find(text, 0)
        return text if stop is None else text[: stop.start]

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
        if num_spans < self._num_placed:
            self._num_placed, num_tokens = num_spans, len(self._written.token_ids)
            self._pieces.roll_back(num_tokens)
            del self._ends[bisect_right(self._ends, len(self._text)) :]  # what is held again, too
            self._num_held = num_tokens - len(self._ends)
            self._num_with_logprobs = min(self._num_with_logprobs, len(self._ends))

    def _flow(self) -> list[TextChunk]:
        limit = self._limit()
        # After a rollback, text that was sent can turn out to begin a stop string: take it back, too.
        if limit < self._sent:
            self._sent = limit
            self._num_with_logprobs = min(self._num_with_logprobs, bisect_right(self._ends, limit))
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
            yield TextChunk(self._text[self._sent : end], span.origin, self._sent, logprobs=self._logprobs(end))
            self._sent = end

    def _logprobs(self, end: int) -> _Logprobs:
        """Return the log probabilities not sent yet of tokens that end at `end` or before."""
        if not self._has_logprobs:
            return ()
        first, self._num_with_logprobs = self._num_with_logprobs, bisect_right(self._token_ends(), end)
        return self._logprobs_of(range(first, self._num_with_logprobs))

    def _logprobs_of(self, tokens: range) -> _Logprobs:
        known, ends = self._written.logprobs, self._ends
        begins = {token: bisect_left(ends, ends[token]) for token in tokens}
        return tuple((one, ends[begins[token] - 1] if begins[token] else 0)
                     for token in tokens if (one := known[token]) is not None)  # fmt: skip

    def _token_ends(self) -> list[int]:
        """Return the character at which each token ends, as far as that is known: pieces of one end where it does."""
        for span, start in zip(self._spans[self._num_placed :], self._starts[self._num_placed :], strict=True):
            known = len(self._pieces.text)
            for token in span.tokens:
                self._num_held += 1
                if self._pieces.push((token,)):
                    self._place(min(start + len(self._pieces.text) - known, start + len(span.text)))
        self._num_placed = len(self._spans)
        if self._is_over:
            self._place(len(self._text))
        return self._ends

    def _place(self, end: int) -> None:
        self._ends += [end] * self._num_held
        self._num_held = 0

    def _verified(self, event: Verified) -> Iterator[TextChunk]:
        """Tell the app which text it already has is now verified."""
        for span, start in zip(self._spans, self._starts, strict=True):
            end = min(start + len(span.text), self._sent)
            if event.first <= span.first < event.first + event.count and start < end:
                ends = self._token_ends() if self._has_logprobs else []
                begin = max(bisect_left(ends, start + len(span.text)), event.first)
                tokens = range(begin, bisect_right(ends, end))
                yield TextChunk("", "accepted", start, verified_to=end, logprobs=self._logprobs_of(tokens))
