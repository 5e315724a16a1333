"""Sessions with different drafters, rules and lengths in one flat batch: texts, trees and features as alone."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from golden_pairs import GOLDEN, PROMPTS, TARGETS, models, source, target

from outrider_drafters.contracts.drafter import DraftState
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_tap
from outrider_drafters.trees.grow import grow_tree
from outrider_proto.frames import Finish, Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine.engine import Engine, StepInput, StepResult
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence

NEW_TOKENS = 24
GREEDY = Sampling()
RULES = (GREEDY, Sampling(0.8, seed=5), GREEDY, Sampling(1.5, acceptance="typical", epsilon=0.05))


@dataclass
class Rider:
    """One session: a drafter's state here, a slot and a tap there, cycle by cycle."""

    name: str
    target_name: str
    sampling: Sampling
    prompt: list[int]
    state: DraftState = field(init=False)
    sequence: Sequence = field(init=False)
    tokens: list[int] = field(init=False)
    trees: list[DraftTree] = field(default_factory=list)
    sent: list[np.ndarray] = field(default_factory=list)
    finished: bool = False

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.state = models(self.name, self.target_name).drafter.new_state()
        self.state.append(self.tokens)
        tap = load_tap(source(self.name), GOLDEN / self.target_name)
        self.sequence = Sequence(target(self.target_name).kv, tap)

    @property
    def answer(self) -> list[int]:
        return self.tokens[len(self.prompt) :][:NEW_TOKENS]

    def work(self) -> StepInput:
        plan = models(self.name, self.target_name).drafter.plan or TreeShape()
        self.trees.append(grow_tree(self.state, plan) if self.answer else DraftTree())
        return StepInput(
            self.sequence, self.tokens[len(self.sequence.tokens) :], self.trees[-1], Sampler(self.sampling)
        )

    def take(self, engine: Engine, outcome: StepResult) -> None:
        engine.commit(outcome)
        engine.tap([outcome.step_input.sequence])
        new = [*self.trees[-1].path_tokens(outcome.accepted.path)]
        new += [] if outcome.accepted.bonus is None else [outcome.accepted.bonus]
        self.tokens += new
        self.state.append(new)
        if self.sequence.tap is not None:
            first, rows = self.sequence.features(self.state.num_features)
            self.sent.append(rows)
            self.state.add_features(first, torch.from_numpy(rows))
        self.finished = (
            len(self.tokens) - len(self.prompt) >= NEW_TOKENS or outcome.accepted.finish is not Finish.NOT_YET
        )


def ride(engine: Engine, riders: list[Rider]) -> None:
    while under_way := [rider for rider in riders if not rider.finished]:
        for rider, outcome in zip(under_way, engine.verify([rider.work() for rider in under_way]), strict=True):
            rider.take(engine, outcome)


def riders(target_name: str) -> list[Rider]:
    """Every drafter of this target, and the ones that need no checkpoint; two of each, of different lengths."""
    names = [name for name in TARGETS if TARGETS[name] == target_name]
    names += [name for name in ("lookup",) if name not in names]
    return [
        Rider(name, target_name, rule, PROMPTS[number % 2] * (1 + number) + [7 + number])
        for number, (name, rule) in enumerate(zip(names * 2, RULES * len(names), strict=False))
    ]


@pytest.mark.parametrize("target_name", sorted(set(TARGETS.values())))
def test_each_writes_as_it_would_alone(target_name):
    engine, alone, together = Engine(target(target_name)), riders(target_name), riders(target_name)
    for rider in alone:
        ride(engine, [rider])
    ride(engine, together)
    assert len({rider.name for rider in together}) > 1
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.answer == theirs.answer
        assert ours.trees == theirs.trees
        assert [len(rows) for rows in ours.sent] == [len(rows) for rows in theirs.sent]
        for rows, expected in zip(ours.sent, theirs.sent, strict=True):
            np.testing.assert_allclose(rows, expected, atol=1e-4)
        if ours.sampling.greedy:
            assert ours.answer == plain_greedy(target(target_name), ours.prompt, NEW_TOKENS)
