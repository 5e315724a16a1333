"""Means, medians and percentiles that are None for no values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

import numpy as np

Number = float | None
_PERCENTILES = (50, 95, 99)
_Z95 = 1.959964  # of the normal distribution


def ratio(above: float, below: float) -> Number:
    return above / below if below else None


def mean(values: Iterable[float]) -> Number:
    given = list(values)
    return statistics.fmean(given) if given else None


def weighted_mean(pairs: Iterable[tuple[float, int]]) -> Number:
    """Return the mean of values by their weights; None where all weights are 0."""
    given = list(pairs)
    return ratio(sum(value * weight for value, weight in given), sum(weight for _, weight in given))


def median(values: Iterable[Number]) -> Number:
    """Return the median of the values that are not None."""
    given = [value for value in values if value is not None]
    return statistics.median(given) if given else None


def median_of_medians(runs: Iterable[Iterable[float]]) -> Number:
    """Return the median over runs of the medians over prompts; NaN values are left out."""
    return median(median(value for value in run if not math.isnan(value)) for run in runs)


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """Return p50, p95 and p99, or an empty dictionary for no values."""
    given = list(values)
    return {f"p{percent}": float(np.percentile(given, percent)) for percent in _PERCENTILES} if given else {}


def share_interval(count: int, total: int) -> tuple[float, float] | None:
    """Return Wilson's 95 % interval of a share, which unlike a bootstrap's has a width at 0 and 1; None of nothing."""
    if not total:
        return None
    share, z2 = count / total, _Z95**2
    center, reach = share + z2 / (2 * total), _Z95 * math.sqrt((share * (1 - share) + z2 / (4 * total)) / total)
    # Rounding would put the ends of 0 and of all a little outside.
    return max((center - reach) / (1 + z2 / total), 0.0), min((center + reach) / (1 + z2 / total), 1.0)
