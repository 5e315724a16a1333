"""Delay: the distribution of the draws, and the order of packets."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from driving import numbered, pushed_at
from scipy import stats

from outrider_netsim.impairments.delay import Delay
from outrider_netsim.impairments.sink import Sink
from outrider_netsim.profiles.profile import Direction

FALSE_ALARM = 1e-3  # of each statistical test, were its seed not fixed
JITTERY = Direction(delay_ms=10, jitter_ms=10, distribution="normal", base_ms=2)


def delay(direction, seed=1):
    return Delay(Sink(), direction, random.Random(seed))


def test_the_nth_packet_takes_the_nth_draw():
    sparse = pushed_at(delay(JITTERY), [float(n) for n in range(50)])
    dense = pushed_at(delay(JITTERY), [n / 1000 for n in range(50)])
    by_number = {n: when - n / 1000 for when, n in dense}
    assert [when - n for when, n in sparse] == pytest.approx([by_number[n] for n in range(50)])


def test_jitter_reorders_and_in_order_does_not():
    times = [n / 1000 for n in range(200)]
    reordered = pushed_at(delay(JITTERY), times)
    assert [n for _, n in reordered] != list(range(200))
    bearer = pushed_at(delay(Direction(10, 10, "normal", base_ms=2, in_order=True)), times)
    assert [n for _, n in bearer] == list(range(200))
    own = {n: when for when, n in reordered}
    assert [when for when, _ in bearer] == [max(own[m] for m in range(n + 1)) for n in range(200)]


def correlated_z(direction, times):
    """The normal variables behind a link's delays."""
    out = sorted((n, when) for when, n in pushed_at(delay(direction), times))
    return np.array([(when - times[n] - 0.1) * 100 for n, when in out])


STEADY = Direction(delay_ms=100, jitter_ms=10, distribution="normal")


@pytest.mark.parametrize(
    ("direction", "spacing_s", "expected"),
    [
        (replace(STEADY, correlation=0.6), 1.0, 0.6),
        (replace(STEADY, coherence_ms=50), 0.02, math.exp(-0.4)),
        (replace(STEADY, coherence_ms=50), 1.0, 0.0),
    ],
)
def test_delays_are_correlated_by_packet_or_by_time(direction, spacing_s, expected):
    z = correlated_z(direction, [n * spacing_s for n in range(20_000)])
    found = np.corrcoef(z[:-1], z[1:])[0, 1]
    assert abs(math.atanh(found) - math.atanh(expected)) < 4.9 * 1.5 / 20_000**0.5  # one false alarm in a million


@pytest.mark.parametrize("distribution", ["normal", "pareto", "uniform", "paretonormal"])
def test_correlation_leaves_the_distribution_as_it_is(distribution):
    """Delays far apart in time are independent, so a test for independent draws judges them."""
    direction = Direction(40, 20, distribution, base_ms=5, correlation=0.9)
    out = sorted((n, when) for when, n in pushed_at(delay(direction), [float(n) for n in range(200_000)]))
    drawn_ms = [1000 * (when - n) for n, when in out if n % 100 == 0]  # 0.9 to the power of 100 is 3e-5
    shares = np.array([(rank + 0.5) / 2000 for rank in range(2000)])
    expected = np.array([1000 * direction.quantile_s(u) for u in shares])
    assert stats.ks_2samp(drawn_ms, np.repeat(expected, 20)).pvalue > FALSE_ALARM


def test_ties_keep_their_order():
    assert pushed_at(delay(Direction(delay_ms=250)), [0.5] * 20) == [(0.75, n) for n in range(20)]


def test_a_change_to_in_order_holds_packets_behind_those_under_way():
    link = delay(Direction(delay_ms=250))
    link.push(numbered(0), 0.0)
    link.set(Direction(in_order=True))
    link.push(numbered(1), 0.125)
    assert [p.data for p in link.pop_ready(0.125)] == []
    assert [p.data for p in link.pop_ready(0.25)] == [b"0", b"1"]
