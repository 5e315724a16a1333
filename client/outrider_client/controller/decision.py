"""Decides on the fastest mode by prediction, and changes it only for a margin.

A mode's predicted speed is multiplied by its correction: tokens measured in it over tokens predicted then. The speed of
stream and server-draft does not depend on the round trip and is certain, so a small margin is enough for them:

    to stream, server-draft 1 % faster       so that no slower mode is kept
    to another mode         4 % faster
    within a mode           2 % faster
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
from outrider_client.controller.prediction import Prediction, PredictionTerms, predict
from outrider_client.controller.search import best_in

PROBE_TOKENS = 4
_TO_CERTAIN_MODE = 1.01
_TO_MODE = 1.04
_WITHIN_MODE = 1.02
_ORDER = ("stream", *SPLIT, "server-draft")  # among equals the one that costs the server least
Corrections = Mapping[OnlineMode, float]


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
