"""Profiles: the paper's round trips, and what is refused."""

import math
import random

import pytest

from outrider_netsim.profile import PROFILES, Direction, Profile, ProfileError, profile_named


@pytest.mark.parametrize(("name", "round_trip_ms"), [("paper-5g", 30.7), ("paper-4g", 53.6)])
def test_round_trips_are_those_of_the_paper(name, round_trip_ms):
    assert profile_named(name).round_trip_ms == pytest.approx(round_trip_ms, abs=0.05)


def test_mean_delay_is_that_of_the_truncated_normal():
    rng = random.Random(5)
    draws = [max(0.0, rng.gauss(21, 19)) for _ in range(200_000)]
    mean = Direction(21, 19, "normal", base_ms=4.5).mean_delay_ms - 4.5
    assert mean == pytest.approx(sum(draws) / len(draws), abs=4 * 19 / math.sqrt(len(draws)))


def test_both_directions_of_the_built_in_profiles_are_shaped():
    for profile in PROFILES.values():
        assert profile.up == profile.down
        assert profile.up.rate_bps > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delay_ms": -1}, "delay_ms=-1: need 0 to 60000"),
        ({"jitter_ms": math.nan, "distribution": "normal"}, "jitter_ms=nan"),
        ({"base_ms": 1e9}, "base_ms=1e[+]09"),
        ({"rate_bps": 10}, "rate_bps=10: need 0 [(]unlimited[)] or at least 1000"),
        ({"loss": 1.5}, "loss=1.5: need 0 to 1"),
        ({"distribution": "pareto"}, "distribution='pareto': need 'normal' or 'constant'"),
        ({"jitter_ms": 3}, "jitter_ms=3 with distribution='constant'"),
    ],
)
def test_absurd_values_are_refused_by_name(arguments, message):
    with pytest.raises(ProfileError, match=message):
        Direction(**arguments)


def test_an_unknown_profile_names_the_known_ones():
    with pytest.raises(ProfileError, match="'6g' is unknown: choose one of paper-5g, paper-4g, lan"):
        profile_named("6g")


def test_a_profile_needs_a_name():
    with pytest.raises(ProfileError, match="needs a name"):
        Profile("", Direction(), Direction())
