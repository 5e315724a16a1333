"""Metrics of a load run from the clients' counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from outrider_bench.load.measures.counters import ClientCounters
from outrider_bench.load.measures.histogram import Histogram
from outrider_bench.load.measures.process_use import ProcessUse

ENOUGH_VERDICTS = 100  # of a client, for a 99th percentile that means something


@dataclass(frozen=True, slots=True)
class LatencyPercentiles:
    """Percentiles in ms."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, histogram: Histogram) -> LatencyPercentiles:
        return cls(*(histogram.percentile_ms(percent) for percent in (50, 95, 99)))


@dataclass(frozen=True, slots=True)
class Fairness:
    """Evenness of the service across clients.

    `p99_ratio`: the largest by the smallest of the clients' 99th percentiles of verdict latency, over the `num_judged`
    clients with enough verdicts; None for fewer than two. `jain`: Jain's index of tokens per second (Jain, Chiu and
    Hawe, DEC-TR-301, 1984): 1 where all get the same, 1/n where one gets all.
    """

    p99_ratio: float | None
    num_judged: int
    jain: float

    @classmethod
    def of(cls, client_counters: Sequence[ClientCounters]) -> Fairness:
        on_verdict = [
            counters.verdict_s.percentile_ms(99)
            for counters in client_counters
            if counters.verdict_s.count >= ENOUGH_VERDICTS
        ]
        ratio = max(on_verdict) / min(on_verdict) if len(on_verdict) > 1 else None
        return cls(ratio, len(on_verdict), jain_index([counters.tokens for counters in client_counters]))


def jain_index(shares: Sequence[float]) -> float:
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """Processor seconds and memory before and after, of the server or of all client processes."""

    cpu_s: float
    rss_before_bytes: int
    rss_after_bytes: int

    @classmethod
    def between(cls, before: ProcessUse, after: ProcessUse) -> ResourceUse:
        return cls(after.cpu_s - before.cpu_s, before.rss_bytes, after.rss_bytes)


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The metrics of one number of clients.

    `verdict` is the latency of drafts, `first_verdict` that of prompts, as the client sees it; `queue` and `verify` are
    parts of both, as the server reports them; `request` begins when the request is due, which in an open loop may be
    before the client is free. `verifies_per_s` counts all verdicts.
    """

    num_clients: int
    seconds: float
    verifies_per_s: float
    tokens_per_s: float
    mean_acceptance_length: float
    nodes_per_draft: float
    verdict: LatencyPercentiles
    first_verdict: LatencyPercentiles
    queue: LatencyPercentiles
    verify: LatencyPercentiles
    first_token: LatencyPercentiles
    request: LatencyPercentiles
    fairness: Fairness
    server: ResourceUse
    clients: ResourceUse
    answers: int
    checked: int
    wrong: int
    strays: int
    lost: int
    outages: int
    errors: dict[str, int]
    examples: tuple[str, ...]
    batches: dict[str, float] | None = None  # the server's own metrics of its passes

    @property
    def is_right(self) -> bool:
        return not (self.wrong or self.strays or self.lost)


def load_run(
    client_counters: Sequence[ClientCounters],
    seconds: float,
    server: ResourceUse,
    clients: ResourceUse,
    batches: dict[str, float] | None = None,
) -> LoadRun:
    drafts = sum(counters.drafts for counters in client_counters)

    def percentiles(name: str) -> LatencyPercentiles:
        return LatencyPercentiles.of(Histogram.merged(getattr(counters, name) for counters in client_counters))

    def total(name: str) -> int:
        return sum(getattr(counters, name) for counters in client_counters)

    return LoadRun(
        num_clients=len(client_counters),
        seconds=seconds,
        verifies_per_s=sum(counters.verdicts for counters in client_counters) / seconds,
        tokens_per_s=sum(counters.tokens for counters in client_counters) / seconds,
        mean_acceptance_length=1 + sum(counters.accepted for counters in client_counters) / drafts if drafts else 0.0,
        nodes_per_draft=sum(counters.nodes for counters in client_counters) / drafts if drafts else 0.0,
        fairness=Fairness.of(client_counters),
        server=server,
        clients=clients,
        errors=dict(sum((counters.errors for counters in client_counters), Counter())),
        examples=tuple(example for counters in client_counters for example in counters.examples),
        batches=batches,
        verdict=percentiles("verdict_s"),
        first_verdict=percentiles("first_verdict_s"),
        queue=percentiles("queue_s"),
        verify=percentiles("verify_s"),
        first_token=percentiles("first_token_s"),
        request=percentiles("request_s"),
        answers=total("answers"),
        checked=total("checked"),
        wrong=total("wrong"),
        strays=total("strays"),
        lost=total("lost"),
        outages=total("outages"),
    )
