"""Searches the best parameters of each mode: levels, outcomes, drafts in flight, waiting for features."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from outrider_client.controller.measurements import AHEAD, SPLIT, Choice, OnlineMode
from outrider_client.controller.prediction import ChoiceGrid, Ints, Prediction, PredictionTerms, best_of

_LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12)
_OUTCOMES = (1, 2, 4, 8)
_TOLERANT = 0.995  # families with a higher staleness factor never wait for features


def best_in(terms: PredictionTerms, mode: OnlineMode) -> Prediction:
    return max((best_of(terms, grid) for grid in _grids(terms, mode)), key=lambda each: each.tokens_per_second)


def _grids(terms: PredictionTerms, mode: OnlineMode) -> Iterator[ChoiceGrid]:
    if mode == "stream":
        yield ChoiceGrid.of(Choice("stream"))
        return
    for wait_for_features in _waits(terms, mode):
        yield _grid(terms, mode, wait_for_features)


def _grid(terms: PredictionTerms, mode: OnlineMode, wait_for_features: bool) -> ChoiceGrid:
    ahead = mode in AHEAD
    levels = _levels(terms)[:, None, None]
    ahead_levels = _levels(terms)[None, :, None] if ahead else levels
    outcomes = (_outcomes(terms) if ahead else np.ones(1, np.int64))[None, None, :]
    ahead_budget = _budget(terms, ahead_levels)
    growing_ms = (ahead_levels + 1) * terms.level * terms.batch(outcomes)
    # More in flight than keeps both target and drafter busy is no gain.
    busy_ms = np.maximum(np.maximum(terms.verify, growing_ms), 1e-3)
    in_flight = np.clip(np.ceil(terms.flight / busy_ms), 2, max(terms.limits.in_flight, 2))
    return ChoiceGrid(
        mode,
        terms.limits.shape.breadth,
        wait_for_features,
        levels,
        _budget(terms, levels),
        ahead_levels,
        ahead_budget,
        outcomes,
        in_flight.astype(np.int64) if mode == "pipelined" else np.ones_like(outcomes),
    )


def _levels(terms: PredictionTerms) -> Ints:
    limits = terms.limits
    if limits.fixed:
        return np.array([limits.shape.levels])
    deepest = limits.max_levels
    return np.array(sorted({*(level for level in _LEVELS if level < deepest), min(deepest, _LEVELS[-1])}))


def _outcomes(terms: PredictionTerms) -> Ints:
    return np.array(_OUTCOMES if terms.limits.outcomes is None else (terms.limits.outcomes,))


def _waits(terms: PredictionTerms, mode: OnlineMode) -> list[bool]:
    if mode not in SPLIT:
        return [False]
    if terms.limits.wait_for_features is not None:
        return [terms.limits.wait_for_features]
    return [False] if terms.staleness >= _TOLERANT else [False, True]


def _budget(terms: PredictionTerms, levels: Ints) -> Ints:
    """Return the node budget: as many nodes per level as the shape has, and no fewer in all for shallow trees."""
    shape, most = terms.limits.shape, terms.limits.max_nodes
    if terms.limits.fixed:
        return np.full_like(levels, min(shape.budget, most))
    nodes = levels if shape.breadth == 1 else np.maximum(shape.budget, np.rint(shape.budget * levels / shape.levels))
    return np.minimum(nodes, most).astype(np.int64)
