"""Fits to round trips that were made from known profiles: each figure comes back within the error stated."""

import math
from dataclasses import replace

import numpy as np
import pytest

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.fitting.fit import simulate
from outrider_netsim.fitting.recordings import RoundTrips
from outrider_netsim.fitting.round_trips import (
    figures,
    fit_delays,
    fit_loss,
    fit_outages,
    fit_round_trips,
    holds_of,
    outages_of,
    usual,
)
from outrider_netsim.profiles.outages import Outage
from outrider_netsim.profiles.profile import Bursts, Direction, Profile

NONE = math.nan
PINGS = 20_000


def pinged(direction, outages=(), interval_s=0.2, seed=1):
    return simulate(Profile.symmetric("made", direction, outages=outages), interval_s, PINGS, seed)


def series(rtt_ms, interval_s=0.2):
    return RoundTrips("r", np.arange(len(rtt_ms)) * interval_s, np.array(rtt_ms, dtype=float))


@pytest.mark.parametrize("distribution", ["normal", "uniform", "pareto"])
def test_the_distribution_of_the_delay_is_found(distribution):
    """Mean within 1 %, deviation within 3 %, and the right shape clearly nearer than any other."""
    made = Direction(20, 6, distribution, base_ms=10, in_order=True)
    fits = fit_delays(usual([pinged(made)]))
    found = fits[0].direction
    assert found.distribution == distribution
    assert fits[0].distance_ms < fits[1].distance_ms / 3
    assert found.mean_delay_ms == pytest.approx(made.mean_delay_ms, rel=0.01)
    assert found.delay_deviation_ms == pytest.approx(made.delay_deviation_ms, rel=0.03)


def test_a_delay_without_jitter_is_constant():
    fits = fit_delays(np.full(200, 30.0))
    assert [fit.direction for fit in fits] == [Direction(base_ms=15)]


def test_losses_each_way_are_about_half_of_those_of_a_round_trip():
    """2 % each way are 3.96 %; 20,000 pings lose 792 +- 28 (one deviation), so 10 % is more than two."""
    loss, bursts = fit_loss([pinged(Direction(10, loss=0.02))])
    assert bursts is None
    assert loss == pytest.approx(0.02, rel=0.1)


def test_bursts_of_losses_are_found():
    """Bursts of 4, 2 % lost: some 200 bursts, so share and length have a deviation of about 10 % each.

    At 10 ms, a burst is over long before it would count as an outage.
    """
    loss, bursts = fit_loss([pinged(Direction(10, bursts=Bursts(0.0051, 0.25)), interval_s=0.01)])
    assert loss == 0
    assert bursts.mean_loss == pytest.approx(0.02, rel=0.25)
    assert 1 / bursts.r == pytest.approx(4, rel=0.25)


def test_the_coherence_of_a_profile_is_found_by_pings_through_it():
    """Round trips of two coherent ways correlate as each of them does, in ranks; within 10 % over 20,000 pings."""
    made = Direction(20, 6, "pareto", base_ms=10, coherence_ms=500, in_order=True)
    assert fit_round_trips([pinged(made)]).direction.coherence_ms == pytest.approx(500, rel=0.1)


def test_outages_are_long_runs_of_lost_pings_and_neither_loss_nor_delay():
    lost = [20, 20, NONE, 20, *[NONE] * 10, 20, *[NONE] * 4, 20]
    recording = series(lost)
    assert outages_of(recording) == [(pytest.approx(0.8), pytest.approx(2.8))]
    assert figures([recording])["lost, %"] == pytest.approx(50)
    assert figures([recording])["losses in a row"] == 2.5
    assert fit_outages([recording]) == (Outage(2, 1.0, 4.0),)


def test_a_hold_is_where_pings_come_back_together():
    recording = series([20, 20, 1000, 800, 610, 400, 200, *[20, 21] * 20])
    (((start, end),),) = holds_of([recording])
    assert start == pytest.approx(0.4)
    assert end == pytest.approx(1.4)
    assert usual([recording]).max() == 21
    assert fit_outages([recording])[0].hold


@pytest.mark.parametrize(
    "jittery", [Direction(21, 19, "normal", base_ms=4.5), Direction(12, 12, "pareto", base_ms=13, coherence_ms=370)]
)
def test_jitter_beyond_the_interval_is_no_hold(jittery):
    pings = pinged(replace(jittery, in_order=True), interval_s=0.02)
    assert fit_outages([pings]) == ()


def test_profiles_with_outages_and_holds_are_found_again():
    """One of each in 100 s, 40 in all: lengths are known to an interval, numbers exactly."""
    outages = (Outage(3, 20, every_s=100), Outage(1.5, 60, every_s=100, hold=True))
    found = fit_outages([pinged(Direction(20, 2, "normal", in_order=True), outages)])
    assert [outage.hold for outage in found] == [False, True]
    for made, fitted in zip(outages, found, strict=True):
        assert fitted.duration_s == pytest.approx(made.duration_s, abs=0.2)
        assert fitted.every_s == pytest.approx(100, rel=0.02)


def test_too_few_answers_are_refused():
    with pytest.raises(ProfileError, match="r: 99 round trips: need at least 100"):
        fit_round_trips([series([20.0] * 99 + [NONE] * 900)])


def test_recordings_of_other_intervals_are_not_pooled():
    often, rarely = series([20.0] * 200, 0.2), series([20.0] * 200, 1.0)
    with pytest.raises(
        ProfileError, match=r"r: a ping every 1 s, and every 0\.2 s in r: fit recordings of one interval"
    ):
        fit_round_trips([often, rarely])


@pytest.mark.parametrize("recording", [series([20.0]), series([20.0] * 200, 0.0)])
def test_pings_at_one_time_are_refused(recording):
    with pytest.raises(ProfileError, match="r: need pings at different times"):
        fit_round_trips([recording])
