"""Whole fits: what of which recording ends up in the profile."""

import numpy as np
import pytest

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.fitting.comparison import simulate
from outrider_netsim.fitting.fit import FitOptions, fit_profile, sort_recordings
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.profiles.synthetic import Cellular
from outrider_netsim.profiles.traces import ConditionTrace

PINGS = simulate(Profile.symmetric("p", Direction(20, 5, "normal", base_ms=5, loss=0.02)), 0.2, 5000)
DELIVERIES = Cellular().deliveries(60, 1)
ROWS = 3000
CONDITIONS = ConditionTrace(
    "c.csv",
    tuple(n * 0.1 for n in range(ROWS)),
    ROWS * 0.1,
    delay_ms=tuple(np.random.default_rng(1).normal(40, 4, ROWS).tolist()),
    rate_bps=(4e6, 6e6) * (ROWS // 2),
    loss=(0.0, 0.02) * (ROWS // 2),
)


def test_pings_give_both_ways_the_same_delay_and_loss():
    fit = fit_profile(FitOptions("mine", (PINGS,)))
    up = fit.profile.up
    assert up == fit.profile.down
    assert fit.profile.round_trip_ms == pytest.approx(50, rel=0.02)
    assert (up.distribution, up.coherence_ms, up.in_order) == ("normal", 0, True)
    assert up.mean_loss == pytest.approx(0.02, rel=0.3)
    answered = (~PINGS.is_lost).sum()
    assert fit.profile.source == f"fitted to p (5000 pings in 1000 s, {answered} answered; half a round trip each way)"


def test_pings_and_traces_add_up():
    fit = fit_profile(FitOptions("mine", (PINGS,), DELIVERIES))
    for direction in (fit.profile.up, fit.profile.down):
        assert direction.trace == DELIVERIES
        assert direction.delay_ms > 0
    assert "(down)" in fit.profile.source
    assert set(fit.tables) == {"round trip", "rate down", "rate up"}
    assert not fit.made


def test_a_model_replaces_deliveries_by_made_ones(tmp_path):
    fit = fit_profile(FitOptions("mine", (), DELIVERIES, model=True, made_file=tmp_path / "x.toml"))
    assert list(fit.made) == [tmp_path / "x.down.trace", tmp_path / "x.up.trace"]
    assert fit.profile.down.trace == fit.made[tmp_path / "x.down.trace"]
    assert fit.profile.down.trace.at_ms != DELIVERIES.at_ms


def test_a_model_replaces_conditions_by_their_means():
    """3,000 delays of N(40, 4): the mean is known to 0.2 %, the deviation to 1.3 %."""
    down = fit_profile(FitOptions("mine", (), CONDITIONS, model=True)).profile.down
    assert down.trace is None
    assert down.rate_bps == 5e6
    assert down.loss == 0.01
    assert down.distribution == "normal"
    assert down.mean_delay_ms == pytest.approx(40, rel=0.01)
    assert down.delay_deviation_ms == pytest.approx(4, rel=0.05)
    assert fit_profile(FitOptions("mine", (), CONDITIONS)).profile.down.trace == CONDITIONS


def test_rows_count_by_their_time():
    slow = ConditionTrace("c", (0.0, *(1 + n for n in range(200)), 300.0), 400.0, rate_bps=(1e6, *[1e6] * 200, 5e6))
    assert fit_profile(FitOptions("mine", (), slow, model=True)).profile.up.rate_bps == 2e6


def test_short_tables_are_refused():
    with pytest.raises(ProfileError, match="c: 2 rows: need at least 100"):
        fit_profile(FitOptions("mine", (), ConditionTrace("c", (0, 1), 2, delay_ms=(1, 2)), model=True))


def test_one_trace_is_the_way_down():
    assert sort_recordings([PINGS, DELIVERIES, PINGS]) == ((PINGS, PINGS), DELIVERIES)
    with pytest.raises(ProfileError, match="a second trace: give the one of the way up with --up"):
        sort_recordings([DELIVERIES, CONDITIONS])
