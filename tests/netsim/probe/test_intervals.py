"""Confidence intervals against scipy, and against their promised coverage."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc
from scipy.stats import binomtest

from outrider_netsim.probe.intervals import (
    Interval,
    deviation_interval,
    incomplete_beta,
    mean_interval,
    share_interval,
)

SHAPES = st.floats(0.05, 30_000)


@given(SHAPES, SHAPES, st.floats(0, 1))
def test_the_incomplete_beta_function_is_scipys(a, b, x):
    assert incomplete_beta(a, b, x) == pytest.approx(betainc(a, b, x), abs=1e-9)


@given(st.integers(1, 30_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.9, 0.99]))
def test_a_share_has_the_exact_interval(counts, confidence):
    lost, sent = counts
    mine, theirs = share_interval(lost, sent, confidence), binomtest(lost, sent).proportion_ci(confidence, "exact")
    assert (mine.low, mine.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 3), (4, 3), (0, 0)])
def test_impossible_counts_are_refused(successes, trials):
    with pytest.raises(ValueError, match="need 0 <= successes <= trials"):
        share_interval(successes, trials, 0.99)


def test_fewer_packets_for_the_same_share_say_less():
    narrow, wide = share_interval(20, 20_000, 0.99), share_interval(5, 5_000, 0.99)
    assert wide.low < narrow.low < 0.001 < narrow.high < wide.high


@pytest.mark.parametrize(
    "draw", [lambda rng: rng.gauss(20, 10), lambda rng: rng.expovariate(0.1), random.Random.random]
)
def test_intervals_hold_the_truth_as_often_as_they_say(draw):
    """95 % intervals over 400 samples hold it 380 times, give or take 22; normal theory costs a little."""
    rng = random.Random(1)
    truth = [draw(rng) for _ in range(200_000)]
    mean = math.fsum(truth) / len(truth)
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in truth) / len(truth))
    means = deviations = 0
    for _ in range(400):
        sample = [draw(rng) for _ in range(500)]
        means += mean_interval(sample, 0.95).meets(mean, mean)
        deviations += deviation_interval(sample, 0.95).meets(deviation, deviation)
    assert means > 355
    assert deviations > 350


def test_one_value_says_nothing_and_equal_ones_everything():
    assert mean_interval([3.0], 0.99) == Interval(-math.inf, math.inf)
    assert deviation_interval([3.0], 0.99) == Interval(0.0, math.inf)
    assert mean_interval([3.0] * 9, 0.99) == Interval(3.0, 3.0)
    assert deviation_interval([3.0] * 9, 0.99) == Interval(0.0, 0.0)


def test_intervals_meet_at_their_ends():
    assert Interval(1, 2).meets(2, 3)
    assert Interval(1, 2).meets(0, 9)
    assert not Interval(1, 2).meets(2.1, 3)
