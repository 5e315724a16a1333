"""One answer as its client sees it: arrivals, the verdicts that brought them, and the packets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from outrider_bench.network.link_endpoint import LinkTraffic
from outrider_client.async_client import AsyncClient
from outrider_client.core.events import Committed, Cycle, Event, Finished, RolledBack, Unverified, Verified
from outrider_client.core.statistics import Statistics
from outrider_proto.frames import Draft, Verdict


@dataclass(frozen=True, slots=True)
class Arrival:
    """Tokens that arrived together, `at_ms` after the question."""

    at_ms: float
    tokens: int


@dataclass(frozen=True, slots=True)
class VerdictRecord:
    """One verdict: the tokens that it committed, and the server's time.

    `drafted`: it judged a draft, of the client's or the server's; the prompt's own verdict did not.
    """

    tokens: int
    drafted: bool
    verify_ms: float
    draft_ms: float


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """An answer whose first arrival and first reply are the prompt's.

    `traffic` is None without a link. `held_tokens` of the prompt the session had kept from the one before; `warm_ms` is
    the time to the first token when the prompt was asked again, None where it was not.
    """

    token_ids: tuple[int, ...]
    arrivals: tuple[Arrival, ...]
    replies: tuple[VerdictRecord, ...]
    statistics: Statistics
    traffic: LinkTraffic | None = None
    held_tokens: int = 0
    warm_ms: float | None = None

    @property
    def ttft_ms(self) -> float:
        return self.arrivals[0].at_ms

    @property
    def decode_ms(self) -> float:
        """Time from the first arrival to the last one."""
        return self.arrivals[-1].at_ms - self.arrivals[0].at_ms

    @property
    def decoded_tokens(self) -> int:
        """Tokens after the first arrival, which pays for the prompt."""
        return sum(arrival.tokens for arrival in self.arrivals[1:])

    def ms_to_token(self, number: int) -> float | None:
        """Return the ms from the question to token `number`, counted from 1; None in a shorter answer."""
        tokens = 0
        for arrival in self.arrivals:
            tokens += arrival.tokens
            if tokens >= number:
                return arrival.at_ms
        return None

    @property
    def drafts(self) -> bool:
        """True if a verdict judged a draft."""
        return any(reply.drafted for reply in self.replies[1:])

    def judging(self, drafts: bool) -> list[VerdictRecord]:
        """Return the verdicts that tau counts: on drafts, or with `drafts` False every pass that gave tokens."""
        return [reply for reply in self.replies[1:] if (reply.drafted if drafts else reply.tokens)]


@dataclass(frozen=True, slots=True)
class AnswerSlot:
    """An answer's place in a scenario: `place` counts the prompts of a run, `order` the ways that answer one."""

    run: int
    place: int
    way: str
    order: int


@dataclass(slots=True)
class AnswerRecorder:
    """Takes events with their times in ms after the question."""

    token_ids: list[int] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)
    _arrivals: list[Arrival] = field(default_factory=list)
    _cycles: list[tuple[Cycle, bool]] = field(default_factory=list)  # and whether it followed the prompt's own
    _tokens_by_cycle: list[int] = field(default_factory=list)  # tokens committed by each of them
    _joins: bool = False  # path and bonus of one verdict are two events and one arrival

    def take(self, event: Event, at_ms: float) -> None:
        match event:
            case Cycle():
                self._cycles.append((event, bool(self.token_ids)))
                self._tokens_by_cycle.append(0)
                self._joins = False
            case Committed(tokens=new):
                self._append(new, at_ms)
                self._count_tokens(len(new))
                self._joins = True
            case Unverified(tokens=new):
                self._joins = False
                self._append(new, at_ms)
            case Verified(count=count):
                self._count_tokens(count)
            case RolledBack(count=count):
                self._drop(count)
            case Finished(statistics=statistics):
                self.statistics = statistics
            case _:
                pass

    def recorded(self, traffic: LinkTraffic | None) -> TimedAnswer:
        replies = (
            _reply(cycle.verdict, count, later and _judges_a_draft(cycle))
            for (cycle, later), count in zip(self._cycles, self._tokens_by_cycle, strict=True)
        )
        return TimedAnswer(tuple(self.token_ids), tuple(self._arrivals), tuple(replies), self.statistics, traffic)

    def _append(self, tokens: Sequence[int], at_ms: float) -> None:
        self.token_ids += tokens
        # Path and bonus of one verdict are two events, but arrive together.
        joined = self._arrivals.pop() if self._joins else Arrival(at_ms, 0)
        self._arrivals.append(replace(joined, tokens=joined.tokens + len(tokens)))

    def _count_tokens(self, count: int) -> None:
        if self._tokens_by_cycle:
            self._tokens_by_cycle[-1] += count

    def _drop(self, count: int) -> None:
        del self.token_ids[len(self.token_ids) - count :]
        while count:
            last = self._arrivals.pop()
            if last.tokens > count:
                self._arrivals.append(Arrival(last.at_ms, last.tokens - count))
            count -= min(count, last.tokens)


async def ask(
    client: AsyncClient,
    prompt: Sequence[int],
    traffic: Callable[[], LinkTraffic | None],
    clock: Callable[[], float],
    **overrides: Any,  # Any: ClientConfig's fields
) -> TimedAnswer:
    """Ask `prompt` and record the answer; `clock` counts seconds."""
    held_tokens = _num_common(client.tokens, prompt)
    recorder, before, asked_at = AnswerRecorder(), traffic(), clock()
    async with aclosing(client.generate(prompt, **overrides)) as events:
        async for event in events:
            recorder.take(event, (clock() - asked_at) * 1e3)
    after = traffic()
    passed = None if before is None or after is None else after.since(before)
    return replace(recorder.recorded(passed), held_tokens=held_tokens)


def _num_common(held: Sequence[int], prompt: Sequence[int]) -> int:
    pairs = zip(held, prompt, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _judges_a_draft(cycle: Cycle) -> bool:
    request = cycle.request
    return not cycle.verdict.stale and (isinstance(request, Draft) or request.tree is not None)


def _reply(verdict: Verdict, tokens: int, drafted: bool) -> VerdictRecord:
    return VerdictRecord(tokens, drafted, verdict.verify_us / 1e3, verdict.draft_us / 1e3)
