"""The closed forms, on the figures of the paper's setting: T_v 33 ms, t_d 7 ms, tau 4.3."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider_client.controller.choice import Choice
from outrider_client.controller.measurements import Measurements, ModeLimits
from outrider_client.controller.prediction import predict

ACCEPTANCE = (0.85, 0.84, 0.83, 0.82, 0.81)
TAU = 1 + 0.85 * (1 + 0.84 * (1 + 0.83 * (1 + 0.82 * (1 + 0.81))))
HITS = {1: 0.34, 8: 0.57}
MEASURED = Measurements(
    limits=ModeLimits(fixed=True),
    rtt_ms=30.7,
    verify_ms=33.0,
    stream_ms=30.3,
    draft_level_ms=7.0,
    server_level_ms=5.0,
    acceptance=ACCEPTANCE,
    hit_rates=HITS,
    batch_factors={8: 1.0},
)
FLIGHT = 30.7 + 33.0
HEAVY = ModeLimits(fixed=True, bytes_per_token=2051)
AHEAD = {"outcomes": 8, "levels": 5, "ahead_levels": 5}


def speed(mode, measured=MEASURED, **how):
    return predict(measured, Choice(mode, **how)).tokens_per_second


def test_closed_forms():
    assert speed("stream") == pytest.approx(1e3 / 30.3)
    assert speed("server-draft") == pytest.approx(1e3 * TAU / (33 + 5 * 5))
    assert speed("stop-and-wait") == pytest.approx(1e3 * TAU / (5 * 7 + FLIGHT))
    assert speed("proactive", **AHEAD) == pytest.approx(1e3 * TAU / (FLIGHT + 0.43 * 5.5 * 7))
    pipelined = 0.34 * 42 + 0.23 * FLIGHT + 0.43 * (FLIGHT + 5.5 * 7)
    assert speed("pipelined", in_flight=2, **AHEAD) == pytest.approx(1e3 * TAU / pipelined)


def test_hit_rates_are_carried_over_to_other_numbers_and_levels():
    def hits(outcomes, levels, measured=MEASURED):
        return predict(measured, Choice("proactive", outcomes=outcomes, levels=levels, ahead_levels=levels)).hit_rate

    assert hits(1, 5) == pytest.approx(0.34)
    assert hits(8, 5) == pytest.approx(0.57)
    assert 0.34 < hits(2, 5) < hits(4, 5) < 0.57
    assert hits(8, 10) < hits(8, 5) < hits(8, 2)
    guessed = replace(MEASURED, hit_rates={})
    assert hits(1, 5, guessed) < hits(8, 5, guessed) < 1


def test_stale_features_cost_tau_unless_they_are_waited_for():
    eagle = replace(MEASURED, staleness_factor=0.9, features_ms=25.0)
    fresh = predict(eagle, Choice("stop-and-wait", wait_for_features=True))
    stale = predict(eagle, Choice("stop-and-wait"))
    assert (fresh.tau, fresh.cycle_ms) == pytest.approx((TAU, 5 * 7 + FLIGHT + 25))
    assert (stale.tau, stale.cycle_ms) == pytest.approx((0.9 * TAU, 5 * 7 + FLIGHT))
    two, three = (predict(eagle, Choice("pipelined", in_flight=number, **AHEAD)).tau for number in (2, 3))
    assert three < two < 0.9 * TAU


def test_features_fill_a_narrow_way():
    narrow = replace(MEASURED, down_bps=250e3)
    heavy = replace(narrow, limits=HEAVY)
    assert speed("proactive", heavy, **AHEAD) == pytest.approx(250e3 / 8 / 2051)
    assert speed("proactive", narrow, **AHEAD) == speed("proactive", **AHEAD)
    assert speed("stream", heavy) == speed("stream")


def test_nothing_measured_is_no_fault():
    for mode in ("stream", "server-draft", "stop-and-wait", "proactive", "pipelined"):
        assert speed(mode, Measurements()) >= 0
