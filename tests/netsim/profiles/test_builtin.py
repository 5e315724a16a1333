"""The built-in profiles: the paper's round trips, the sources' numbers, and lookup."""

import random
from dataclasses import replace

import pytest

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.fitting.fit import simulate
from outrider_netsim.fitting.round_trips import figures
from outrider_netsim.profiles.builtin import PROFILES, profile_named


@pytest.mark.parametrize(
    ("name", "round_trip_ms"),
    [
        ("paper-5g", 30.7),
        ("paper-4g", 53.6),
        ("lan", 0.2),
        ("lte-edge", 70),
        ("3g", 300),
        ("satellite", 583),
        ("5g-midband", 47),
    ],
)
def test_round_trips_are_those_of_the_sources(name, round_trip_ms):
    assert profile_named(name).round_trip_ms == pytest.approx(round_trip_ms, abs=0.05)


def test_wifi_has_the_measured_median_and_90th_percentile():
    profile, rng = profile_named("wifi"), random.Random(1)
    pings = sorted(1000 * (profile.up.delay_s(rng) + profile.down.delay_s(rng)) for _ in range(20_001))
    assert pings[10_000] == pytest.approx(3, abs=0.2)
    assert pings[18_000] == pytest.approx(20, abs=1.5)


def test_every_profile_is_shaped_both_ways_says_its_source_and_has_its_name():
    for name, profile in PROFILES.items():
        assert profile.name == name
        assert profile.source
        assert profile.up.rate_bps > 0
        assert profile.down.rate_bps > 0


@pytest.mark.parametrize("name", ["paper-5g", "paper-4g"])
def test_papers_profiles_come_in_order_too(name):
    assert not PROFILES[name].up.in_order
    assert PROFILES[f"{name}-inorder"].up == replace(PROFILES[name].up, in_order=True)


@pytest.mark.parametrize(("name", "recorded_ms"), [("lte", (56.2, 94.7)), ("leo", (44.2, 73.0))])
def test_fitted_profiles_have_the_recorded_median_and_90th_percentile(name, recorded_ms):
    pings = figures([simulate(PROFILES[name], 0.2, 20_000)])
    assert pings["p50, ms"] == pytest.approx(recorded_ms[0], rel=0.03)
    assert pings["p90, ms"] == pytest.approx(recorded_ms[1], rel=0.1)


def test_a_profile_may_come_from_a_file(tmp_path):
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text("[both]\ndelay_ms = 7")
    two.write_text("[profile.a.both]\ndelay_ms = 1\n[profile.b.both]\ndelay_ms = 2")
    assert profile_named(str(one)).name == "one"
    assert profile_named(f"{two}:b").up.delay_ms == 2
    with pytest.raises(ProfileError, match=r"two.toml holds several profiles: say which, as in .*two.toml:a"):
        profile_named(str(two))
    with pytest.raises(ProfileError, match="no profile 'c': choose one of a, b"):
        profile_named(f"{two}:c")
