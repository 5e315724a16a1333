"""Decides between cycles: reviews the choice now and then, and changes the mode only for one that stays better.

What a mode was really worth is remembered beside its prediction (experience.py). That of a mode not in use fades, so
that one which disappointed is tried again in time: the later, the more often it did.
"""

from __future__ import annotations

from dataclasses import replace

from outrider_client.controller.choice import AHEAD, NON_SPLIT, SPLIT, Choice, OnlineMode
from outrider_client.controller.decision import Corrections, Decision, choose, decide
from outrider_client.controller.measurements import Measurements
from outrider_client.controller.mode_history import ModeHistory
from outrider_client.controller.observer import CycleObserver
from outrider_client.controller.prediction import PredictionTerms, predict
from outrider_client.controller.search import best_in

_REVIEW_EVERY = 16  # tokens
_PATIENCE = 3  # reviews in a row
_URGENT = 1.25  # times as fast: no patience
_UNTRIED = 1.08
_HALF_LIFE_S = 30.0  # of experience; twice as long after each disappointment
_LONGEST_S = 480.0
_DISAPPOINTS = 0.95


class ModeSelector:
    """Of one client, over all its answers. It is not told of time: the observer is."""

    def __init__(self, observer: CycleObserver) -> None:
        self.observer = observer
        self._current: Choice | None = None
        self._reviewed_at = 0  # tokens
        self._learnt_at_s = 0.0
        self._streak = 0
        self._experience: dict[OnlineMode, ModeHistory] = {}
        self._half_lives_s: dict[OnlineMode, float] = {}
        self._knows_hits = False

    def decide(self) -> Choice:
        """What to do next: the mode under way while it is the same mode, else one to switch to. Cheap enough to be
        asked between any two cycles."""
        current, num_tokens = self._current, self.observer.num_tokens - self._reviewed_at
        if current is None or current.mode not in self.observer.limits.modes:
            return self._adopt(choose(self._measured(), None, self._corrections))
        if current.probe:
            if num_tokens < current.probe:
                return current
            return self._adopt(choose(self._measured(), None, self._corrections))
        return self._review(current) if num_tokens >= _REVIEW_EVERY else current

    def _review(self, current: Choice) -> Choice:
        self._learn(current)
        decision = decide(self._measured(), current, self._favouring_untried(current))
        self._reviewed_at = self.observer.num_tokens
        if decision.choice.mode == current.mode:
            return self._adopt(decision.choice)
        self._streak += 1
        if not self._is_convincing(decision):
            return current
        self._left(current.mode)
        return self._adopt(decision.choice)

    def _favouring_untried(self, current: Choice) -> Corrections:
        """Harbours show nothing of hits, so that a split which no one has tried is worth a trial soon."""
        untried = dict.fromkeys(SPLIT, _UNTRIED) if current.mode in NON_SPLIT else {}
        return {**untried, **self._corrections}

    def _is_convincing(self, decision: Decision) -> bool:
        return self._streak >= _PATIENCE or decision.gain >= _URGENT

    def _adopt(self, choice: Choice) -> Choice:
        self._current = choice
        self._reviewed_at = self.observer.num_tokens
        self._streak = 0
        return choice

    def _left(self, mode: OnlineMode) -> None:
        half_life_s = 2 * self._half_lives_s.get(mode, _HALF_LIFE_S)
        self._half_lives_s[mode] = min(half_life_s, _LONGEST_S) if self._disappoints(mode) else _HALF_LIFE_S

    def _disappoints(self, mode: OnlineMode) -> bool:
        """Whether it was slower than its closed form says."""
        said, known = (
            best_in(PredictionTerms(self.observer.measured()), mode),
            best_in(PredictionTerms(self._measured()), mode),
        )
        return known.tokens_per_second * self._corrections.get(mode, 1.0) < _DISAPPOINTS * said.tokens_per_second

    def _learn(self, current: Choice) -> None:
        """Of the current mode; what is known of the others fades."""
        elapsed_s, self._learnt_at_s = self.observer.active_s - self._learnt_at_s, self.observer.active_s
        for mode in self._experience.keys() - {current.mode}:
            self._experience[mode].fade(0.5 ** (elapsed_s / self._half_lives_s.get(mode, _HALF_LIFE_S)))
        mode_run, measured = self.observer.take_mode_run(), self.observer.measured()
        if measured.hit_rates and not self._knows_hits:
            self._learn_ahead_anew()
        if current.mode == mode_run.mode != "stream":
            self._experience.setdefault(mode_run.mode, ModeHistory()).learn(mode_run, predict(measured, current))

    def _learn_ahead_anew(self) -> None:
        """Hit rates are known by now: what was late before was mostly a guess at them that was wrong."""
        self._knows_hits = True
        for mode in AHEAD:
            self._experience.pop(mode, None)

    def _measured(self) -> Measurements:
        """With what has been learnt of the modes."""
        late_ms = {mode: known.late_ms for mode, known in self._experience.items()}
        return replace(self.observer.measured(), late_ms=late_ms)

    @property
    def _corrections(self) -> Corrections:
        return {mode: known.factor for mode, known in self._experience.items()}
