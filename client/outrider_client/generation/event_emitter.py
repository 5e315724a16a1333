"""Turns changes of an answer into events with their text, and counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from outrider_client.core.events import Committed, Event, Finished, RolledBack, Unverified, Verified
from outrider_client.core.statistics import Meter, Statistics
from outrider_client.text.logprobs import TokenLogprobs
from outrider_client.text.placeholder_restorer import PlaceholderRestorer
from outrider_client.text.transcript import Change, FinishReason, Origin


class EventEmitter:
    """The events of one answer. `emit` is called with each in order; `now` is in the meter's seconds."""

    def __init__(self, emit: Callable[[Event], None], text: PlaceholderRestorer, meter: Meter) -> None:
        self.emit = emit
        self._text = text
        self._meter = meter

    def emit_unverified(self, first: int, token: int, now: float) -> None:
        """Emit a token that the drafter wrote offline."""
        self._meter.tokens_arrived(now)
        self.emit(Unverified(first, (token,), self._text.push((token,))))

    def emit_distrusted(self, tokens: Sequence[int]) -> None:
        """Take the whole answer back, and emit its tokens as unverified ones."""
        if tokens:
            self.emit(RolledBack(0, len(tokens), self._text.roll_back(0)))
        for first, token in enumerate(tokens):
            self.emit(Unverified(first, (token,), self._text.push((token,))))

    def emit_change(self, change: Change, prompt_len: int, now: float) -> None:
        """Emit the effect of a verdict."""
        # Verified, then RolledBack, then Committed: a caller that applies the events one by one must never hold a text
        # that was not the answer at some moment. The detokenizer needs the same order.
        first = change.first - prompt_len
        after = first + change.confirmed
        logprobs = iter(change.logprobs)
        if change.confirmed:
            self.emit(Verified(first, change.confirmed, tuple(islice(logprobs, change.confirmed))))
        if change.dropped:
            self._meter.rolled_back += change.dropped
            self.emit(RolledBack(after, change.dropped, self._text.roll_back(after)))
        self._append(after, change.accepted, "accepted", logprobs, now)
        self._append(after + len(change.accepted), change.bonus, change.bonus_origin, logprobs, now)

    def emit_finished(self, reason: FinishReason, statistics: Statistics) -> None:
        self.emit(Finished(reason, statistics, self._text.finish()))

    def _append(
        self, first: int, tokens: tuple[int, ...], origin: Origin, logprobs: Iterator[TokenLogprobs], now: float
    ) -> None:
        if tokens:
            self._meter.tokens_arrived(now)
            of_tokens = tuple(islice(logprobs, len(tokens)))
            self.emit(Committed(first, tokens, origin, self._text.push(tokens), of_tokens))
