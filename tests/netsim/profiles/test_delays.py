"""The delay distribution: closed forms against draws, quadrature and netem's table."""

import math
import random
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.profiles import delays
from outrider_netsim.profiles.distribution_table import DistributionTable
from outrider_netsim.profiles.profile import Direction

# Twelve values, most of them early, as a file could hold; neither their mean nor their deviation is standardized.
TABLE = DistributionTable("spiky.dist", tuple(n / 8192 for n in (*(-6000, -5500, -5000) * 3, 2000, 20_000, 30_000)))
TABLE = DistributionTable(TABLE.name, tuple(sorted(TABLE.values)))
STANDARD = ["normal", "uniform", "pareto", "paretonormal"]
JITTERY = [*STANDARD, TABLE]


@given(distribution=st.sampled_from(JITTERY), mean=st.floats(0, 1000), deviation=st.floats(0.01, 1000))
def test_moments_agree_with_the_quantiles(distribution, mean, deviation):
    n = 20_000
    values = [delays.quantile(distribution, mean, deviation, (i + 0.5) / n) for i in range(0, n)]
    first, second = delays.moments(distribution, mean, deviation)
    assert np.mean(values) == pytest.approx(first, abs=2e-3 * deviation)
    assert np.std(values) == pytest.approx(second, abs=5e-3 * deviation)


@given(
    distribution=st.sampled_from([*delays.DISTRIBUTIONS, TABLE]),
    delay_ms=st.floats(0, 60_000),
    jitter_ms=st.floats(0, 60_000),
    u=st.floats(0, 1),
    v=st.floats(0, 1),
)
def test_quantiles_rise_and_never_fall_below_the_base(distribution, delay_ms, jitter_ms, u, v):
    jitter_ms = 0 if distribution == "constant" else jitter_ms
    direction = Direction(delay_ms, jitter_ms, distribution, base_ms=3)
    low, high = sorted((u, v))
    assert 0.003 <= direction.quantile_s(low) <= direction.quantile_s(high) < math.inf


def test_one_draw_takes_one_number():
    one, other = random.Random(4), random.Random(4)
    for distribution in JITTERY:
        Direction(10, 5, distribution).delay_s(one)
        other.random()
    assert one.random() == other.random()


def test_pareto_is_netems_table_standardised():
    """4096 entries, from the generator's formula as documented in delays.py: a straight line takes one to the other."""
    shares = np.arange(65536, 0, -16) / 65536
    table = np.minimum((shares ** (-1 / 3) - 1.5) * 4 / 3 * 8192, 32767) / 8192
    ours = [delays.quantile("pareto", 100, 1, 1 - share) - 100 for share in shares]
    slope, start = np.polyfit(ours, table, 1)
    assert np.max(np.abs(slope * np.array(ours) + start - table)) < 2 / 8192
    assert slope == pytest.approx(0.82, abs=0.005)  # the deviation that netem really has for each one asked for
    assert start == pytest.approx(-0.033, abs=0.002)


def test_paretonormal_is_netems_table_standardised():
    """iproute2's generator: a quarter of the normal table's entry and three quarters of the Pareto table's."""
    shares = (np.arange(4096) + 0.5) / 4096
    normal = np.array([NormalDist().inv_cdf(u) for u in shares])
    pareto = np.minimum(((1 - shares) ** (-1 / 3) - 1.5) * 4 / 3, 4)
    table = 0.25 * normal + 0.75 * pareto
    ours = np.array([delays.quantile("paretonormal", 100, 1, u) - 100 for u in shares])
    assert ours == pytest.approx((table - table.mean()) / table.std(), abs=1e-9)


def test_a_table_is_used_as_it_is():
    """As netem does: mean + jitter * entry / 8192, with the table's own mean and deviation."""
    delays_ms = 100 + 10 * np.array(TABLE.values)
    assert delays.moments(TABLE, 100, 10) == pytest.approx((delays_ms.mean(), delays_ms.std()))
    assert [delays.quantile(TABLE, 100, 10, (i + 0.5) / 12) for i in range(12)] == pytest.approx(list(delays_ms))
