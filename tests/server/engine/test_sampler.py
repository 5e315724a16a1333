"""Choosing tokens: the distribution is that of transformers' own processors, and depends on seed and position alone."""

import math
import random
import weakref

import numpy as np
import pytest
import torch
from scipy import stats
from tiny_targets import random_tree

from outrider_proto.frames import Finish, Sampling
from outrider_proto.sampling_noise import uniform
from outrider_proto.tree import DraftTree
from outrider_server.engine.acceptance import AcceptedPath
from outrider_server.engine.sampler import BatchedChoices, ChoiceRequest, RowChoices, Sampler

FALSE_ALARM = 1e-4  # a right implementation fails each chi-square test below once in 10 000 seeds; seeds are fixed


def test_uniforms_are_uniform_and_uncorrelated_over_positions_and_seeds():
    numbers = np.array([[uniform(seed, position) for position in range(600)] for seed in range(40)])
    assert 0 <= numbers.min() <= numbers.max() < 1
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > FALSE_ALARM
    for other in (np.roll(numbers, 1, axis=1), np.roll(numbers, 1, axis=0)):
        assert stats.pearsonr(numbers.ravel(), other.ravel()).pvalue > FALSE_ALARM


def typical(**rule) -> Sampler:
    return Sampler(Sampling(**({"temperature": 0.7, "acceptance": "typical"} | rule)))


@pytest.mark.parametrize("rule", [{}, {"epsilon": 0.5}, {"alpha": 0.05}, {"temperature": 2.5, "alpha": 0.9}])
def test_a_drafted_token_is_typical_by_the_formula(rule):
    """Node by node: p(x) > min(epsilon, alpha exp(-H)), of the logits at its parent."""
    generator = torch.Generator().manual_seed(2)
    tree = DraftTree((4, 1, 4, 0, 2, 3, 5), (-1, -1, 0, 0, 1, 4, 4))
    logits = torch.randn(8, 6, generator=generator) * 2
    sampling, log_probs = typical(**rule).sampling, typical(**rule).log_probs(logits, tree)
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        weights = [math.exp(value / sampling.temperature) for value in logits[parent + 1].tolist()]
        p = [weight / sum(weights) for weight in weights]
        entropy = -sum(each * math.log(each + 1e-5) for each in p)
        threshold = min(sampling.epsilon, sampling.alpha * math.exp(-entropy))
        expected = math.log(p[token]) if p[token] > threshold else -math.inf
        assert log_probs[node] == pytest.approx(expected, abs=1e-5)
    assert -math.inf in log_probs
    assert any(gain > -math.inf for gain in log_probs)


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-30, 1e-9])
@pytest.mark.parametrize("acceptance", ["exact", "typical"])
def test_the_coldest_temperatures_choose_tokens(temperature, acceptance):
    """Not what comes behind the vocabulary, which is where a quotient that is no number leads."""
    logits = torch.tensor([[0.0, 2.0, -1e4], [3e4, 2.9, 1.0]])
    sampler = Sampler(Sampling(temperature, seed=3, acceptance=acceptance))
    assert sampler.choose(logits, [5, 6]) == [1, 0]
    assert sampler.distribution(logits).isfinite().all()


def test_no_draw_leaves_the_vocabulary():
    """Whatever the logits are: an id beyond the embedding loses a GPU."""
    logits = torch.full((1, 61), float("nan"))
    for sampling in (Sampling(0.8, seed=1), Sampling(0.8, top_p=0.9, seed=1), Sampling(1.0, top_k=5, seed=1)):
        assert 0 <= Sampler(sampling).choose(logits, [5])[0] < 61


@pytest.mark.parametrize("at_once", [2**24, 300])
@pytest.mark.parametrize("kinds", [(0.0, 0.3, 0.9), (0.9, 1.0)], ids=["greedy beside drawn", "drawn"])
def test_tokens_drawn_at_once_are_those_drawn_one_at_a_time(at_once, kinds, monkeypatch):
    """Of sessions with all filters beside each other; all at once and in parts."""
    monkeypatch.setattr("outrider_server.engine.sampler._VALUES", at_once)
    rng, generator = random.Random(at_once), torch.Generator().manual_seed(3)
    for _ in range(6):
        requests, first = [], 0
        for _ in range(14):
            top_k, top_p = rng.choice([0, 3, 99]), rng.choice([1.0, 0.8])
            sampler = Sampler(Sampling(rng.choice(kinds), top_k, top_p, seed=rng.randrange(2**63)))
            tree = random_tree(np.random.default_rng(rng.randrange(2**32)), rng.randrange(12), 40)
            positions = [rng.randrange(1000) for _ in range(1 + len(tree))]
            requests.append(ChoiceRequest(sampler, tree, positions, None, first))
            first += len(positions)
        logits = torch.randn(first, 40, generator=generator) * 3
        logits[7], logits[9, 3], logits[:, 5] = torch.nan, torch.inf, -torch.inf
        plain, batched = RowChoices(), BatchedChoices(requests, logits.device)
        for choices in (plain, batched):
            choices.choose(logits)
            choices.read()
        assert [plain.is_finite(one) for one in requests] == [batched.is_finite(one) for one in requests]
        for one in filter(plain.is_finite, requests):
            nodes = range(-1, len(one.tree))
            assert [batched.token(one, node) for node in nodes] == [plain.token(one, node) for node in nodes]


@pytest.mark.parametrize(
    ("sampling", "num_logprobs", "stay"),
    [
        (typical().sampling, None, True),
        (Sampling(), 2, True),
        (Sampling(0.9, seed=5), 0, True),
        (Sampling(0.9, seed=5), None, False),
    ],
)
def test_logits_of_which_only_tokens_are_read_go_with_the_pass(sampling, num_logprobs, stay):
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(3))
    one = ChoiceRequest(Sampler(sampling), DraftTree.chain([3, 4]), range(3), num_logprobs, 0)
    plain, batched, remains = RowChoices(), BatchedChoices([one], logits.device), weakref.ref(logits)
    for choices in (plain, batched):
        choices.choose(logits)
        choices.read()
    judged = AcceptedPath((0,), 7, Finish.NOT_YET)
    assert batched.logprobs(one, judged) == plain.logprobs(one, judged)
    if sampling.acceptance == "typical":
        assert batched.log_probs(one) == plain.log_probs(one)
    del logits, plain, choices
    assert (remains() is not None) == stay
