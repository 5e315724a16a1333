"""What the clients counted, as figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from outrider_bench.load.measures.histogram import Histogram
from outrider_bench.load.measures.process_use import ProcessUse
from outrider_bench.load.measures.tally import Tally

ENOUGH_VERDICTS = 100  # of a client, for a 99th percentile that means something


@dataclass(frozen=True, slots=True)
class Percentiles:
    """In ms."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, histogram: Histogram) -> Percentiles:
        return cls(*(histogram.percentile_ms(percent) for percent in (50, 95, 99)))


@dataclass(frozen=True, slots=True)
class Fairness:
    """`p99_ratio`: the largest of the clients' 99th percentiles of verdict latency by the smallest, over the
    `num_judged` clients with enough verdicts; None with fewer than two. `jain`: Jain's index of tokens a second
    (Jain, Chiu and Hawe, DEC-TR-301, 1984): 1 where all get the same, 1/n where one gets all."""

    p99_ratio: float | None
    num_judged: int
    jain: float

    @classmethod
    def of(cls, tallies: Sequence[Tally]) -> Fairness:
        judged = [tally.verdict_s.percentile_ms(99) for tally in tallies if tally.verdict_s.count >= ENOUGH_VERDICTS]
        ratio = max(judged) / min(judged) if len(judged) > 1 else None
        return cls(ratio, len(judged), jain_index([tally.tokens for tally in tallies]))


def jain_index(shares: Sequence[float]) -> float:
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


@dataclass(frozen=True, slots=True)
class Used:
    """Of the server or of all clients' processes together: processor seconds meanwhile, memory before and after."""

    cpu_s: float
    rss_before_bytes: int
    rss_after_bytes: int

    @classmethod
    def between(cls, before: ProcessUse, after: ProcessUse) -> Used:
        return cls(after.cpu_s - before.cpu_s, before.rss_bytes, after.rss_bytes)


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One number of clients. `verdict` latency is that of drafts, `first_verdict` that of prompts, as the client sees
    it; `queue` and `verify` are parts of both, as the server tells them; `request` begins where the question came, in
    an open loop perhaps before the client was free. `verifies_per_s` counts all verdicts."""

    num_clients: int
    seconds: float
    verifies_per_s: float
    tokens_per_s: float
    mean_acceptance_length: float
    nodes_per_draft: float
    verdict: Percentiles
    first_verdict: Percentiles
    queue: Percentiles
    verify: Percentiles
    first_token: Percentiles
    request: Percentiles
    fairness: Fairness
    server: Used
    clients: Used
    answers: int
    checked: int
    wrong: int
    strays: int
    lost: int
    outages: int
    errors: dict[str, int]
    examples: tuple[str, ...]
    batches: dict[str, float] | None = None  # what the server's own metrics say of its passes

    @property
    def is_right(self) -> bool:
        return not (self.wrong or self.strays or self.lost)


def load_run(
    tallies: Sequence[Tally], seconds: float, server: Used, clients: Used, batches: dict[str, float] | None = None
) -> LoadRun:
    drafts = sum(tally.drafts for tally in tallies)

    def percentiles(name: str) -> Percentiles:
        return Percentiles.of(Histogram.merged(getattr(tally, name) for tally in tallies))

    def total(name: str) -> int:
        return sum(getattr(tally, name) for tally in tallies)

    return LoadRun(
        num_clients=len(tallies),
        seconds=seconds,
        verifies_per_s=sum(tally.verdicts for tally in tallies) / seconds,
        tokens_per_s=sum(tally.tokens for tally in tallies) / seconds,
        mean_acceptance_length=1 + sum(tally.accepted for tally in tallies) / drafts if drafts else 0.0,
        nodes_per_draft=sum(tally.nodes for tally in tallies) / drafts if drafts else 0.0,
        fairness=Fairness.of(tallies),
        server=server,
        clients=clients,
        errors=dict(sum((tally.errors for tally in tallies), Counter())),
        examples=tuple(example for tally in tallies for example in tally.examples),
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
