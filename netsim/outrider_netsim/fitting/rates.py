"""Measure the rate of a delivery trace. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.fitting.round_trips import CHANCE, normal_scores
from outrider_netsim.profiles.traces import OPPORTUNITY_BYTES, DeliveryTrace

Array = NDArray[np.float64]

LEAST_STEP_S = 0.1
STEP_OPPORTUNITIES = 20  # fewer a step, and their number says more of chance than of the rate
MIN_STEPS = 100
STALL_S = 0.1  # without an opportunity; on a slow link ten times the usual gap
QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class RateFigures:
    """What is said of a recorded trace."""

    step_s: float
    mean_bps: float
    deviation_bps: float
    quantiles_bps: tuple[float, ...]  # at QUANTILES, of the rates in steps
    coherence_s: float  # in which the correlation of the rate falls to 1/e; 0 where neighbors show none
    stalls: int  # gaps of STALL_S or longer
    stall_share: float  # of the time
    longest_stall_s: float


def _step_of(trace: DeliveryTrace) -> float:
    """Return the length of the steps that this trace's rate is measured in. Raises ProfileError if it is too short."""
    duration_s = trace.period_ms / 1000
    step_s = max(LEAST_STEP_S, STEP_OPPORTUNITIES * duration_s / len(trace.at_ms))
    if duration_s < MIN_STEPS * step_s:
        raise ProfileError(
            f"{trace.name}: {len(trace.at_ms)} opportunities in {duration_s:g} s: need at least "
            f"{MIN_STEPS * STEP_OPPORTUNITIES} in {MIN_STEPS * LEAST_STEP_S:g} s"
        )
    return step_s


def rate_figures(trace: DeliveryTrace) -> RateFigures:
    """Raises ProfileError if the trace is too short."""
    step_s = _step_of(trace)
    rates = _rates_bps(trace, step_s)
    gaps_s = np.diff(np.array(trace.at_ms, dtype=np.float64), prepend=0.0) / 1000
    stalls = gaps_s[gaps_s >= max(STALL_S, 10 * float(gaps_s.mean()))]
    return RateFigures(
        step_s,
        float(rates.mean()),
        float(rates.std()),
        tuple(float(q) for q in np.quantile(rates, QUANTILES)),
        _coherence_s(normal_scores(rates), step_s),
        len(stalls),
        float(stalls.sum()) * 1000 / trace.period_ms,
        float(stalls.max(initial=0.0)),
    )


def _rates_bps(trace: DeliveryTrace, step_s: float) -> Array:
    """Return the rate in each step; what is left over at the end of the trace is not counted."""
    steps = int(trace.period_ms / (1000 * step_s) + 1e-9)
    counts, _ = np.histogram(trace.at_ms, bins=steps, range=(0, steps * step_s * 1000))
    return counts * (OPPORTUNITY_BYTES * 8 / step_s)


def _coherence_s(values: Array, step_s: float) -> float:
    """Return where the correlation of `values` with later ones falls to 1/e, between two steps in proportion."""
    away = values - values.mean()
    power = float(away @ away)
    before = 1.0
    for lag in range(1, len(values) // 2):
        now = float(away[:-lag] @ away[lag:]) / power if power else 0.0
        if lag == 1 and now < CHANCE / math.sqrt(len(values)):
            return 0.0
        if now < 1 / math.e:
            return step_s * (lag - 1 + (before - 1 / math.e) / (before - now))
        before = now
    return step_s * (len(values) // 2)
