"""How fast each mode is: tokens a cycle over the cycle's time, in closed form.

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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, assert_never

import numpy as np

from outrider_client.controller.decision import Choice, OnlineMode, Variant
from outrider_client.controller.measured import Measured
from outrider_client.controller.terms import Floats, Ints, Terms

_CANCELLED = 0.5  # levels
_LEAST = 0.5  # of a cycle's time that is left where they were shorter than they should be


@dataclass(frozen=True, slots=True)
class Prediction:
    """Means over cycles: `tau` tokens in `cycle_ms`; `hit_rate` of the drafts had been grown ahead."""

    tau: float
    cycle_ms: float
    hit_rate: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.tau / self.cycle_ms if self.cycle_ms > 0 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Choices of one mode side by side; the arrays broadcast."""

    mode: OnlineMode
    breadth: int
    wait_for_features: bool
    variant: Variant
    levels: Ints
    budget: Ints
    ahead_levels: Ints
    ahead_budget: Ints
    outcomes: Ints
    in_flight: Ints

    @classmethod
    def of(cls, choice: Choice) -> Self:
        """That one alone."""
        names = ("levels", "budget", "ahead_levels", "ahead_budget", "outcomes", "in_flight")
        numbers = (np.array([getattr(choice, name)]) for name in names)
        return cls(choice.mode, choice.breadth, choice.wait_for_features, choice.variant, *numbers)

    def at(self, index: int, shape: tuple[int, ...]) -> Choice:
        """One of them, numbered as in an array of that shape."""
        arrays = (self.levels, self.budget, self.ahead_levels, self.ahead_budget, self.outcomes, self.in_flight)
        levels, budget, ahead_levels, ahead_budget, outcomes, in_flight = (
            int(np.broadcast_to(array, shape).flat[index]) for array in arrays
        )
        return Choice(
            self.mode,
            levels=levels,
            breadth=self.breadth,
            budget=budget,
            ahead_levels=ahead_levels,
            ahead_budget=ahead_budget,
            outcomes=outcomes,
            in_flight=in_flight,
            wait_for_features=self.wait_for_features,
            variant=self.variant,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Of a grid: see Prediction."""

    tau: Floats
    cycle_ms: Floats
    hit_rate: Floats

    def at(self, index: int) -> Prediction:
        tau, hit_rate = (np.broadcast_to(part, self.cycle_ms.shape).flat[index] for part in (self.tau, self.hit_rate))
        return Prediction(float(tau), float(self.cycle_ms.flat[index]), float(hit_rate))


def predict(measured: Measured, choice: Choice) -> Prediction:
    """What `choice` would bring."""
    return predict_all(Terms(measured), Grid.of(choice)).at(0)


def predict_all(terms: Terms, grid: Grid) -> Predictions:
    """What each choice of the grid would bring."""
    tau, cycle_ms, hit_rate = _of_mode(terms, grid)
    if grid.mode != "stream":  # features share the way with verdicts
        cycle_ms = np.maximum(cycle_ms, terms.transfer(tau, grid.variant.bytes_per_token))
        cycle_ms = np.maximum(cycle_ms + terms.measured.late_ms.get(grid.mode, 0.0), _LEAST * cycle_ms)
    return Predictions(tau, cycle_ms, hit_rate)


def _of_mode(terms: Terms, grid: Grid) -> tuple[Floats, Floats, Floats]:
    match grid.mode:
        case "stream":
            return np.ones(1), np.full(1, terms.one_token), np.zeros(1)
        case "server-draft":
            cycle_ms = np.asarray(terms.verify + grid.levels * terms.server_level, np.float64)
            return terms.tau(grid.levels, grid.breadth), cycle_ms, np.zeros(1)
        case "stop-and-wait":
            tau, draft_ms = _after_a_miss(terms, grid)
            return tau, draft_ms + terms.flight(grid.budget), np.zeros(1)
        case "proactive":
            return _proactive(terms, grid)
        case "pipelined":
            return _pipelined(terms, grid)
        case _:
            assert_never(grid.mode)


def _proactive(terms: Terms, grid: Grid) -> tuple[Floats, Floats, Floats]:
    tau, draft_ms = _after_a_miss(terms, grid)
    ahead_tau = np.maximum(_tau(terms, grid, grid.ahead_levels) * terms.staleness, 1.0)
    hit, _ = _hits(terms, grid)
    hit_ms = np.maximum(terms.flight(grid.ahead_budget), _growing_ahead(terms, grid))
    miss_ms = terms.flight(grid.budget) + draft_ms + _CANCELLED * _level(terms, grid)
    return hit * ahead_tau + (1.0 - hit) * tau, hit * hit_ms + (1.0 - hit) * miss_ms, hit


def _pipelined(terms: Terms, grid: Grid) -> tuple[Floats, Floats, Floats]:
    tau, draft_ms = _after_a_miss(terms, grid)
    staleness = terms.staleness ** (0.5 * (1 + grid.in_flight))  # features lag the more, the more is in flight
    ahead_tau = np.maximum(_tau(terms, grid, grid.ahead_levels) * staleness, 1.0)
    hit, likeliest = _hits(terms, grid)
    flight_ms, growing_ms = terms.flight(grid.ahead_budget), _growing_ahead(terms, grid)
    interval_ms = np.maximum(np.maximum(terms.verify, growing_ms), flight_ms / grid.in_flight)
    miss_ms = terms.flight(grid.budget) + draft_ms + _CANCELLED * _level(terms, grid)
    other_ms = np.maximum(flight_ms, growing_ms)
    cycle_ms = likeliest * interval_ms + (hit - likeliest) * other_ms + (1.0 - hit) * miss_ms
    return hit * ahead_tau + (1.0 - hit) * tau, cycle_ms, hit


def _after_a_miss(terms: Terms, grid: Grid) -> tuple[Floats, Floats]:
    """Tokens of a tree grown with nothing in flight, and the time that growing it takes."""
    tau = _tau(terms, grid, grid.levels)
    draft_ms = np.asarray(grid.levels * _level(terms, grid), np.float64)
    if grid.wait_for_features:
        return tau, draft_ms + terms.features_wait(tau, grid.variant.bytes_per_token)
    return np.maximum(tau * terms.staleness, 1.0), draft_ms


def _hits(terms: Terms, grid: Grid) -> tuple[Floats, Floats]:
    """Shares of the drafts that were grown ahead, and ahead of what was thought likeliest."""
    after_hit = terms.hit(grid.outcomes, grid.ahead_levels, grid.breadth)
    after_miss = terms.hit(grid.outcomes, grid.levels, grid.breadth)
    hit = after_miss / (1.0 - after_hit + after_miss)
    likeliest = terms.hit(np.ones_like(grid.outcomes[..., :1]), grid.ahead_levels, grid.breadth)
    return hit, np.minimum(likeliest, hit)


def _tau(terms: Terms, grid: Grid, levels: Ints) -> Floats:
    tau = 1.0 + (terms.tau(levels, grid.breadth) - 1.0) * grid.variant.tau_factor
    return np.asarray(np.minimum(tau, levels + 1.0), np.float64)


def _level(terms: Terms, grid: Grid) -> float:
    return terms.level_of(grid.breadth) * grid.variant.level_factor


def _growing_ahead(terms: Terms, grid: Grid) -> Floats:
    """A level more than the trees have, which tells what may follow their leaves."""
    return (grid.ahead_levels + 1) * _level(terms, grid) * terms.batch(grid.outcomes)
