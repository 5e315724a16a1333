"""Metrics of a load run from the clients' counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider_bench.core.processes import ProcessUse
from outrider_bench.load.clients.counters import ClientCounters, Histogram

ENOUGH_VERDICTS = 100  # of a client, for a 99th percentile that means something


@dataclass(frozen=True, slots=True)
class LatencyPercentiles:
    """Percentiles in ms."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, client_counters: Sequence[ClientCounters], name: str) -> LatencyPercentiles:
        """Compute those of all clients' times of that name."""
        merged = Histogram.merged(getattr(counters, name) for counters in client_counters)
        return cls(*(merged.percentile_ms(percent) for percent in (50, 95, 99)))


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
        judged = [one.verdict_s.percentile_ms(99) for one in client_counters if one.verdict_s.count >= ENOUGH_VERDICTS]
        ratio = max(judged) / min(judged) if len(judged) > 1 else None
        return cls(ratio, len(judged), jain_index([counters.tokens for counters in client_counters]))


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
    """The metrics of one number of clients."""

    num_clients: int
    seconds: float
    verifies_per_s: float  # all verdicts
    tokens_per_s: float
    mean_acceptance_length: float
    nodes_per_draft: float
    verdict: LatencyPercentiles  # of drafts, as the client sees it
    first_verdict: LatencyPercentiles  # of prompts
    queue: LatencyPercentiles  # a part of both, as the server reports it
    verify: LatencyPercentiles  # the same
    first_token: LatencyPercentiles
    request: LatencyPercentiles  # since it was due, which in an open loop may be before the client is free
    fairness: Fairness
    server: ResourceUse
    clients: ResourceUse
    answers: int
    checked: int
    wrong: int
    strays: int
    lost: int
    outages: int
    errors: Mapping[str, int]
    examples: Sequence[str]
    batches: Mapping[str, float] | None = None  # the server's own metrics of its passes

    @property
    def is_right(self) -> bool:
        return not (self.wrong or self.strays or self.lost)


_TIMES = ("verdict", "first_verdict", "queue", "verify", "first_token", "request")
_TOTALS = ("answers", "checked", "wrong", "strays", "lost", "outages")


def load_run(
    client_counters: Sequence[ClientCounters],
    seconds: float,
    server: ResourceUse,
    clients: ResourceUse,
    batches: Mapping[str, float] | None = None,
) -> LoadRun:
    def total(name: str) -> int:
        return sum(getattr(counters, name) for counters in client_counters)

    drafts = total("drafts")
    # Any: of the field's type
    by_name: dict[str, Any] = {name: LatencyPercentiles.of(client_counters, f"{name}_s") for name in _TIMES}
    by_name |= {name: total(name) for name in _TOTALS}
    return LoadRun(
        **by_name,
        num_clients=len(client_counters),
        seconds=seconds,
        verifies_per_s=total("verdicts") / seconds,
        tokens_per_s=total("tokens") / seconds,
        mean_acceptance_length=1 + total("accepted") / drafts if drafts else 0.0,
        nodes_per_draft=total("nodes") / drafts if drafts else 0.0,
        fairness=Fairness.of(client_counters),
        server=server,
        clients=clients,
        errors=sum((counters.errors for counters in client_counters), Counter()),
        examples=[example for counters in client_counters for example in counters.examples],
        batches=batches,
    )
