"""Whole fits: what of which recording ends up in the profile."""

import numpy as np
import pytest

from outrider_netsim.fitting.fit import compared, fit_profile, simulate
from outrider_netsim.profiles.outages import Outage
from outrider_netsim.profiles.profile import Direction, Profile

PINGS = simulate(Profile.symmetric("p", Direction(20, 5, "normal", base_ms=5, loss=0.02)), 0.2, 5000)


def test_pings_give_both_ways_the_same_delay_and_loss():
    fit = fit_profile("mine", (PINGS,))
    up = fit.profile.up
    assert up == fit.profile.down
    assert fit.profile.round_trip_ms == pytest.approx(50, rel=0.02)
    assert (up.distribution, up.coherence_ms, up.in_order) == ("normal", 0, True)
    assert up.mean_loss == pytest.approx(0.02, rel=0.3)
    answered = (~PINGS.is_lost).sum()
    assert fit.profile.source == f"fitted to p (5000 pings in 1000 s, {answered} answered; half a round trip each way)"


MADE = Profile.symmetric(
    "made", Direction(20, 5, "normal", rate_bps=1000, base_ms=5, loss=0.01), outages=(Outage(2, 30, every_s=60),)
)


def test_simulated_pings_follow_the_profile_without_its_rate():
    pings = simulate(MADE, 0.5, 10_000)
    answers = pings.rtt_ms[~pings.is_lost]
    assert answers.mean() == pytest.approx(MADE.round_trip_ms, rel=0.01)
    assert pings.is_lost.mean() == pytest.approx(0.0199 + 2 / 60, rel=0.1)
    np.testing.assert_array_equal(simulate(MADE, 0.5, 100).rtt_ms, simulate(MADE, 0.5, 100).rtt_ms)


def test_a_profile_compared_with_its_own_pings_agrees():
    rows = compared([simulate(MADE, 0.5, 20_000, seed=7)], MADE)
    for name in ("mean, ms", "deviation, ms", "p50, ms", "p90, ms", "p99, ms", "lost, %", "time in outages, %"):
        recorded, fitted = rows[name]
        assert fitted == pytest.approx(recorded, rel=0.1), name
    assert rows["time in holds, %"] == (0, 0)
