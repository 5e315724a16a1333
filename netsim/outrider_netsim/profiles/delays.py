"""The distribution of a packet's delay: max(0, X), where X has a given mean, deviation and shape. Pure math, in ms.

    normal      X = m + s N(0, 1)
    uniform     X = m + s U(-sqrt 3, sqrt 3)
    pareto      X = m + s (min(P, 4.5) - 1.47..) / 0.61..     P(P > x) = x^-3 for x >= 1
    paretonormal  a quarter of a normal and three quarters of a Pareto variable, of the same rank
    a table     X = m + s T, T drawn from the equally likely values of a file (distribution_table.py)
    constant    X = m, and s is 0

Pareto is the shape of the kernel's own "pareto" table (iproute2's generator): a Pareto variable with exponent 3, whose
largest 1.1 % are set to 4.5, where the table's 16-bit entries end. The generator then shifts and scales by the moments
of the uncut variable, and by its variance in place of its deviation, so netem's real deviation is 0.82 of the requested
one and its mean a little low. Here the shape is standardized by its own moments, so mean and deviation are exact. The
same holds for "paretonormal", whose table is made of the two others' entries; it is a table here too, of 4096 values.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist, fmean, pstdev
from typing import Literal, assert_never, get_args

from outrider_netsim.profiles.distribution_table import DistributionTable

NamedDistribution = Literal["normal", "pareto", "paretonormal", "uniform", "constant"]
Distribution = NamedDistribution | DistributionTable
DISTRIBUTIONS: tuple[NamedDistribution, ...] = get_args(NamedDistribution)

PARETO_END = 4.5  # x where (x - 1.5) * 4/3, in units of the table, reaches its 4 deviations
PARETO_MEAN = 1.5 - 1 / (2 * PARETO_END**2)  # 1 + integral of x^-3 from 1 to the end
PARETO_DEVIATION = math.sqrt(3 - 2 / PARETO_END - PARETO_MEAN**2)
_NORMAL = NormalDist()
_HALF_WIDTH = math.sqrt(3)  # of a uniform variable with deviation 1
_TABLE_ENTRIES = 4096


def quantile(distribution: Distribution, mean: float, deviation: float, u: float) -> float:
    """Return the inverse CDF of max(0, X): the delay that a share `u` of packets does not exceed."""
    return max(0.0, mean + deviation * _standard_quantile(distribution, u))


def _standard_quantile(distribution: Distribution, u: float) -> float:
    match distribution:
        case "normal":
            return _NORMAL.inv_cdf(u)
        case "uniform":
            return _HALF_WIDTH * (2 * u - 1)
        case "pareto":
            return (_pareto_quantile(u) - PARETO_MEAN) / PARETO_DEVIATION
        case "paretonormal":
            return _pareto_normal().quantile(u)
        case "constant":
            return 0.0
        case DistributionTable():
            return distribution.quantile(u)
        case _:
            assert_never(distribution)


def _pareto_quantile(u: float) -> float:
    return min(math.pow(1 - u, -1 / 3), PARETO_END)


@cache
def _pareto_normal() -> DistributionTable:
    """Return iproute2's mixture (netem/paretonormal.c), standardized: a quarter and three quarters of two tables."""
    shares = [(i + 0.5) / _TABLE_ENTRIES for i in range(_TABLE_ENTRIES)]
    # Pareto's table has 4/3 of its variable less 1.5.
    mixed = [_NORMAL.inv_cdf(u) / 4 + _pareto_quantile(u) - 1.5 for u in shares]
    middle, deviation = fmean(mixed), pstdev(mixed)
    return DistributionTable("paretonormal", tuple((x - middle) / deviation for x in mixed))


def moments(distribution: Distribution, mean: float, deviation: float) -> tuple[float, float]:
    """Return the exact mean and standard deviation of max(0, X)."""
    first, second = _cut_moments(distribution, mean, deviation) if deviation else (mean, mean * mean)
    # Rounding can make the difference slightly negative.
    return first, math.sqrt(max(0.0, second - first * first))


def _cut_moments(distribution: Distribution, mean: float, deviation: float) -> tuple[float, float]:
    match distribution:
        case "normal":
            return _normal_moments(mean, deviation)
        case "uniform":
            return _uniform_moments(mean - _HALF_WIDTH * deviation, mean + _HALF_WIDTH * deviation)
        case "pareto":
            return _pareto_moments(mean, deviation)
        case "paretonormal":
            return _table_moments(_pareto_normal(), mean, deviation)
        case "constant":
            return mean, mean * mean
        case DistributionTable():
            return _table_moments(distribution, mean, deviation)
        case _:
            assert_never(distribution)


def _normal_moments(mean: float, deviation: float) -> tuple[float, float]:
    density, above = _NORMAL.pdf(mean / deviation), _NORMAL.cdf(mean / deviation)
    first = mean * above + deviation * density
    return first, (mean * mean + deviation * deviation) * above + mean * deviation * density


def _uniform_moments(least: float, most: float) -> tuple[float, float]:
    start = max(0.0, least)
    width = most - least
    return (most**2 - start**2) / (2 * width), (most**3 - start**3) / (3 * width)


def _pareto_moments(mean: float, deviation: float) -> tuple[float, float]:
    scale = deviation / PARETO_DEVIATION
    # The value of P at which X is 0.
    zero = PARETO_MEAN - mean / scale
    if zero <= 1:
        return mean, mean * mean + deviation * deviation
    # Integral of x^-3 from there to the end.
    tail = (zero**-2 - PARETO_END**-2) / 2
    return scale * tail, 2 * scale * scale * (1 / zero - 1 / PARETO_END - zero * tail)


def _table_moments(table: DistributionTable, mean: float, deviation: float) -> tuple[float, float]:
    share, first, second = table.moments_above(-mean / deviation)
    return (
        mean * share + deviation * first,
        mean * mean * share + 2 * mean * deviation * first + deviation * deviation * second,
    )
