"""Whole fits: what of which recording ends up in the profile."""

import pytest

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.fitting.comparison import simulate
from outrider_netsim.fitting.fit import fit_profile, sort_recordings
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.profiles.synthetic import Cellular
from outrider_netsim.profiles.traces import ConditionTrace

PINGS = simulate(Profile.symmetric("p", Direction(20, 5, "normal", base_ms=5, loss=0.02)), 0.2, 5000)
CONDITIONS = ConditionTrace("c.csv", (0.0,), 1.0, delay_ms=(40.0,))
DELIVERIES = Cellular().deliveries(60, 1)


def test_pings_give_both_ways_the_same_delay_and_loss():
    fit = fit_profile("mine", (PINGS,))
    up = fit.profile.up
    assert up == fit.profile.down
    assert fit.profile.round_trip_ms == pytest.approx(50, rel=0.02)
    assert (up.distribution, up.coherence_ms, up.in_order) == ("normal", 0, True)
    assert up.mean_loss == pytest.approx(0.02, rel=0.3)
    answered = (~PINGS.is_lost).sum()
    assert fit.profile.source == f"fitted to p (5000 pings in 1000 s, {answered} answered; half a round trip each way)"


def test_pings_and_traces_add_up():
    fit = fit_profile("mine", (PINGS,), DELIVERIES)
    for direction in (fit.profile.up, fit.profile.down):
        assert direction.trace == DELIVERIES
        assert direction.delay_ms > 0
    assert "(down)" in fit.profile.source
    assert set(fit.tables) == {"round trip", "rate down", "rate up"}
    assert fit_profile("mine", (), CONDITIONS).profile.up.trace == CONDITIONS


def test_one_trace_is_the_way_down():
    assert sort_recordings([PINGS, DELIVERIES, PINGS]) == ((PINGS, PINGS), DELIVERIES)
    with pytest.raises(ProfileError, match="a second trace: give the one of the way up with --up"):
        sort_recordings([DELIVERIES, CONDITIONS])
