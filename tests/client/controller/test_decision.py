"""The decision as tables and properties: measurements in, a mode out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_client.controller.decision import decide
from outrider_client.controller.measurements import NON_SPLIT, SPLIT, Choice, Measurements, ModeLimits
from outrider_client.controller.prediction import PredictionTerms, predict
from outrider_drafters.contracts.tree_shape import TreeShape

PLAIN = frozenset(("stream", *SPLIT))
OFFERED = PLAIN | {"server-draft"}
ONE_AT_A_TIME = frozenset(("stream", "stop-and-wait", "proactive"))


def choose(measured, current, corrections=None):
    return decide(measured, current, corrections).choice


def speed(measured, choice):
    return predict(PredictionTerms(measured), choice).tokens_per_second


def measured(rtt_ms=30.7, verify_ms=33.0, level_ms=7.0, acceptance=0.83, hit=0.57, modes=PLAIN, **other):
    limits = other.pop("limits", ModeLimits(modes, fixed=True))
    return Measurements(
        limits=replace(limits, modes=modes),
        rtt_ms=rtt_ms,
        verify_ms=verify_ms,
        stream_ms=other.pop("stream_ms", 0.92 * verify_ms),
        draft_level_ms=level_ms,
        server_level_ms=other.pop("server_level_ms", 7.0),
        acceptance=(acceptance,) * 5,
        hit_rates={1: 0.6 * hit, 8: hit},
        batch_factors=other.pop("batch_factors", {8: 1.0}),
        **other,
    )


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        ("pipelined", {"rtt_ms": 30.7}),
        ("pipelined", {"rtt_ms": 53.6}),
        ("stream", {"rtt_ms": 150.0}),  # R > (tau - 1) T_v, by far
        ("stream", {"verify_ms": 6.0}),  # a fast target leaves nothing to win
        ("pipelined", {"verify_ms": 70.0, "rtt_ms": 150.0}),  # a slow one does
        ("stream", {"acceptance": 0.4, "hit": 0.2}),
        ("stream", {"level_ms": 40.0}),
        ("proactive", {"modes": ONE_AT_A_TIME}),
        ("stop-and-wait", {"modes": frozenset(("stream", "stop-and-wait"))}),
        ("stop-and-wait", {"rtt_ms": 2.0, "hit": 0.02, "batch_factors": {2: 2.0, 8: 8.0}}),
        ("proactive", {"rtt_ms": 1.0}),  # a second draft is not there before the verdict
        ("server-draft", {"modes": OFFERED, "rtt_ms": 150.0}),
        ("server-draft", {"modes": OFFERED, "rtt_ms": 53.6}),
        ("pipelined", {"modes": OFFERED, "rtt_ms": 10.0, "level_ms": 3.0, "hit": 0.8}),
        ("pipelined", {"modes": OFFERED, "server_level_ms": 25.0}),
        ("stream", {"modes": OFFERED, "rtt_ms": 150.0, "server_level_ms": 25.0, "acceptance": 0.6}),
        ("stream", {"modes": frozenset(("stream",)), "rtt_ms": 1.0}),
        ("stream", {"down_bps": 50e3, "limits": ModeLimits(bytes_per_token=2051)}),
    ],
)
def test_modes(mode, what):
    assert choose(measured(**what), None).mode == mode


def test_cold_start_probes_the_target_alone():
    probe = choose(Measurements(limits=ModeLimits(OFFERED), rtt_ms=30.0), None)
    assert (probe.mode, probe.probe) == ("stream", 4)
    assert choose(Measurements(limits=ModeLimits(PLAIN), rtt_ms=30.0, stream_ms=33.0), probe).mode in SPLIT
    assert choose(Measurements(limits=ModeLimits(PLAIN), rtt_ms=300.0, stream_ms=33.0), probe).mode == "stream"
    assert choose(Measurements(limits=ModeLimits(OFFERED), rtt_ms=300.0, stream_ms=33.0), probe).mode == "server-draft"


def test_a_measured_speed_outweighs_its_prediction():
    split = choose(measured(), None)
    ratio = speed(measured(), split) / speed(measured(), Choice("stream"))
    slow = dict.fromkeys(SPLIT, 0.97 / ratio)
    decision = decide(measured(), split, slow)
    assert decision.choice.mode == "stream"
    assert decision.gain == pytest.approx(1 / 0.97, rel=0.01)
    assert choose(measured(), split, {split.mode: 0.5}).mode in set(SPLIT) - {split.mode}


def test_the_users_shape_stands():
    limits = ModeLimits(shape=TreeShape(2, 7, 20), fixed=True, outcomes=2)
    choice = choose(measured(limits=limits), Choice("pipelined", levels=3, outcomes=8))
    assert (choice.shape, choice.ahead_shape, choice.outcomes) == (limits.shape, limits.shape, 2)


def test_a_family_that_suffers_waits_for_features_that_come_soon():
    def waits(features_ms, **how):
        what = measured(modes=frozenset(("stream", "stop-and-wait")), staleness_factor=0.9, **how)
        return choose(replace(what, features_ms=features_ms), None).wait_for_features

    assert waits(2.0)
    assert not waits(60.0)
    assert waits(60.0, limits=ModeLimits(wait_for_features=True), verify_ms=90.0)


WORLDS = st.builds(
    measured,
    rtt_ms=st.floats(0.0, 400.0),
    verify_ms=st.floats(2.0, 200.0),
    level_ms=st.floats(0.5, 40.0),
    acceptance=st.floats(0.05, 0.99),
    hit=st.floats(0.02, 0.98),
    modes=st.sampled_from([PLAIN, OFFERED, ONE_AT_A_TIME]),
    jitter_ms=st.floats(0.0, 40.0),
    staleness_factor=st.floats(0.7, 1.0),
    batch_factors=st.sampled_from([{}, {8: 1.0}, {8: 2.2}]),
    limits=st.sampled_from([ModeLimits(), ModeLimits(fixed=True), ModeLimits(in_flight=4), ModeLimits(max_levels=3)]),
)


@settings(max_examples=40, deadline=None)
@given(WORLDS, st.floats(0.0, 300.0), st.sampled_from(["", "stream", "pipelined"]))
def test_a_longer_round_trip_never_leads_back_to_the_split(world, more_ms, current):
    current = Choice(current) if current in world.limits.modes else None
    farther = replace(world, rtt_ms=world.rtt_ms + more_ms)
    if choose(world, current).mode in NON_SPLIT:
        assert choose(farther, current).mode in NON_SPLIT


@settings(max_examples=40, deadline=None)
@given(WORLDS, st.sampled_from(["stream", "stop-and-wait", "proactive"]))
def test_equal_measurements_never_oscillate(world, start):
    choices = [Choice(start)]
    while len(choices) < 8:
        choices.append(choose(world, choices[-1]))
    assert choices[-1] == choices[-2]
    modes = [choice.mode for before, choice in pairwise(choices) if choice.mode != before.mode]
    assert len(modes) == len(set(modes))
    assert start not in modes


@settings(max_examples=40, deadline=None)
@given(WORLDS)
def test_never_slower_than_the_stream_by_more_than_its_margin(world):
    choice = choose(world, Choice("stop-and-wait"))
    assert speed(world, choice) >= speed(world, Choice("stream")) / 1.011
