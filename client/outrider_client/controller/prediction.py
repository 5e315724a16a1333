"""Predicts the speed of each mode in closed form: tokens per cycle over the time of a cycle.

R round trip, V a pass over a draft, F = R + V a flight, d a draft level, D levels, G outcomes drafted ahead at f(G)
times a level's time, p(G) the probability that the verdict is among them.

    stream          1 / V_1
    server-draft    tau(D) / (V + D d_server)
    stop-and-wait   tau(D) / (F + D d)
    proactive       tau / (p(G) A + (1 - p(G)) (F + (D + 1/2) d)),     A = max(F, (D + 1) f d)
                    a flight is paid for each verdict; the half level is the one that a miss has to cancel
    pipelined       tau / (p(1) I + (p(G) - p(1)) A + (1 - p(G)) (F + (D + 1/2) d)),    I = max(V, (D + 1) f d, F / k)
                    k in flight: a verdict that was guessed right has the next one I behind it

Trees grown ahead (D' levels, in hidden time) and after a miss (D) differ; with hit rates p' and p after them, the share
h = p / (1 - p' + p) of all drafts was grown ahead. A family that suffers from stale features loses that factor of tau
on every draft grown ahead, and elsewhere unless it waits for them. A cycle takes as much longer as the mode's have
(`late_ms`), so that what each verdict costs beside all this weighs more on short cycles than on long ones.

The terms come from measurements, with a guess for each that was not measured. Guesses are optimistic, so that what is
unknown gets tried once and is known from then on. Arrays of levels, outcomes and budgets broadcast. Times are in ms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log
from typing import Self, assert_never

import numpy as np
from numpy.typing import NDArray

from outrider_client.controller.measurements import Choice, Measurements, OnlineMode

PRIOR_ACCEPTANCE = 0.8
ACCEPTANCE_DECAY = 0.97  # acceptance of a level over that of the last measured one, per level
_PASS_OF_LEVELS = 5.0  # a target's pass, in draft levels
_FACTOR_PER_OUTCOME = 0.01  # drafted side by side; 0.16 on a CPU, which is soon measured
_PACKET_BYTES = 1400.0
_SURE = 1e-6

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class PredictionTerms:
    """The terms of the closed forms, for one set of measurements."""

    def __init__(self, measured: Measurements) -> None:
        self.measured = measured
        self.limits = measured.limits
        self.rtt = measured.rtt_ms or 0.0
        self.verify = _first(measured.verify_ms, measured.stream_ms, 0.0)
        self.flight = self.rtt + self.verify  # from sending a draft to its verdict
        self.one_token = _first(measured.stream_ms, self.verify)
        self.level = _first(measured.draft_level_ms, self.verify / _PASS_OF_LEVELS)
        self.server_level = _first(measured.server_level_ms, self.level)
        self.staleness = measured.staleness_factor
        self._deepest = max(self.limits.max_levels, self.limits.shape.levels, round(measured.hit_levels), 1)
        reached = np.cumprod(np.minimum(self._acceptance(), 1.0))
        taus = 1.0 + np.concatenate(([0.0], np.cumsum(reached)))
        freshness = 1.0 - measured.stale_share * (1.0 - measured.staleness_factor)
        self._taus = np.minimum(taus / freshness, 1.0 + np.arange(len(taus)))

    def transfer(self, num_tokens: Floats) -> Floats:
        """Return the time to transfer the features of `num_tokens` tokens."""
        per_byte = 8e3 / self.measured.down_bps if self.measured.down_bps else 0.0
        return per_byte * self.limits.bytes_per_token * num_tokens

    def features_wait(self, num_tokens: Floats) -> Floats:
        """Return the time from a verdict to its features; a reply of several packets waits for the slowest."""
        if self.measured.features_ms is not None:
            return np.full_like(num_tokens, self.measured.features_ms)
        late_ms = np.where(num_tokens * self.limits.bytes_per_token > _PACKET_BYTES, self.measured.jitter_ms, 0.0)
        return self.transfer(num_tokens) + late_ms

    def tau(self, levels: Ints) -> Floats:
        """Return tokens per verdict on a draft with all features: 1 + sum over i of prod over k <= i of a_k."""
        return np.asarray(self._taus[np.minimum(levels, self._deepest)])

    def hit(self, outcomes: Ints, levels: Ints) -> Floats:
        """Return the probability that a verdict is among the outcomes drafted ahead.

        The measured rate is extrapolated to this number of outcomes and levels along the prior's curve.
        """
        exponents = np.array([self._hit_exponent(number) for number in outcomes.ravel().tolist()])
        return np.asarray(self._prior_hit(outcomes, levels) ** exponents.reshape(outcomes.shape))

    def batch(self, outcomes: Ints) -> Floats:
        """Return the factor on a level's time when so many outcomes are drafted side by side."""
        factors = {1: 1.0, **self.measured.batch_factors}
        if len(factors) == 1:
            return np.asarray(1.0 + _FACTOR_PER_OUTCOME * (outcomes - 1))
        return np.array([_interpolated(factors, count) for count in outcomes.ravel().tolist()]).reshape(outcomes.shape)

    def _acceptance(self) -> Floats:
        measured = list(self.measured.acceptance[: self._deepest]) or [PRIOR_ACCEPTANCE]
        beyond = np.arange(1, self._deepest - len(measured) + 1)
        return np.concatenate((measured, measured[-1] * ACCEPTANCE_DECAY**beyond))

    def _prior_hit(self, outcomes: Ints, levels: Ints) -> Floats:
        """Return the prior: the accepted share of a draft to the power 2.6 / G^(1/3)."""
        share = (self.tau(levels) - 1.0) / levels
        return np.asarray(np.clip(share, 1e-3, 1.0 - _SURE) ** (2.6 / np.cbrt(outcomes)))

    def _hit_exponent(self, outcomes: int) -> float:
        """Return the exponent from the prior to the hit rate measured at about so many outcomes."""
        if not self.measured.hit_rates:
            return 1.0
        nearest = min(self.measured.hit_rates, key=lambda number: abs(log(number / outcomes)))
        # Strictly between 0 and 1: both logarithms below must be finite and not 0.
        rate = min(max(self.measured.hit_rates[nearest], 1e-3), 1.0 - _SURE)
        levels = np.array(max(round(self.measured.hit_levels), 1))
        return log(rate) / log(float(self._prior_hit(np.array(nearest), levels)))


def _first(*values: float | None) -> float:
    """Return the first known value."""
    return next(value for value in values if value is not None)


def _interpolated(points: Mapping[int, float], at: int) -> float:
    """Interpolate linearly between the points, and extrapolate along the last two."""
    xs = sorted(points)
    right = min(max(bisect_left(xs, at), 1), len(xs) - 1)
    x0, x1 = xs[right - 1], xs[right]
    return points[x0] + (points[x1] - points[x0]) * (at - x0) / (x1 - x0)


_CANCELLED = 0.5  # levels
_NUMBERS = ("levels", "budget", "ahead_levels", "ahead_budget", "outcomes", "in_flight")  # of a Choice
_NEARLY = 0.99
_LEAST = 0.5  # share of a cycle's predicted time that negative `late_ms` leaves at least


@dataclass(frozen=True, slots=True)
class Prediction:
    """Means over cycles of a choice: `tau` tokens in `cycle_ms`."""

    choice: Choice
    tau: float
    cycle_ms: float

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.tau / self.cycle_ms if self.cycle_ms > 0 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceGrid:
    """Choices of one mode as arrays that broadcast."""

    mode: OnlineMode
    breadth: int
    wait_for_features: bool
    levels: Ints
    budget: Ints
    ahead_levels: Ints
    ahead_budget: Ints
    outcomes: Ints
    in_flight: Ints

    @classmethod
    def of(cls, choice: Choice) -> Self:
        """Return the grid of a single choice."""
        numbers = (np.array([getattr(choice, name)]) for name in _NUMBERS)
        return cls(choice.mode, choice.breadth, choice.wait_for_features, *numbers)

    def at(self, index: int, shape: tuple[int, ...]) -> Choice:
        """Return the choice at a flat index of an array of that shape."""
        numbers = {name: int(np.broadcast_to(getattr(self, name), shape).flat[index]) for name in _NUMBERS}
        choice = Choice(self.mode, breadth=self.breadth, wait_for_features=self.wait_for_features)
        return replace(choice, **numbers)  # type: ignore[arg-type] # each of them is a number


def predict(terms: PredictionTerms, choice: Choice) -> Prediction:
    return replace(best_of(terms, ChoiceGrid.of(choice)), choice=choice)


def best_of(terms: PredictionTerms, grid: ChoiceGrid) -> Prediction:
    """Return the fastest choice of a grid; among those nearly as fast the first one, which drafts least."""
    tau, cycle_ms = _of_mode(terms, grid)
    if grid.mode != "stream":  # features share the link with verdicts
        cycle_ms = np.maximum(cycle_ms, terms.transfer(tau))
        cycle_ms = np.maximum(cycle_ms + terms.measured.late_ms.get(grid.mode, 0.0), _LEAST * cycle_ms)
    means = np.broadcast_arrays(tau, cycle_ms)
    speeds = means[0] / np.maximum(means[1], 1e-9)
    index = int(np.argmax(speeds >= _NEARLY * speeds.max()))
    return Prediction(grid.at(index, speeds.shape), *(float(mean.flat[index]) for mean in means))


def _of_mode(terms: PredictionTerms, grid: ChoiceGrid) -> tuple[Floats, Floats]:
    match grid.mode:
        case "stream":
            return np.ones(1), np.full(1, terms.one_token)
        case "server-draft":
            return terms.tau(grid.levels), np.asarray(terms.verify + grid.levels * terms.server_level, np.float64)
        case "stop-and-wait":
            tau, draft_ms = _after_a_miss(terms, grid)
            return tau, draft_ms + terms.flight
        case "proactive":
            return _proactive(terms, grid)
        case "pipelined":
            return _pipelined(terms, grid)
        case _:
            assert_never(grid.mode)


def _proactive(terms: PredictionTerms, grid: ChoiceGrid) -> tuple[Floats, Floats]:
    tau, draft_ms = _after_a_miss(terms, grid)
    ahead_tau = np.maximum(terms.tau(grid.ahead_levels) * terms.staleness, 1.0)
    hit, _ = _hits(terms, grid)
    hit_ms = np.maximum(terms.flight, _growing_ahead(terms, grid))
    miss_ms = terms.flight + draft_ms + _CANCELLED * terms.level
    return hit * ahead_tau + (1.0 - hit) * tau, hit * hit_ms + (1.0 - hit) * miss_ms


def _pipelined(terms: PredictionTerms, grid: ChoiceGrid) -> tuple[Floats, Floats]:
    tau, draft_ms = _after_a_miss(terms, grid)
    staleness = terms.staleness ** (0.5 * (1 + grid.in_flight))  # the more is in flight, the more features lag
    ahead_tau = np.maximum(terms.tau(grid.ahead_levels) * staleness, 1.0)
    hit, likeliest = _hits(terms, grid)
    flight_ms, growing_ms = terms.flight, _growing_ahead(terms, grid)
    interval_ms = np.maximum(np.maximum(terms.verify, growing_ms), flight_ms / grid.in_flight)
    miss_ms = terms.flight + draft_ms + _CANCELLED * terms.level
    other_ms = np.maximum(flight_ms, growing_ms)
    cycle_ms = likeliest * interval_ms + (hit - likeliest) * other_ms + (1.0 - hit) * miss_ms
    return hit * ahead_tau + (1.0 - hit) * tau, cycle_ms


def _after_a_miss(terms: PredictionTerms, grid: ChoiceGrid) -> tuple[Floats, Floats]:
    """Return tokens of a tree grown with nothing in flight, and the time to grow it."""
    tau = terms.tau(grid.levels)
    draft_ms = np.asarray(grid.levels * terms.level, np.float64)
    if grid.wait_for_features:
        return tau, draft_ms + terms.features_wait(tau)
    return np.maximum(tau * terms.staleness, 1.0), draft_ms


def _hits(terms: PredictionTerms, grid: ChoiceGrid) -> tuple[Floats, Floats]:
    """Return the shares of drafts grown ahead, and grown ahead of the likeliest outcome."""
    after_hit = terms.hit(grid.outcomes, grid.ahead_levels)
    after_miss = terms.hit(grid.outcomes, grid.levels)
    hit = after_miss / (1.0 - after_hit + after_miss)
    likeliest = terms.hit(np.ones_like(grid.outcomes[..., :1]), grid.ahead_levels)
    return hit, np.minimum(likeliest, hit)


def _growing_ahead(terms: PredictionTerms, grid: ChoiceGrid) -> Floats:
    """Return the time to grow trees ahead: one more level than they have, to see what may follow their leaves."""
    return (grid.ahead_levels + 1) * terms.level * terms.batch(grid.outcomes)
