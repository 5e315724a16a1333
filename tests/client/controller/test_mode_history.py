"""Measured deviation of a mode from its closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider_client.controller.measurements import Choice
from outrider_client.controller.mode_history import ModeHistory, ModeRun
from outrider_client.controller.prediction import Prediction

PREDICTED = Prediction(Choice("stream"), tau=4.0, cycle_ms=50.0)


def mode_run(cycles, tau, cycle_ms):
    return ModeRun("proactive", cycles, round(tau * cycles), cycle_ms * cycles / 1e3)


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
