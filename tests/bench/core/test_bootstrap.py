"""Intervals hold what they promise, tested on made-up measures whose true figure is known. Seeded, no clock."""

import numpy as np
import pytest

from outrider_bench.core.bootstrap import Resamples, quotient, ratio_interval

TRIALS = 200


def made_up(random, runs, prompts, *, of_prompt, of_run, rest):
    """Tokens and ms of answers whose time a token varies by prompt, by run, and for no reason."""
    tokens = np.broadcast_to(70 * np.exp(random.normal(0, 0.3, prompts)), (runs, prompts))
    effect = random.normal(0, of_prompt, prompts) + random.normal(0, of_run, (runs, 1))
    return tokens, tokens * 20 * (1 + effect + random.normal(0, rest, (runs, prompts)))


@pytest.mark.parametrize(("runs", "prompts", "of_run"), [(1, 24, 0.0), (3, 24, 0.02), (5, 12, 0.02)])
def test_intervals_cover_the_true_figure_about_19_times_of_20(runs, prompts, of_run):
    random, covered = np.random.default_rng(runs), 0
    for trial in range(TRIALS):
        tokens, ms = made_up(random, runs, prompts, of_prompt=0.15, of_run=of_run, rest=0.03)
        draws = Resamples(runs, prompts, count=400, seed=trial)
        low, high = draws.interval(quotient(draws.sums(ms), draws.sums(tokens)))
        covered += low <= 20 <= high
    # Four standard errors of a share of 0.93 over 200 trials: false alarm below 1 in 10,000 at the true share.
    assert 0.86 <= covered / TRIALS <= 0.995


def test_repeating_a_run_teaches_nothing_about_other_prompts():
    tokens, ms = made_up(np.random.default_rng(3), 1, 12, of_prompt=0.2, of_run=0, rest=0)
    widths = []
    for runs in (1, 8):
        draws = Resamples(runs, 12)
        low, high = draws.interval(quotient(draws.sums(np.repeat(ms, runs, 0)), draws.sums(np.repeat(tokens, runs, 0))))
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0], rel=0.05)


def test_what_two_ways_share_cancels_in_their_ratio():
    _, ms = made_up(np.random.default_rng(4), 3, 12, of_prompt=0.3, of_run=0.1, rest=0)
    draws = Resamples(3, 12)
    assert draws.interval(draws.sums(ms) / draws.sums(2 * ms)) == pytest.approx((0.5, 0.5))


def test_an_estimate_s_error_widens_the_interval():
    draws = Resamples(3, 12)
    low, high = draws.interval(draws.estimates([50, 50, 50], [0, 0, 0]))
    assert low == high == 50
    low, high = draws.interval(draws.estimates([50, 50, 50], [1, 1, 1]))
    assert 48 < low < 49.2
    assert 50.8 < high < 52


def test_one_answer_has_no_interval_and_what_applies_to_no_answer_has_none():
    single = Resamples(1, 1)
    assert single.interval(single.sums([[3.0]])) is None
    draws = Resamples(2, 3)
    assert draws.interval(draws.medians(np.full((2, 3), np.nan))) is None
    assert draws.interval(quotient(draws.sums(np.ones((2, 3))), draws.sums(np.zeros((2, 3))))) is None


def test_a_ratio_of_sums_weighs_by_its_lower_side():
    low, high = ratio_interval([10.0, 40.0, 30.0, 20.0], [10.0, 20.0, 20.0, 10.0])
    assert 1 <= low < 100 / 60 < high <= 2
