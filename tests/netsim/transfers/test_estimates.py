"""Medians, their intervals and ratios."""

import random
from statistics import median

import pytest

from outrider_netsim.transfers.estimates import TransferEstimate, TransferRatio, bootstrapped_medians, quantile


def gaussian(count, mean, seed):
    chance = random.Random(seed)
    return [chance.gauss(mean, 10) for _ in range(count)]


def test_an_estimate_says_what_its_samples_are():
    estimate = TransferEstimate.of([[1.0, 2.0, 3.0], [4.0, 100.0]])
    assert (estimate.median, estimate.mean, estimate.count) == (3.0, 22.0, 5)
    assert estimate.p95 == pytest.approx(80.8)
    assert estimate.interval.low <= estimate.median <= estimate.interval.high


@pytest.mark.parametrize("nothing", [[], [[]], [[], []]])
def test_without_samples_there_is_none(nothing):
    assert TransferEstimate.of(nothing) is None


def test_a_repetition_without_samples_does_not_count():
    assert bootstrapped_medians([[1.0, 2.0], []]) == bootstrapped_medians([[1.0, 2.0]])


def test_the_interval_covers_the_median_as_often_as_it_claims():
    """95 % of 100: fewer than 86 once in 10,000."""
    covered = 0
    for seed in range(100):
        interval = TransferEstimate.of([gaussian(40, 50, seed)]).interval
        covered += interval.low <= 50 <= interval.high
    assert covered >= 86


def test_repetitions_that_differ_widen_the_interval():
    """Their samples are not independent: 60 of three repetitions tell less than 60 of one."""
    alike = TransferEstimate.of([gaussian(60, 50, 1)]).interval
    apart = TransferEstimate.of([gaussian(20, mean, seed) for seed, mean in enumerate((20, 50, 80))]).interval
    assert apart.high - apart.low > 3 * (alike.high - alike.low)


def test_the_same_samples_give_the_same_interval():
    samples = [gaussian(30, 50, 1)]
    assert TransferEstimate.of(samples) == TransferEstimate.of(samples)


def test_a_ratio_is_marked_outside_fifteen_percent():
    reference = TransferEstimate.of([gaussian(400, 100, 1)])
    near, far = (TransferRatio.of(TransferEstimate.of([gaussian(400, mean, 2)]), reference) for mean in (110, 130))
    assert (near.is_outside, near.is_surely_outside) == (False, False)
    assert (far.is_outside, far.is_surely_outside) == (True, True)
    few = TransferRatio.of(TransferEstimate.of([[60.0, 118.0, 119.0, 180.0]]), reference)
    assert (few.is_outside, few.is_surely_outside) == (True, False)


def test_there_is_no_ratio_to_zero():
    assert TransferRatio.of(TransferEstimate.of([[1.0]]), TransferEstimate.of([[0.0]])) is None


def test_quantiles_are_interpolated():
    values = [4.0, 1.0, 3.0, 2.0]
    assert quantile(values, 0.5) == median(values)
    assert (quantile(values, 0), quantile(values, 1), quantile([7.0], 0.95)) == (1.0, 4.0, 7.0)
