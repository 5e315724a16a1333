"""One answer as its client sees it: arrivals, the verdicts that brought them, and the packets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

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

    `traffic` is None without a link.
    """

    token_ids: tuple[int, ...]
    arrivals: tuple[Arrival, ...]
    replies: tuple[VerdictRecord, ...]
    statistics: Statistics
    traffic: LinkTraffic | None = None


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
    client: AsyncClient, prompt: Sequence[int], traffic: Callable[[], LinkTraffic | None], clock: Callable[[], float]
) -> TimedAnswer:
    """Ask `prompt` and record the answer; `clock` counts seconds."""
    recorder, before, asked_at = AnswerRecorder(), traffic(), clock()
    async with aclosing(client.generate(prompt)) as events:
        async for event in events:
            recorder.take(event, (clock() - asked_at) * 1e3)
    after = traffic()
    return recorder.recorded(None if before is None or after is None else after.since(before))


def _judges_a_draft(cycle: Cycle) -> bool:
    request = cycle.request
    return not cycle.verdict.stale and (isinstance(request, Draft) or request.tree is not None)


def _reply(verdict: Verdict, tokens: int, drafted: bool) -> VerdictRecord:
    return VerdictRecord(tokens, drafted, verdict.verify_us / 1e3, verdict.draft_us / 1e3)
