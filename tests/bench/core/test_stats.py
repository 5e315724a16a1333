"""Statistics of results: nothing for no values, and intervals of shares."""

import pytest

from outrider_bench.core.stats import mean, median, percentiles, ratio, share_interval, weighted_mean


def test_there_is_none_of_nothing():
    assert mean([]) is median([]) is median([None]) is weighted_mean([]) is ratio(1, 0) is None
    assert percentiles([]) == {}


def test_values_that_do_not_apply_are_left_out_of_a_median():
    assert median([3.0, None, 1.0, 2.0]) == 2.0


def test_the_interval_of_a_share_is_wilsons_and_has_a_width_at_its_ends():
    assert share_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert share_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert share_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert share_interval(0, 0) is None
