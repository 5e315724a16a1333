"""Selects the mode between cycles: reviews it now and then, and changes it only for one that stays better.

The measured speed of a mode is kept next to its prediction (mode_history.py). The history of a mode not in use fades,
so that a disappointing mode is tried again in time: the later, the more often it disappointed.
"""

from __future__ import annotations

from dataclasses import replace

from outrider_client.controller.decision import Corrections, decide
from outrider_client.controller.measurements import AHEAD, NON_SPLIT, SPLIT, Choice, Measurements, OnlineMode
from outrider_client.controller.mode_history import ModeHistory
from outrider_client.controller.observer import CycleObserver
from outrider_client.controller.prediction import PredictionTerms, predict
from outrider_client.controller.search import best_in

_REVIEW_EVERY = 16  # tokens
_PATIENCE = 3  # reviews in a row
_URGENT = 1.25  # speedup at which the mode changes at once
_UNTRIED = 1.08
_HALF_LIFE_S = 30.0  # of a mode's history; doubles after each disappointment
_LONGEST_S = 480.0
_DISAPPOINTS = 0.95


class ModeSelector:
    """Selects the mode of one client over all its answers. Time comes from the observer."""

    def __init__(self, observer: CycleObserver) -> None:
        self.observer = observer
        self._current: Choice | None = None
        self._reviewed_at = 0  # tokens
        self._learned_at_s = 0.0
        self._streak = 0
        self._histories: dict[OnlineMode, ModeHistory] = {}
        self._half_lives_s: dict[OnlineMode, float] = {}
        self._knows_hits = False

    def decide(self) -> Choice:
        """Return the choice for the next cycle. Cheap enough to be called between any two cycles."""
        current, num_tokens = self._current, self.observer.num_tokens - self._reviewed_at
        if current is None or current.mode not in self.observer.limits.modes:
            return self._adopt(decide(self._measured(), None, self._corrections).choice)
        if current.probe:
            if num_tokens < current.probe:
                return current
            return self._adopt(decide(self._measured(), None, self._corrections).choice)
        return self._review(current) if num_tokens >= _REVIEW_EVERY else current

    def _review(self, current: Choice) -> Choice:
        self._learn(current)
        # The modes without a split say nothing about hit rates, so an untried split mode deserves a trial soon. In this
        # order: what was measured overrides the favor.
        untried = dict.fromkeys(SPLIT, _UNTRIED) if current.mode in NON_SPLIT else {}
        decision = decide(self._measured(), current, {**untried, **self._corrections})
        self._reviewed_at = self.observer.num_tokens
        if decision.choice.mode == current.mode:
            return self._adopt(decision.choice)
        self._streak += 1
        if self._streak < _PATIENCE and decision.gain < _URGENT:
            return current
        half_life_s = min(2 * self._half_lives_s.get(current.mode, _HALF_LIFE_S), _LONGEST_S)
        self._half_lives_s[current.mode] = half_life_s if self._disappoints(current.mode) else _HALF_LIFE_S
        return self._adopt(decision.choice)

    def _adopt(self, choice: Choice) -> Choice:
        self._current = choice
        self._reviewed_at = self.observer.num_tokens
        self._streak = 0
        return choice

    def _disappoints(self, mode: OnlineMode) -> bool:
        """Return whether the mode was slower than its closed form predicts."""
        predicted = best_in(PredictionTerms(self.observer.measured()), mode).tokens_per_second
        corrected = best_in(PredictionTerms(self._measured()), mode).tokens_per_second
        return corrected * self._corrections.get(mode, 1.0) < _DISAPPOINTS * predicted

    def _learn(self, current: Choice) -> None:
        """Add to the history of the current mode; the histories of the others fade."""
        elapsed_s, self._learned_at_s = self.observer.active_s - self._learned_at_s, self.observer.active_s
        for mode in self._histories.keys() - {current.mode}:
            self._histories[mode].fade(0.5 ** (elapsed_s / self._half_lives_s.get(mode, _HALF_LIFE_S)))
        mode_run, measured = self.observer.take_mode_run(), self.observer.measured()
        if measured.hit_rates and not self._knows_hits:
            self._knows_hits = True
            for mode in AHEAD:  # with unknown hit rates their histories held mostly the wrong guess
                self._histories.pop(mode, None)
        if current.mode == mode_run.mode != "stream":
            self._histories.setdefault(mode_run.mode, ModeHistory()).learn(
                mode_run, predict(PredictionTerms(measured), current)
            )

    def _measured(self) -> Measurements:
        """Return the measurements with the modes' histories."""
        late_ms = {mode: known.late_ms for mode, known in self._histories.items()}
        return replace(self.observer.measured(), late_ms=late_ms)

    @property
    def _corrections(self) -> Corrections:
        return {mode: known.factor for mode, known in self._histories.items()}
