"""Summarize a trace in a few figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import assert_never

from outrider_netsim.profiles.traces import OPPORTUNITY_BYTES, ConditionTrace, DeliveryTrace, Trace


@dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, mean and maximum of a quantity over a trace's time."""

    least: float
    mean: float
    most: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a trace; None where it has no such column.

    Rates of delivery traces are per whole second; a partial last second is left out.
    """

    entries: int
    duration_s: float
    rate_bps: Spread | None = None
    delay_ms: Spread | None = None
    loss: Spread | None = None
    longest_gap_s: float | None = None  # between opportunities, also across the repetition


def summary(trace: Trace) -> Summary:
    match trace:
        case DeliveryTrace():
            return _of_deliveries(trace)
        case ConditionTrace():
            rate, delay, loss = (_weighted(column, trace) for column in (trace.rate_bps, trace.delay_ms, trace.loss))
            return Summary(len(trace.times_s), trace.period_s, rate, delay, loss)
        case _:
            assert_never(trace)


def _of_deliveries(trace: DeliveryTrace) -> Summary:
    per_second = [0] * max(1, trace.period_ms // 1000)
    for at in trace.at_ms:
        if at // 1000 < len(per_second):
            per_second[at // 1000] += 1
    bits = OPPORTUNITY_BYTES * 8
    mean = trace.mean_rate_bps
    least, most = (f(per_second) * bits for f in (min, max)) if trace.period_ms >= 1000 else (mean, mean)
    gaps_ms = chain(trace.at_ms[:1], (after - before for before, after in pairwise(trace.at_ms)))
    return Summary(
        len(trace.at_ms), trace.period_ms / 1000, Spread(least, mean, most), longest_gap_s=max(gaps_ms) / 1000
    )


def _weighted(column: Sequence[float] | None, trace: ConditionTrace) -> Spread | None:
    if column is None:
        return None
    spans = (after - before for before, after in pairwise(chain(trace.times_s, [trace.period_s])))
    mean = sum(value * span for value, span in zip(column, spans, strict=True)) / trace.period_s
    return Spread(min(column), mean, max(column))
