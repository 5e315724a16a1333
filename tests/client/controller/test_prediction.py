"""The closed forms, on the figures of the paper's setting: T_v 33 ms, t_d 7 ms, tau 4.3."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider_client.controller.measurements import Choice, Measurements, ModeLimits
from outrider_client.controller.prediction import PredictionTerms, predict

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
    return predict(PredictionTerms(measured), Choice(mode, **how)).tokens_per_second


def test_closed_forms():
    assert speed("stream") == pytest.approx(1e3 / 30.3)
    assert speed("server-draft") == pytest.approx(1e3 * TAU / (33 + 5 * 5))
    assert speed("stop-and-wait") == pytest.approx(1e3 * TAU / (5 * 7 + FLIGHT))
    assert speed("proactive", **AHEAD) == pytest.approx(1e3 * TAU / (FLIGHT + 0.43 * 5.5 * 7))
    pipelined = 0.34 * 42 + 0.23 * FLIGHT + 0.43 * (FLIGHT + 5.5 * 7)
    assert speed("pipelined", in_flight=2, **AHEAD) == pytest.approx(1e3 * TAU / pipelined)


def test_features_fill_a_narrow_way():
    narrow = replace(MEASURED, down_bps=250e3)
    heavy = replace(narrow, limits=HEAVY)
    assert speed("proactive", heavy, **AHEAD) == pytest.approx(250e3 / 8 / 2051)
    assert speed("proactive", narrow, **AHEAD) == speed("proactive", **AHEAD)
    assert speed("stream", heavy) == speed("stream")


def test_nothing_measured_is_no_fault():
    for mode in ("stream", "server-draft", "stop-and-wait", "proactive", "pipelined"):
        assert speed(mode, Measurements()) >= 0
