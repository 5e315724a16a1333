"""The terms of the closed forms in predict.py, from what was measured, with a guess for each that was not.

Guesses are on the bright side, so that what is unknown is tried once and then known. Levels, outcomes and budgets come
as arrays of any shapes that broadcast. Times in ms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from math import log

import numpy as np
from numpy.typing import NDArray

from outrider_client.controller.measured import Measured

PRIOR_ACCEPTANCE = 0.8
FURTHER_DOWN = 0.97  # acceptance of a level below the last one measured, against that one's
_PASS_OF_LEVELS = 5.0  # draft levels that a target's pass takes as long as
_FACTOR_PER_OUTCOME = 0.01  # drafted side by side; on a CPU 0.16, which is soon known
_DRAFT_BYTES = 100.0  # of a draft, framing and headers included
_NODE_BYTES = 4.0
_PACKET_BYTES = 1400.0
_SURE = 1e-6

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Terms:
    """Of one `Measured`."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.limits = measured.limits
        self.rtt = measured.rtt_ms or 0.0
        self.verify = _first(measured.verify_ms, measured.stream_ms, 0.0)
        self.one_token = _first(measured.stream_ms, self.verify)
        self.level = _first(measured.draft_level_ms, self.verify / _PASS_OF_LEVELS)
        self.server_level = _first(measured.server_level_ms, self.level)
        self.staleness = measured.staleness_factor
        self._freshness = 1.0 - measured.stale_share * (1.0 - measured.staleness_factor)
        self._deepest = max(self.limits.max_levels, self.limits.shape.levels, round(measured.hit_levels), 1)
        self._taus: dict[int, Floats] = {}

    def flight(self, budget: Ints) -> Floats:
        """From sending a draft of so many nodes to its verdict."""
        per_byte = 8e3 / self.measured.up_bps if self.measured.up_bps else 0.0
        return np.asarray(self.rtt + self.verify + per_byte * (_DRAFT_BYTES + _NODE_BYTES * budget), np.float64)

    def transfer(self, num_tokens: Floats, bytes_per_token: float) -> Floats:
        """Of the features of so many tokens."""
        per_byte = 8e3 / self.measured.down_bps if self.measured.down_bps else 0.0
        return per_byte * bytes_per_token * num_tokens

    def features_wait(self, num_tokens: Floats, bytes_per_token: float) -> Floats:
        """From a verdict to its features; a reply of several packets waits for the slowest."""
        if self.measured.features_ms is not None:
            return np.full_like(num_tokens, self.measured.features_ms)
        late_ms = np.where(num_tokens * bytes_per_token > _PACKET_BYTES, self.measured.jitter_ms, 0.0)
        return self.transfer(num_tokens, bytes_per_token) + late_ms

    def tau(self, levels: Ints, breadth: int) -> Floats:
        """Tokens a verdict on a draft with all its features: 1 + sum over i of prod over k <= i of a_k."""
        if breadth not in self._taus:
            reached = np.cumprod(np.minimum(self._acceptance() * self._kept(breadth), 1.0))
            taus = 1.0 + np.concatenate(([0.0], np.cumsum(reached)))
            self._taus[breadth] = np.minimum(taus / self._freshness, 1.0 + np.arange(len(taus)))
        return self._taus[breadth][np.minimum(levels, self._deepest)]

    def hit(self, outcomes: Ints, levels: Ints, breadth: int) -> Floats:
        """Probability that a verdict is among so many outcomes drafted ahead: what was measured, carried over to this
        number and these levels along the prior's curve."""
        exponents = np.array([self._steeper(number) for number in outcomes.ravel().tolist()]).reshape(outcomes.shape)
        return np.asarray(self._prior_hit(outcomes, levels, breadth) ** exponents)

    def batch(self, outcomes: Ints) -> Floats:
        """Factor on a level's time when so many outcomes are drafted side by side."""
        known = {1: 1.0, **self.measured.batch_factors}
        if len(known) == 1:
            return np.asarray(1.0 + _FACTOR_PER_OUTCOME * (outcomes - 1))
        return np.array([_interpolated(known, number) for number in outcomes.ravel().tolist()]).reshape(outcomes.shape)

    def level_of(self, breadth: int) -> float:
        """A draft level of another breadth than the one measured."""
        return self.level * (1.0 + self.row_share * (breadth - 1)) / (1.0 + self.row_share * (self._breadth - 1))

    @property
    def row_share(self) -> float:
        """What a row more a level costs, as a share of a level of one row: the slope of the batch factors."""
        widest = max(self.measured.batch_factors, default=1)
        if widest <= 1:
            return 0.0
        more = max(self.measured.batch_factors[widest] - 1.0, 0.0)
        return more / max((widest - 1) * self._breadth - more * (self._breadth - 1), 1.0)

    @property
    def _breadth(self) -> int:
        return self.limits.shape.breadth

    def _acceptance(self) -> Floats:
        known = list(self.measured.acceptance[: self._deepest]) or [PRIOR_ACCEPTANCE]
        beyond = np.arange(1, self._deepest - len(known) + 1)
        return np.concatenate((known, known[-1] * FURTHER_DOWN**beyond))

    def _kept(self, breadth: int) -> float:
        """Share of the accepted tokens that a tree of this breadth would have held too."""
        ranks = self.measured.ranks
        return 1.0 if breadth >= self._breadth or not ranks else sum(ranks[:breadth]) / sum(ranks)

    def _prior_hit(self, outcomes: Ints, levels: Ints, breadth: int) -> Floats:
        """The share of a draft that is accepted, to the power 2.6 / G^(1/3)."""
        share = (self.tau(levels, breadth) - 1.0) / levels
        return np.asarray(np.clip(share, 1e-3, 1.0 - _SURE) ** (2.6 / np.cbrt(outcomes)))

    def _steeper(self, outcomes: int) -> float:
        """The exponent that leads from the prior to the hit rate measured at about so many outcomes."""
        if not self.measured.hit_rates:
            return 1.0
        nearest = min(self.measured.hit_rates, key=lambda known: abs(log(known / outcomes)))
        rate = min(max(self.measured.hit_rates[nearest], 1e-3), 1.0 - _SURE)
        levels = np.array(max(round(self.measured.hit_levels), 1))
        return log(rate) / log(float(self._prior_hit(np.array(nearest), levels, self._breadth)))


def _first(*values: float | None) -> float:
    """The first that is known."""
    return next(value for value in values if value is not None)


def _interpolated(points: Mapping[int, float], at: int) -> float:
    """Between the points given, and along the last two beyond them."""
    xs = sorted(points)
    right = min(max(bisect_left(xs, at), 1), len(xs) - 1)
    x0, x1 = xs[right - 1], xs[right]
    return points[x0] + (points[x1] - points[x0]) * (at - x0) / (x1 - x0)
