"""Selects the mode between cycles: the fastest by prediction, changed only for one that stays better by a margin.

A mode's predicted speed is multiplied by its correction: tokens measured in it over tokens predicted then. The speed of
stream and server-draft does not depend on the round trip and is certain, so a small margin is enough for them:

    to stream, server-draft 1 % faster       so that no slower mode is kept
    to another mode         4 % faster
    within a mode           2 % faster

What is measured of a mode is kept next to its prediction (mode_history.py). The history of a mode not in use fades, so
that a disappointing mode is tried again in time: the later, the more often it disappointed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from outrider_client.controller.measurements import (
    AHEAD,
    NON_SPLIT,
    SPLIT,
    Choice,
    Measurements,
    ModeLimits,
    OnlineMode,
)
from outrider_client.controller.mode_history import ModeHistory
from outrider_client.controller.observer import CycleObserver
from outrider_client.controller.prediction import Prediction, PredictionTerms, predict
from outrider_client.controller.search import best_in

PROBE_TOKENS = 4
_TO_CERTAIN_MODE = 1.01
_TO_MODE = 1.04
_WITHIN_MODE = 1.02
_ORDER = ("stream", *SPLIT, "server-draft")  # among equals the one that costs the server least
Corrections = Mapping[OnlineMode, float]
_REVIEW_EVERY = 16  # tokens
_PATIENCE = 3  # reviews in a row
_URGENT = 1.25  # speedup at which the mode changes at once
_UNTRIED = 1.08
_HALF_LIFE_S = 30.0  # of a mode's history; doubles after each disappointment
_LONGEST_S = 480.0
_DISAPPOINTS = 0.95


@dataclass(frozen=True, slots=True)
class ModeComparison:
    """The best choice of each mode, with its predicted and corrected speed."""

    terms: PredictionTerms
    rated: Mapping[OnlineMode, Prediction]
    corrections: Corrections = field(default_factory=dict)

    def speed(self, rated: Prediction) -> float:
        return rated.tokens_per_second * self.corrections.get(rated.choice.mode, 1.0)


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice; `gain` is its speed relative to keeping the current one."""

    choice: Choice
    gain: float = 1.0


def decide(measured: Measurements, current: Choice | None, corrections: Corrections | None = None) -> Decision:
    """Return the choice to use next: `current` (with another `why`) unless one is better by the margin."""
    if measured.is_cold:
        why = "nothing is measured yet: the target decodes alone and is timed"
        return Decision(Choice("stream", probe=PROBE_TOKENS, why=why))
    terms = PredictionTerms(measured)
    allowed: list[OnlineMode] = [mode for mode in _ORDER if mode in measured.limits.modes]
    weighed = ModeComparison(terms, {mode: best_in(terms, mode) for mode in allowed}, corrections or {})
    if current is None or current.mode not in weighed.rated:
        # Rounded: among equals the first of _ORDER must win, whatever the last bits of the speeds are.
        best = max(weighed.rated.values(), key=lambda rated: round(weighed.speed(rated), 6))
        return Decision(_with_reason(weighed, best, None))
    kept = _kept(weighed, replace(current, probe=0))
    others = [rated for mode, rated in weighed.rated.items() if mode != current.mode]
    worth = [rated for rated in others if weighed.speed(rated) > weighed.speed(kept) * _margin(rated)]
    chosen = max(worth, key=weighed.speed, default=kept)
    gain = weighed.speed(chosen) / max(weighed.speed(kept), 1e-9)
    return Decision(_with_reason(weighed, chosen, kept), gain)


def _kept(weighed: ModeComparison, current: Choice) -> Prediction:
    """Return the current mode, as it is or with better parameters."""
    best, now = weighed.rated[current.mode], predict(weighed.terms, current)
    if not _fits(weighed.terms.limits, current):
        return best
    return best if best.tokens_per_second > now.tokens_per_second * _WITHIN_MODE else now


def _fits(limits: ModeLimits, current: Choice) -> bool:
    """Return whether the limits, which may have changed, still allow the current choice."""
    if current.mode == "stream":
        return True
    if limits.fixed and not (current.levels == current.ahead_levels == limits.shape.levels):
        return False
    if current.mode in AHEAD and limits.outcomes not in (None, current.outcomes):
        return False
    if current.mode in SPLIT and limits.wait_for_features not in (None, current.wait_for_features):
        return False
    levels, nodes = max(current.levels, current.ahead_levels), max(current.budget, current.ahead_budget)
    return levels <= limits.max_levels and nodes <= limits.max_nodes


def _margin(rated: Prediction) -> float:
    return _TO_CERTAIN_MODE if rated.choice.mode in NON_SPLIT else _TO_MODE


def _with_reason(weighed: ModeComparison, chosen: Prediction, kept: Prediction | None) -> Choice:
    rivals = [rated for rated in weighed.rated.values() if rated.choice.mode != chosen.choice.mode]
    rival = kept if kept in rivals else max(rivals, key=weighed.speed, default=None)
    text = f"{chosen.choice.mode} {weighed.speed(chosen):.1f} tokens/s"
    why = text if rival is None else f"{text} against {weighed.speed(rival):.1f} of {rival.choice.mode}"
    return replace(chosen.choice, why=why)


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
