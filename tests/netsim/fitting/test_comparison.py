"""Pings through a profile: their delay, loss and outages are the profile's own."""

import numpy as np
import pytest

from outrider_netsim.fitting.comparison import round_trip_rows, simulate
from outrider_netsim.profiles.outages import Outage
from outrider_netsim.profiles.profile import Direction, Profile

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
    rows = {row.name: row for row in round_trip_rows([simulate(MADE, 0.5, 20_000, seed=7)], MADE)}
    for name in ("mean, ms", "deviation, ms", "p50, ms", "p90, ms", "p99, ms", "lost, %", "time in outages, %"):
        assert rows[name].fitted == pytest.approx(rows[name].recorded, rel=0.1), name
    assert rows["time in holds, %"].recorded == rows["time in holds, %"].fitted == 0
