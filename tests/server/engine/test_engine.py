"""The engine: greedy output equal to the plain loop under any draft, K/V after commit equal to a fresh prefill, and
sessions of different taps, rules and lengths in one flat batch answered as each would be alone."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from talk import KeysTap
from tiny_targets import CONFIGS, DEVICE, build, random_tokens, random_tree, target, tree_around

from outrider_drafters.contracts.tap import Activations, LastHiddenTap, StatelessTap
from outrider_drafters.contracts.token_rules import AnswerRules
from outrider_proto.frames import Finish, Sampling, TapInfo, TokenRules
from outrider_proto.tree import DraftTree
from outrider_server.engine.engine import Engine, StepInput, StepResult
from outrider_server.engine.reference_decode import plain_decode, plain_greedy
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target

GREEDY = Sampler(Sampling())


def cycle(engine: Engine, sequence: Sequence, chain: list[int], tree: DraftTree, sampler: Sampler = GREEDY):
    """One verdict, committed and tapped."""
    (result,) = engine.verify([StepInput(sequence, chain, tree, sampler)])
    engine.commit(result)
    engine.tap([result.step_input.sequence])
    return result.accepted


def speculate(
    engine: Engine, sequence: Sequence, prompt: list[int], count: int, draft, sampler: Sampler = GREEDY
) -> list[int]:
    """At least `count` new tokens (fewer after an end of text) by cycles; `draft` maps the answer so far to a tree."""
    answer: list[int] = []
    chain = prompt
    while len(answer) < count:
        tree = draft(answer)
        verdict = cycle(engine, sequence, chain, tree, sampler)
        answer += tree.path_tokens(verdict.path)
        if verdict.bonus is not None:
            answer.append(verdict.bonus)
            chain = [verdict.bonus]
        if verdict.finish is not Finish.NOT_YET:
            break
    return answer


@pytest.mark.parametrize("name", CONFIGS)
def test_any_draft_gives_the_plain_loops_output(name):
    rng = np.random.default_rng(5)
    prompt = random_tokens(rng, 10)
    truth = plain_greedy(target(name), prompt, 60)
    accepted = []

    def draft(answer: list[int]) -> DraftTree:
        rest = truth[len(answer) :]
        tree = tree_around(rng, rest, int(rng.integers(0, 6)), int(rng.integers(0, 12)))
        accepted.append(len(tree))
        return tree

    sequence = Sequence(target(name).kv, None)
    answer = speculate(Engine(target(name)), sequence, prompt, 60, draft)
    assert answer[:60] == truth
    assert len(accepted) < 40  # the trees did help
    assert sequence.tokens == (prompt + answer)[: len(sequence.tokens)]


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral-window", "gemma4", "gemma4-shared"])
def test_kv_after_commits_is_that_of_a_fresh_prefill(name):
    rng = np.random.default_rng(6)
    engine, prompt = Engine(target(name)), random_tokens(rng, 12)
    truth = plain_greedy(target(name), prompt, 40)
    sequence = Sequence(target(name).kv, None)
    speculate(engine, sequence, prompt, 40, lambda a: tree_around(rng, truth[len(a) :], 4, 9))
    fresh = Sequence(target(name).kv, None)
    cycle(engine, fresh, sequence.tokens, DraftTree())
    for ours, theirs in zip(
        sequence.slot.rows(0, sequence.slot.length), fresh.slot.rows(0, sequence.slot.length), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_the_plain_loop_is_generate():
    model = build("llama", seed=3)
    prompt = random_tokens(np.random.default_rng(7), 9)
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, pad_token_id=0)[
        0, 9:
    ].tolist()
    assert plain_greedy(Target.of(model), prompt, 40) == expected


@pytest.mark.parametrize("choices", ["plain", "batched"])
def test_rules_change_their_own_sessions_tokens_and_no_log_probabilities(choices):
    rng = np.random.default_rng(18)
    prompt, bias = random_tokens(rng, 12), ((41, 100.0),)
    rules = AnswerRules(TokenRules(logit_bias=bias, presence_penalty=2.0, answer_from=len(prompt)), None)
    ruled = Sampler(Sampling(), rules)
    tree = DraftTree.chain([41, 41, 6])
    inputs = [
        StepInput(Sequence(target().kv, None), prompt, tree, sampler, logprobs=2) for sampler in (GREEDY, ruled, GREEDY)
    ]
    free, forced, again = Engine(target(), choices=choices).verify(inputs)
    assert (free.accepted, free.logprobs) == (again.accepted, again.logprobs)
    assert forced.accepted.path == (0, 1)
    assert forced.accepted.bonus == 41
    assert forced.logprobs[0].top == free.logprobs[0].top
    assert forced.logprobs[0].logprob < free.logprobs[0].logprob


def test_a_pass_that_is_not_committed_leaves_no_trace():
    rng = np.random.default_rng(9)
    engine, prompt, sequence = Engine(target()), random_tokens(rng, 20), Sequence(target().kv, None)
    first = cycle(engine, sequence, prompt, DraftTree())
    engine.verify([StepInput(sequence, random_tokens(rng, 5), random_tree(rng, 9), GREEDY)])
    assert sequence.tokens == prompt
    sequence.truncate(0)
    assert cycle(engine, sequence, prompt, DraftTree()) == first


@pytest.mark.parametrize("sampling", [Sampling(0.9, top_p=0.95, seed=3), Sampling(1.1, top_k=20, seed=2**62)])
def test_sampled_text_is_the_same_whatever_is_drafted(sampling):
    rng = np.random.default_rng(10)
    prompt, sampler = random_tokens(rng, 8), Sampler(sampling)

    def say(draft, choices="plain") -> list[int]:
        engine = Engine(target(), choices=choices)
        return speculate(engine, Sequence(target().kv, None), prompt, 30, draft, sampler)[:30]

    truth = say(lambda _: DraftTree())
    assert truth != plain_greedy(target(), prompt, 30)
    assert truth == plain_decode(target(), prompt, 30, sampling)
    assert say(lambda a: tree_around(rng, truth[len(a) :], 3, 5)) == truth
    assert say(lambda a: tree_around(rng, truth[len(a) :], 3, 5), "batched") == truth


class KVTap(StatelessTap):
    """Every K and V value of a token: the strictest of taps."""

    needs_kv = True
    hidden_layers = (2,)

    def __init__(self) -> None:
        self.info = TapInfo("kv", "test", 4 * 2 * 2 * 8 + 32)

    def rows(self, acts: Activations) -> torch.Tensor:
        flat = [x.permute(2, 0, 1, 3).flatten(1) for x in (acts.keys, acts.values)]
        return torch.cat([*flat, acts.hidden[2]], dim=1)


@pytest.mark.parametrize("choices", ["plain", "batched"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_session_whose_logits_are_not_finite_stands_apart(dtype, choices, monkeypatch):
    """NaN, infinity and nothing but -inf choose no token; -inf elsewhere is a token that the model rules out."""
    forward, passes = Target.forward, []

    def spoiled(self, *arguments):
        output = forward(self, *arguments)
        logits = output.logits.to(dtype, copy=True)
        # Rows 0 and 1 are root and node of the first session; the others have a root each.
        logits[1, 7], logits[2, 7], logits[3], logits[4, 7] = float("nan"), float("inf"), -float("inf"), -float("inf")
        passes.append(len(logits))
        return replace(output, logits=logits)

    monkeypatch.setattr(Target, "forward", spoiled)
    inputs = []
    for tree, sampling in [
        (DraftTree((3,), (-1,)), Sampling()),
        *[(DraftTree(), Sampling(0.7))] * 2,
        *[(DraftTree(), Sampling())] * 2,
    ]:
        sequence = Sequence(target().kv, None)
        sequence.slot.reserve(2)
        inputs.append(StepInput(sequence, [9], tree, Sampler(sampling), logprobs=2))
    results = Engine(target(), choices=choices).verify(inputs)
    assert [result.finite for result in results] == [False, False, False, True, True]
    assert [bool(result.accepted) for result in results] == [False, False, False, True, True]
    assert [len(result.logprobs) for result in results] == [0, 0, 0, 1, 1]
    assert passes == [6]


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


TAPS = {"sum": SumTap(), "keys": KeysTap(), "last": LastHiddenTap(32), "none": None, "kv": KVTap()}
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
    for tap, sampling, length in zip(TAPS, RULES, (40, 3, 90, 1), strict=False):
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
@pytest.mark.parametrize("choices", ["plain", "batched"])
def test_each_answers_as_it_would_alone(seed, choices):
    alone, together = scripts(seed), scripts(seed)
    for script in alone:
        play(Engine(target()), [script])
    play(Engine(target(), choices=choices), together)
    for expected, got in zip(alone, together, strict=True):
        assert got.walks == expected.walks
        assert got.sequence.tokens == expected.sequence.tokens
        assert [(first, len(rows)) for first, rows in got.sent] == [(first, len(rows)) for first, rows in expected.sent]
        for (_, ours), (_, theirs) in zip(got.sent, expected.sent, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert any(walk.path for script in together for walk in script.walks if walk)


@pytest.mark.parametrize("tap", ["sum", "keys", "last", "kv"])
def test_features_after_many_turns_are_those_of_a_fresh_session(tap):
    """Beside a session without features, and with many tokens of the tree accepted."""
    made = scripts(7)
    script, other = Script(tap, Sampling(), made[0].passes), made[-1]
    play(Engine(target()), [script, other])
    fresh = Script(tap, Sampling(), [(list(script.sequence.tokens), DraftTree(), 0)])
    play(Engine(target()), [fresh])
    (first, ours), (theirs_first, theirs) = script.sequence.features(0), fresh.sequence.features(0)
    assert first == theirs_first
    assert len(script.sequence.features(len(script.sequence.tokens) - 2)[1]) == min(len(ours), 2)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
