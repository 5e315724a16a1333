"""Metrics of one variant's answers to all prompts of one run. Pure.

    question      first tokens                                  last tokens
       |---- ttft ----|---- verdict ---- verdict --- ... --- verdict --|
                       \\____________________ T _______________________/

n tokens arrive in T; n and T are summed over the answers.

    tokens_per_second        = n / T
    answer_tokens_per_second = all tokens / time from the question to the last of them
    mean_acceptance_length   = tau = tokens per verdict on a draft, bonus included
    eta                      = n / T * (R + T_v) / tau
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from outrider_bench.core.stats import Number, mean, median, percentiles, ratio, weighted_mean
from outrider_bench.network.link_endpoint import LinkTraffic
from outrider_bench.network.timed_answer import TimedAnswer

Metric = Number | Mapping[str, float]
LATER_TOKEN = 32  # tokens


@dataclass(frozen=True, slots=True)
class VariantMetrics:
    """The metrics of one variant in one run; None where one does not apply.

    What is counted per answer is a mean, like all times but those to a token. `inter_token_ms` shares the time before
    an arrival among its tokens; `pause_ms` is that time undivided, which is what a reader sees. `bytes_*` are frames;
    `link_bytes_*` and packets are all that the link carried.
    """

    tokens_per_second: Number
    answer_tokens_per_second: Number
    mean_acceptance_length: Number
    eta: Number
    rtt_ms: Number
    verify_ms: Number  # T_v, of a pass of the target; mean
    ttft_ms: Number  # median, the prompt new to the server
    ttft_warm_ms: Number  # median, the prompt asked again in the same session
    held_tokens: Number  # of a prompt, kept from the one before; mean
    to_32nd_ms: Number  # token, median over the answers that have so many
    inter_token_ms: Mapping[str, float]
    pause_ms: Mapping[str, float]
    bytes_up_per_token: Number
    bytes_down_per_token: Number
    link_bytes_up_per_token: Number
    link_bytes_down_per_token: Number
    packets_up_per_reply: Number
    packets_per_reply: Number
    target_calls: Number  # an answer
    hit_rate: Number
    stale_tokens: Number
    stale_drafts: Number  # an answer
    wasted_nodes: Number  # an answer
    split_ms: Mapping[str, float]  # a token
    exchange_ms: Number  # a draft's round trip
    level_ms: Number  # of a draft that was waited for
    ahead_level_ms: Number  # of drafts ahead, all outcomes side by side
    queue_ms: Number  # a reply
    server_busy_ms_per_token: Number  # in passes of the target, and of a drafter on the server
    tokens: Number  # an answer
    unverified: Number  # of all answers
    outages: Number  # of all answers


def variant_metrics(records: Sequence[TimedAnswer], rtt_ms: float, *, bounded: bool) -> VariantMetrics:
    """Compute the metrics; `bounded` variants wait for the link's round trip and have an eta."""
    # The target alone drafts nothing: each of its passes counts as a verdict.
    drafts = any(record.drafts for record in records)
    judging = [reply for record in records for reply in record.judging(drafts)]
    later = [reply for record in records for reply in record.replies[1:]]
    decoded_tokens = sum(record.decoded_tokens for record in records)
    speed = ratio(decoded_tokens * 1e3, sum(record.decode_ms for record in records))
    tau = ratio(sum(reply.tokens for reply in judging), len(judging))
    verify_ms = mean(reply.verify_ms for reply in later if reply.verify_ms)  # replies without a pass do not count
    eta = None
    if bounded and speed is not None and tau and verify_ms is not None:
        eta = speed / 1e3 * (rtt_ms + verify_ms) / tau
    tokens = sum(len(record.token_ids) for record in records)
    replies = sum(len(record.replies) for record in records)
    traffic = [record.traffic for record in records if record.traffic is not None]
    statistics_of_answers = [record.statistics for record in records]
    return VariantMetrics(
        tokens_per_second=speed,
        answer_tokens_per_second=ratio(tokens * 1e3, sum(record.arrivals[-1].at_ms for record in records)),
        mean_acceptance_length=tau,
        eta=eta,
        rtt_ms=rtt_ms,
        verify_ms=verify_ms,
        ttft_ms=statistics.median(record.ttft_ms for record in records),
        ttft_warm_ms=median(record.warm_ms for record in records),
        held_tokens=mean(record.held_tokens for record in records),
        to_32nd_ms=median(record.ms_to_token(LATER_TOKEN) for record in records),
        inter_token_ms=percentiles(_inter_token_ms(records)),
        pause_ms=percentiles(gap for record in records for gap, _ in _gaps(record)),
        bytes_up_per_token=ratio(sum(one.bytes_up for one in statistics_of_answers), tokens),
        bytes_down_per_token=ratio(sum(one.bytes_down for one in statistics_of_answers), tokens),
        **_of_link(traffic, tokens, replies),
        target_calls=mean(one.target_calls for one in statistics_of_answers),
        hit_rate=weighted_mean((one.hit_rate, one.forecasts) for one in statistics_of_answers),
        stale_tokens=weighted_mean((record.statistics.stale_tokens, _num_drafted(record)) for record in records),
        stale_drafts=mean(one.stale_drafts for one in statistics_of_answers),
        wasted_nodes=mean(one.wasted_nodes for one in statistics_of_answers),
        split_ms=_split(records),
        exchange_ms=_drafted_mean((record.statistics.exchange_ms, record) for record in records),
        level_ms=_drafted_mean((record.statistics.level_ms, record) for record in records),
        ahead_level_ms=_drafted_mean((record.statistics.ahead_level_ms, record) for record in records),
        queue_ms=ratio(sum(one.split_ms.queue * one.new_tokens for one in statistics_of_answers), replies),
        server_busy_ms_per_token=ratio(sum(reply.verify_ms + reply.draft_ms for reply in later), decoded_tokens),
        tokens=tokens / len(records),
        unverified=sum(one.unverified for one in statistics_of_answers),
        outages=sum(one.outages for one in statistics_of_answers),
    )


def medians(runs: Sequence[VariantMetrics]) -> dict[str, Metric]:
    """Return the median of every metric over the runs in which it applies."""
    figures = [asdict(run) for run in runs]
    return {name: _median([run[name] for run in figures]) for name in figures[0]}


def _drafted_mean(values: Iterable[tuple[float, TimedAnswer]]) -> Number:
    """Average over the drafts judged; values of 0 mean that the variant has no such time."""
    return weighted_mean((value, _num_drafted(record)) for value, record in values if value)


def _num_drafted(record: TimedAnswer) -> int:
    return sum(reply.drafted for reply in record.replies)


def _gaps(record: TimedAnswer) -> list[tuple[float, int]]:
    """Return the time before every arrival but the first, and its tokens."""
    return [(later.at_ms - earlier.at_ms, later.tokens) for earlier, later in pairwise(record.arrivals)]


def _inter_token_ms(records: Sequence[TimedAnswer]) -> Iterable[float]:
    for record in records:
        for gap, tokens in _gaps(record):
            yield from [gap / tokens] * tokens


def _of_link(traffic: Sequence[LinkTraffic], tokens: int, replies: int) -> dict[str, Number]:
    figures = (
        ("link_bytes_up_per_token", "bytes_up", tokens),
        ("link_bytes_down_per_token", "bytes_down", tokens),
        ("packets_up_per_reply", "packets_up", replies),
        ("packets_per_reply", "packets_down", replies),
    )
    return {
        name: ratio(sum(getattr(one, what) for one in traffic), per) if traffic else None for name, what, per in figures
    }


def _split(records: Sequence[TimedAnswer]) -> dict[str, float]:
    """Return where a token's time went, averaged over all tokens, drafting on the server included."""
    splits = [(asdict(record.statistics.split_ms), len(record.token_ids)) for record in records]
    tokens = max(sum(count for _, count in splits), 1)
    drafting_ms = sum(reply.draft_ms for record in records for reply in record.replies)
    split = {part: sum(split[part] * count for split, count in splits) / tokens for part in splits[0][0]}
    return split | {"server_draft": drafting_ms / tokens}


def _median(values: Sequence[Metric]) -> Metric:
    nested = [value for value in values if isinstance(value, Mapping)]
    if nested:
        return {key: statistics.median(one[key] for one in nested if key in one) for key in nested[0]}
    numbers = [value for value in values if isinstance(value, int | float)]
    return statistics.median(numbers) if numbers else None
