"""Sessions of different taps, rules and lengths in one flat batch: each is answered and sent what it would be alone."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from talk import KeysTap
from tiny_targets import DEVICE, random_tokens, random_tree, target, tree_around

from outrider_drafters.contracts.tap import Activations, LastHiddenTap
from outrider_proto.frames import Sampling, TapInfo
from outrider_proto.tree import DraftTree
from outrider_server.engine.engine import Engine, StepInput, StepResult
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence


class SumTap:
    """The sum of a hidden state over all positions so far: nothing could remember more of a session."""

    needs_kv = False
    hidden_layers = (2,)
    info = TapInfo("sum", "test", 32)

    def new_state(self) -> "SumState":
        return SumState()


class SumState:
    def __init__(self) -> None:
        self.sums = torch.zeros(1, 32, device=DEVICE)

    def rows(self, acts: Activations) -> torch.Tensor:
        rows = self.sums[-1] + acts.hidden[2].cumsum(0)
        self.sums = torch.cat([self.sums, rows])
        return rows

    def truncate(self, length: int) -> None:
        self.sums = self.sums[: 1 + length]


TAPS = {"sum": SumTap(), "keys": KeysTap(), "last": LastHiddenTap(32), "none": None}
RULES = (
    Sampling(),
    Sampling(0.9, seed=4),
    Sampling(1.5, acceptance="typical", epsilon=0.02, alpha=0.5),
    Sampling(0.8, top_k=9),
)


@dataclass
class Script:
    """One session's passes, fixed beforehand: chain, tree, and how many of its tokens are dropped before each."""

    tap: str
    sampling: Sampling
    passes: list[tuple[list[int], DraftTree, int]]
    sequence: Sequence = field(init=False)
    walks: list = field(default_factory=list)
    sent: list = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sequence = Sequence(target().kv, TAPS[self.tap])

    def work(self, number: int) -> StepInput:
        chain, tree, dropped = self.passes[number]
        self.sequence.truncate(max(0, len(self.sequence.tokens) - dropped))
        return StepInput(self.sequence, chain, tree, Sampler(self.sampling) if len(tree) else None)

    def take(self, engine: Engine, result: StepResult) -> None:
        have = len(self.sequence.tokens)
        engine.commit(result)
        engine.tap([result.step_input.sequence])
        self.walks.append(result.accepted)
        if self.sequence.tap is not None:
            self.sent.append(self.sequence.features(max(0, have - 2)))


def scripts(seed: int) -> list[Script]:
    """Four sessions with prompts of 1 to 90 tokens, and trees some of whose nodes are the target's own choice."""
    rng = np.random.default_rng(seed)
    made = []
    for tap, sampling, length in zip(TAPS, RULES, (40, 3, 90, 1), strict=True):
        prompt = random_tokens(rng, length)
        truth = plain_greedy(target(), prompt, 8)
        passes = [(prompt, tree_around(rng, truth, 3, 9), 0), (random_tokens(rng, 5), DraftTree(), 0)]
        passes += [(random_tokens(rng, 2), random_tree(rng, 12), int(rng.integers(0, 4))) for _ in range(4)]
        made.append(Script(tap, sampling, passes))
    return made


def play(engine: Engine, together: list[Script]) -> None:
    for number in range(len(together[0].passes)):
        for script, result in zip(together, engine.verify([s.work(number) for s in together]), strict=True):
            script.take(engine, result)


@pytest.mark.parametrize("seed", range(6))
def test_each_answers_as_it_would_alone(seed):
    engine, alone, together = Engine(target()), scripts(seed), scripts(seed)
    for script in alone:
        play(engine, [script])
    play(engine, together)
    for expected, got in zip(alone, together, strict=True):
        assert got.walks == expected.walks
        assert got.sequence.tokens == expected.sequence.tokens
        assert [(first, len(rows)) for first, rows in got.sent] == [(first, len(rows)) for first, rows in expected.sent]
        for (_, ours), (_, theirs) in zip(got.sent, expected.sent, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert any(walk.path for script in together for walk in script.walks if walk)


@pytest.mark.parametrize("tap", ["sum", "keys", "last"])
def test_features_after_many_turns_are_those_of_a_fresh_session(tap):
    script = next(script for script in scripts(7) if script.tap == tap)
    play(Engine(target()), [script])
    fresh = Script(tap, Sampling(), [(list(script.sequence.tokens), DraftTree(), 0)])
    play(Engine(target()), [fresh])
    (first, ours), (theirs_first, theirs) = script.sequence.features(0), fresh.sequence.features(0)
    assert first == theirs_first
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_of_a_tap_that_is_read_at_its_newest_only_that_row_is_sent():
    script = next(script for script in scripts(3) if script.tap == "keys")
    play(Engine(target()), [script])
    assert [len(rows) for _, rows in script.sent] == [1] * len(script.sent)
    assert script.sequence.features(0)[0] == len(script.sequence.tokens) - 1
    assert len(script.sequence.features(len(script.sequence.tokens))[1]) == 0
