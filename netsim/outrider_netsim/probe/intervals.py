"""Confidence intervals for a probe's measurements, with the standard library alone (a bare guest has no more).

share      Clopper-Pearson: exact, never too narrow. Its ends are quantiles of beta distributions:
           low = B(a/2; k, n-k+1), high = B(1-a/2; k+1, n-k). k and n need not be whole: correlated
           trials count as fewer independent ones, so both shrink by the same factor.
mean       normal approximation, from the sample's deviation.
deviation  normal approximation, from the sample's fourth moment: var(s) = (m4 - s^4) / (4 n s^2), for any distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed interval."""

    low: float
    high: float

    def meets(self, low: float, high: float) -> bool:
        return self.low <= high and low <= self.high


def share_interval(successes: float, trials: float, confidence: float) -> Interval:
    """Return the Clopper-Pearson interval of the probability behind `successes` of `trials`."""
    if not 0 <= successes <= trials or trials <= 0:
        raise ValueError(f"successes={successes:g} of trials={trials:g}: need 0 <= successes <= trials > 0")
    tail = (1 - confidence) / 2
    failures = trials - successes
    low = _solve(lambda p: incomplete_beta(successes, failures + 1, p), tail) if successes else 0.0
    high = _solve(lambda p: incomplete_beta(successes + 1, failures, p), 1 - tail) if failures else 1.0
    return Interval(low, high)


def mean_interval(values: Sequence[float], confidence: float, effect: float = 1.0) -> Interval:
    """Return the interval of the mean behind `values`, of which `effect` count as one independent one.

    Unbounded with fewer than two.
    """
    if len(values) < 2:
        return Interval(-math.inf, math.inf)
    mean = fmean(values)
    return _around(mean, math.sqrt(effect * central_moment(values, 2) / (len(values) - 1)), confidence)


def deviation_interval(values: Sequence[float], confidence: float, effect: float = 1.0) -> Interval:
    """Return the interval of the standard deviation behind `values`, of which `effect` count as one independent one.

    Unbounded with fewer than two.
    """
    if len(values) < 2:
        return Interval(0.0, math.inf)
    variance = central_moment(values, 2)
    if not variance:
        return Interval(0.0, 0.0)
    error = math.sqrt(effect * max(0.0, central_moment(values, 4) - variance**2) / (4 * variance * len(values)))
    return _around(math.sqrt(variance), error, confidence)


def central_moment(values: Sequence[float], order: int) -> float:
    mean = fmean(values)
    return fmean((value - mean) ** order for value in values)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, the CDF of B(a, b), at `x` (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    # Beyond the mode the fraction converges slowly; the mirrored one does not.
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a * _beta_fraction(a, b, x)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate 1/(1 + d1/(1 + d2/(1 + ...))) from the front (Lentz's algorithm)."""
    c, d, value = 1.0, 0.0, 1.0
    for step in range(1, 10_000):
        coefficient = _beta_coefficient(a, b, x, step)
        d = 1 / _not_zero(1 + coefficient * d)
        c = _not_zero(1 + coefficient / c)
        value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return 1 / value


def _beta_coefficient(a: float, b: float, x: float, step: int) -> float:
    m = step // 2
    if step % 2:
        return -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
    return m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))


def _not_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY


def _solve(rising: Callable[[float], float], level: float) -> float:
    """Return where `rising`, which goes from 0 at 0 to 1 at 1, reaches `level`."""
    low, high = 0.0, 1.0
    # Bisection, 80 times: far below the resolution of a float, and safe where Newton's method leaves [0, 1].
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < level else (low, middle)
    return high


def _around(value: float, error: float, confidence: float) -> Interval:
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * error
    return Interval(value - reach, value + reach)
