"""Measured deviation of a mode from its closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider_client.controller.choice import SPLIT, Choice
from outrider_client.controller.measurements import Measurements, ModeLimits
from outrider_client.controller.mode_history import ModeHistory, ModeRun
from outrider_client.controller.prediction import Prediction, predict

PREDICTED = Prediction(tau=4.0, cycle_ms=50.0)
MEASURED = Measurements(
    limits=ModeLimits(frozenset(("stream", *SPLIT))), rtt_ms=30.0, verify_ms=33.0, draft_level_ms=7.0
)


def mode_run(cycles, tau, cycle_ms):
    return ModeRun("proactive", cycles, round(tau * cycles), cycle_ms * cycles / 1e3)


def test_nothing_ridden_nothing_learnt():
    assert (ModeHistory().late_ms, ModeHistory().factor) == (0.0, 1.0)


def test_times_are_believed_soon_and_tokens_late():
    known = ModeHistory()
    known.learn(mode_run(8, 2.0, 62.0), PREDICTED)
    assert known.late_ms == pytest.approx(8.0)
    assert known.factor == pytest.approx(76 / 92)
    for _ in range(100):
        known.learn(mode_run(8, 2.0, 62.0), PREDICTED)
    assert known.late_ms == pytest.approx(12.0, abs=0.6)
    assert known.factor == pytest.approx(0.53, abs=0.01)


def test_the_text_that_a_prediction_followed_is_no_error_of_the_mode():
    """Hard and easy text by turns, as predicted from drafts on either."""
    known = ModeHistory()
    for number in range(40):
        tau = (2.0, 5.0)[number % 2]
        known.learn(mode_run(8, tau, 50.0), replace(PREDICTED, tau=tau))
    assert known.factor == pytest.approx(1.0)


def test_what_is_known_fades():
    known = ModeHistory()
    known.learn(mode_run(8, 2.0, 62.0), PREDICTED)
    late_ms, factor = known.late_ms, known.factor
    known.fade(0.1)
    assert 0 < known.late_ms < 0.4 * late_ms
    assert factor < known.factor < 1.0


def test_what_every_cycle_costs_weighs_most_on_short_ones():
    late = replace(MEASURED, late_ms={"proactive": 10.0, "stop-and-wait": -500.0})

    def slowed(**how):
        choice = Choice("proactive", outcomes=8, **how)
        return predict(late, choice).tokens_per_second / predict(MEASURED, choice).tokens_per_second

    assert slowed(ahead_levels=2, levels=2) < slowed(ahead_levels=12, levels=12) < 1.0
    assert predict(late, Choice("pipelined")) == predict(MEASURED, Choice("pipelined"))
    shortest = predict(late, Choice("stop-and-wait")).cycle_ms
    assert shortest == pytest.approx(0.5 * predict(MEASURED, Choice("stop-and-wait")).cycle_ms)
