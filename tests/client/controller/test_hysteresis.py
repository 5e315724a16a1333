"""The controller running through simulated worlds, against every mode held fixed in the same world.

The simulator draws accepted tokens, hits and round trips one by one, and has costs that the closed forms do not know.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from outrider_client.controller.decision import ModeSelector
from outrider_client.controller.measurements import AHEAD, SPLIT, Choice, Measurements, ModeLimits
from outrider_client.controller.observer import CycleObserver
from outrider_client.controller.prediction import PredictionTerms
from outrider_client.controller.search import best_in
from outrider_proto.frames import Verdict
from outrider_proto.tree import DraftTree

ALL = ModeLimits(frozenset(("stream", *SPLIT)))
OFFERED = ModeLimits(frozenset(("stream", "server-draft", *SPLIT)))


@dataclass(frozen=True)
class World:
    """Times in ms. `overhead_ms`: of each draft that the closed forms know nothing of; `ahead_ms`: of one more where
    drafts are grown ahead."""

    rtt_ms: float
    verify_ms: float
    acceptance: float
    likeliest: float = 0.34  # p(1)
    among_all: float = 0.57  # p(8)
    level_ms: float = 7.0
    server_level_ms: float = 7.0
    overhead_ms: float = 1.0
    ahead_ms: float = 0.0
    shadow: bool = True  # whether the client drafts while it reads along
    limits: ModeLimits = ALL

    @property
    def truth(self) -> Measurements:
        return Measurements(
            limits=self.limits,
            rtt_ms=self.rtt_ms,
            verify_ms=self.verify_ms,
            stream_ms=0.92 * self.verify_ms,
            draft_level_ms=self.level_ms,
            server_level_ms=self.server_level_ms,
            acceptance=(self.acceptance,) * 12,
            hit_rates={1: self.likeliest, 8: self.among_all},
            batch_factors={8: 1.0},
        )

    def hit_rate(self, outcomes: int, levels: int) -> float:
        share = {1: 0.0, 2: 0.35, 4: 0.7, 8: 1.0}[outcomes]
        at_five = self.likeliest + share * (self.among_all - self.likeliest)
        return at_five ** (levels / 5) ** 0.5


class SimulatedClient:
    """An answer without end in a world; `now_ms` is its clock."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.now_ms = 0.0
        self.num_tokens = 0
        self.observer = CycleObserver(world.limits, Measurements(batch_factors={8: 1.0}))
        self._random = random.Random(seed)
        self._rank: int | None = None  # of the outcome that the last verdict was, among those drafted ahead

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.num_tokens / self.now_ms

    def switch(self, choice: Choice) -> None:
        self.now_ms += self.world.rtt_ms
        self._rank = None
        self.observer.began(choice.mode, self.now_ms / 1e3)

    def cycle(self, choice: Choice) -> None:
        rtt_ms = max(self._random.gauss(self.world.rtt_ms, 0.2 * self.world.rtt_ms), 0.0)
        self.observer.record_rtt(self.world.rtt_ms / 1e3, 0.16 * self.world.rtt_ms / 1e3)
        self.now_ms += self._lasts(choice, rtt_ms)
        verdict, tree, levels = self._verdict(choice)
        if choice.mode in AHEAD:
            self._rank = self._outcome(choice.outcomes, choice.levels if self._rank is None else choice.ahead_levels)
            self.observer.record_outcome(self._rank, choice.outcomes)
            self.observer.record_drafting(self.world.level_ms / 1e3, 1, choice.outcomes)
        if choice.mode in SPLIT:
            self.observer.record_drafting(choice.levels * self.world.level_ms / 1e3, choice.levels)
        if choice.mode == "stream" and self.world.shadow and self._random.random() < 1 / 8:
            self._draft_on_the_side()
        self.observer.record_verdict(self.now_ms / 1e3, verdict, tree, levels)
        self.num_tokens += len(verdict.path) + len(verdict.tokens) + 1

    def _lasts(self, choice: Choice, rtt_ms: float) -> float:
        world = self.world
        flight_ms = rtt_ms + world.verify_ms + world.overhead_ms
        draft_ms, growing_ms = choice.levels * world.level_ms, (choice.ahead_levels + 1) * world.level_ms
        match choice.mode:
            case "stream":
                return 0.92 * world.verify_ms
            case "server-draft":
                return world.verify_ms + choice.levels * world.server_level_ms
            case "stop-and-wait":
                return draft_ms + flight_ms
            case "proactive":
                if self._rank is None:
                    return flight_ms + draft_ms + self._random.random() * world.level_ms + world.ahead_ms
                return max(flight_ms, growing_ms) + world.ahead_ms
        if self._rank is None:
            return flight_ms + draft_ms + self._random.random() * world.level_ms + world.ahead_ms
        interval_ms = max(world.verify_ms, growing_ms, flight_ms / choice.in_flight)
        return (interval_ms if self._rank == 0 else max(flight_ms, growing_ms)) + world.ahead_ms

    def _verdict(self, choice: Choice) -> tuple[Verdict, DraftTree | None, int]:
        verify_us = int(1e3 * self.world.verify_ms)
        if choice.mode == "stream":
            return Verdict(0, (), 7, verify_us=verify_us), None, 0
        levels = choice.levels if self._rank is None else choice.ahead_levels
        num_accepted = self._accepted(levels)
        if choice.mode == "server-draft":
            draft_us = int(1e3 * levels * self.world.server_level_ms)
            tokens = tuple(range(num_accepted))
            return Verdict(0, (), 7, verify_us=verify_us, tokens=tokens, draft_us=draft_us), None, levels
        tree = DraftTree.chain(range(levels))
        return Verdict(0, tuple(range(num_accepted)), 7, verify_us=verify_us), tree, 0

    def _accepted(self, levels: int) -> int:
        num_accepted = 0
        while num_accepted < levels and self._random.random() < self.world.acceptance:
            num_accepted += 1
        return num_accepted

    def _draft_on_the_side(self) -> None:
        """Compare a trial draft with the text that the target writes anyway."""
        levels = self.world.limits.shape.levels
        self.observer.record_drafting(levels * self.world.level_ms / 1e3, levels)
        self.observer.record_path(DraftTree.chain(range(levels)), tuple(range(self._accepted(levels))))

    def _outcome(self, outcomes: int, levels: int) -> int | None:
        drawn = self._random.random()
        if drawn < self.world.hit_rate(1, levels):
            return 0
        return 1 if drawn < self.world.hit_rate(outcomes, levels) else None


def run_fixed(world: World, mode: str, num_tokens: int = 6000) -> float:
    simulated, choice = SimulatedClient(world, 1), best_in(PredictionTerms(world.truth), mode).choice
    while simulated.num_tokens < num_tokens:
        simulated.cycle(choice)
    return simulated.tokens_per_second


def run_auto(world: World, num_tokens: int = 5000, seed: int = 2) -> tuple[SimulatedClient, list[Choice]]:
    simulated, taken = SimulatedClient(world, seed), []
    controller = ModeSelector(simulated.observer)
    while simulated.num_tokens < num_tokens:
        choice = controller.decide()
        if not taken or choice.mode != taken[-1].mode:
            simulated.switch(choice)
            taken.append(choice)
        simulated.cycle(choice)
    return simulated, taken


GRID = [
    World(5.0, 33.0, 0.65, 0.15, 0.35),
    World(30.7, 33.0, 0.65, 0.15, 0.35),
    World(30.7, 33.0, 0.83),
    World(30.7, 33.0, 0.93, 0.6, 0.8),
    World(53.6, 33.0, 0.65, 0.15, 0.35),
    World(53.6, 33.0, 0.83),
    World(53.6, 33.0, 0.93, 0.6, 0.8),
    World(150.0, 33.0, 0.93, 0.6, 0.8),
    World(30.7, 10.0, 0.83),
    World(53.6, 70.0, 0.83),
    World(30.7, 33.0, 0.83, limits=OFFERED),
    World(5.0, 33.0, 0.83, level_ms=4.0, server_level_ms=12.0, limits=OFFERED),
]


@pytest.mark.parametrize("world", GRID, ids=lambda world: f"{world.rtt_ms:g}-{world.verify_ms:g}-{world.acceptance}")
def test_auto_is_within_five_percent_of_the_best_fixed_mode(world):
    """Trials and switches from a cold start on are included."""
    fixed = {mode: run_fixed(world, mode) for mode in world.limits.modes}
    simulated, taken = run_auto(world)
    assert simulated.tokens_per_second >= 0.95 * max(fixed.values())
    assert simulated.tokens_per_second >= 0.98 * max(fixed["stream"], fixed.get("server-draft", 0.0))
    assert len(taken) <= 12  # it does not wander with every review


@pytest.mark.parametrize(
    ("world", "is_tried"),
    [
        (World(53.6, 33.0, 0.8, ahead_ms=60.0), True),  # of which no formula knows, and stop-and-wait does not pay
        (World(30.7, 33.0, 0.4, 0.05, 0.15, shadow=False), False),
    ],
    ids=["measures slow", "hopeless drafter"],
)
def test_what_does_not_pay_is_left_whatever_is_predicted(world, is_tried):
    simulated, taken = run_auto(world, num_tokens=6000)
    assert any(choice.mode in AHEAD for choice in taken) or not is_tried
    assert simulated.tokens_per_second >= 0.98 * run_fixed(world, "stream")


def test_it_leaves_when_the_round_trip_grows_and_comes_back():
    near = World(20.0, 33.0, 0.83)
    simulated = SimulatedClient(near, 5)
    controller, modes = ModeSelector(simulated.observer), []
    for rtt_ms in (20.0, 400.0, 20.0):
        simulated.world = replace(near, rtt_ms=rtt_ms)
        for _ in range(300):
            choice = controller.decide()
            if not modes or choice.mode != modes[-1]:
                simulated.switch(choice)
                modes.append(choice.mode)
            simulated.cycle(choice)
        assert (modes[-1] == "stream") == (rtt_ms == 400.0)
