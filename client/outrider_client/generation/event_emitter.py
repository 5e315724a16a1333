"""What happens to an answer, told as events and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from outrider_client.core.events import Committed, Event, Finished, RolledBack, Unverified, Verified
from outrider_client.core.statistics import Meter, Statistics
from outrider_client.text.logprobs import TokenLogprobs
from outrider_client.text.placeholder_restorer import TokenText
from outrider_client.text.transcript import Change, FinishReason, Origin


class EventEmitter:
    """Of one answer. `emit` is called with every event, in order; `now` is in the meter's seconds."""

    def __init__(self, emit: Callable[[Event], None], text: TokenText, meter: Meter) -> None:
        self._emit = emit
        self._text = text
        self._meter = meter

    def tell(self, event: Event) -> None:
        """One that stands for itself."""
        self._emit(event)

    def wrote(self, first: int, token: int, now: float) -> None:
        """The drafter alone."""
        self._meter.tokens_arrived(now)
        self._emit(Unverified(first, (token,), self._text.push((token,))))

    def changed(self, change: Change, prompt_len: int, now: float) -> None:
        """By a verdict: events in the order in which it changed something."""
        first = change.first - prompt_len
        after = first + change.confirmed
        logprobs = iter(change.logprobs)
        if change.confirmed:
            self._emit(Verified(first, change.confirmed, tuple(islice(logprobs, change.confirmed))))
        if change.dropped:
            self._meter.rolled_back(change.dropped)
            self._emit(RolledBack(after, change.dropped, self._text.roll_back(after)))
        self._append(after, change.accepted, "accepted", logprobs, now)
        self._append(after + len(change.accepted), change.bonus, change.bonus_origin, logprobs, now)

    def finished(self, reason: FinishReason, statistics: Statistics) -> None:
        self._emit(Finished(reason, statistics, self._text.finish()))

    def _append(
        self, first: int, tokens: tuple[int, ...], origin: Origin, logprobs: Iterator[TokenLogprobs], now: float
    ) -> None:
        if tokens:
            self._meter.tokens_arrived(now)
            told = tuple(islice(logprobs, len(tokens)))
            self._emit(Committed(first, tokens, origin, self._text.push(tokens), told))
