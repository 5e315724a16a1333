"""Measure the rate of a delivery trace, and make another trace like it. Pure.

    z(t + 1) = rho z(t) + sqrt(1 - rho^2) N(0, 1), rho = exp(-step / coherence)     the k-th largest z of the made trace
                                                                                    gets the k-th largest recorded rate

The made trace has exactly the recorded rates in steps of `step_s`, in a random order that keeps the time in which their
correlation falls to 1/e. What else a recording has, such as a day's course or the place of a stall, it has not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.fitting.round_trips import CHANCE, normal_scores
from outrider_netsim.profiles.synthetic import deliveries_of
from outrider_netsim.profiles.traces import OPPORTUNITY_BYTES, DeliveryTrace

Array = NDArray[np.float64]

LEAST_STEP_S = 0.1
STEP_OPPORTUNITIES = 20  # fewer a step, and their number says more of chance than of the rate
MIN_STEPS = 100
STALL_S = 0.1  # without an opportunity; on a slow link ten times the usual gap
QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class RateFigures:
    """What a recorded and a made trace are compared by."""

    step_s: float
    mean_bps: float
    deviation_bps: float
    quantiles_bps: tuple[float, ...]  # at QUANTILES, of the rates in steps
    coherence_s: float  # in which the correlation of the rate falls to 1/e; 0 where neighbors show none
    stalls: int  # gaps of STALL_S or longer
    stall_share: float  # of the time
    longest_stall_s: float


def step_of(trace: DeliveryTrace) -> float:
    """Return the length of the steps that this trace's rate is measured in. Raises ProfileError if it is too short."""
    duration_s = trace.period_ms / 1000
    step_s = max(LEAST_STEP_S, STEP_OPPORTUNITIES * duration_s / len(trace.at_ms))
    if duration_s < MIN_STEPS * step_s:
        raise ProfileError(
            f"{trace.name}: {len(trace.at_ms)} opportunities in {duration_s:g} s: need at least "
            f"{MIN_STEPS * STEP_OPPORTUNITIES} in {MIN_STEPS * LEAST_STEP_S:g} s"
        )
    return step_s


def rate_figures(trace: DeliveryTrace, step_s: float) -> RateFigures:
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


def trace_like(trace: DeliveryTrace, step_s: float, seed: int) -> DeliveryTrace:
    """Return a made trace as long as this one, to the step. The seed fixes all of it."""
    rates = _rates_bps(trace, step_s)
    coherence_s = _coherence_s(normal_scores(rates), step_s)
    rho = math.exp(-step_s / coherence_s) if coherence_s else 0.0
    scores = np.random.default_rng(seed).standard_normal(len(rates))
    for n in range(1, len(scores)):
        scores[n] = rho * scores[n - 1] + math.sqrt(1 - rho * rho) * scores[n]
    ordered = np.empty(len(rates))
    ordered[np.argsort(scores)] = np.sort(rates)
    return deliveries_of(ordered, step_s, len(rates) * step_s)


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
