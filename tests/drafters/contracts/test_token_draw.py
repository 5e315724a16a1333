"""The stated distribution, whatever else is in the batch, and the same luck on both sides."""

from __future__ import annotations

import random

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from outrider_drafters.contracts.token_draw import choose_tokens, distribution, distributions, filters
from outrider_proto.frames import Sampling

LOGITS = torch.tensor([1.0, 0.5, -1.0, 2.0, 0.0, -3.0])


def choose_token(logits: torch.Tensor, sampling: Sampling, position: int) -> int:
    return choose_tokens(logits[None], sampling, [position])[0]


def processed(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return what transformers' own processors make of logits [n, vocab]."""
    processors = LogitsProcessorList()
    if sampling.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        processors.append(MinPLogitsWarper(sampling.min_p))
    return processors(torch.empty(len(logits), 0, dtype=torch.long), logits.float()).double().softmax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [2, 61, 700])
def test_rows_of_all_parameters_together_have_the_values_of_transformers_processors(vocab, dtype):
    """To the last bit: equals at the edges of top-k, top-p and min-p (rounded logits have many) stay or go alike."""
    generator = torch.Generator().manual_seed(vocab)
    choice = random.Random(vocab)
    samplings = [
        Sampling(
            choice.choice([0.05, 0.7, 1.0, 1.3, 9.0]),
            choice.choice([0, 0, 1, 2, 5, 60, 1000]),
            choice.choice([1.0, 1.0, 1e-9, 0.25, 0.5, 0.9, 0.95, 1 - 1e-9]),
            min_p=choice.choice([0.0, 0.0, 1e-9, 0.05, 0.5, 1.0]),
        )
        for _ in range(200)
    ]
    logits = (torch.randn(200, vocab, generator=generator) * 3).to(dtype)
    logits[::2] = logits[::2].round()
    logits[::5] = 0.0  # top-p's edges among equals only
    logits[1::7, vocab // 2 :] = -torch.inf
    together = distributions(logits, torch.from_numpy(filters(samplings)), samplings)
    for row, sampling, made in zip(logits, samplings, together, strict=True):
        expected = processed(row[None], sampling)
        assert torch.equal(made, expected[0]), sampling
        assert torch.equal(distribution(row[None], sampling), expected), sampling


def test_typical_takes_the_likeliest_as_the_target_alone_would():
    assert {choose_token(LOGITS, Sampling(2.0, seed=seed, acceptance="typical"), 9) for seed in range(20)} == {3}


def test_shared_luck_makes_similar_models_agree():
    generator = torch.Generator().manual_seed(1)
    sampling = Sampling(temperature=1.0, seed=1)
    target = torch.randn(300, 50, generator=generator) * 2
    drafter = target + 0.3 * torch.randn(300, 50, generator=generator)

    def agreement(offset: int) -> float:
        pairs = zip(target, drafter, range(300), strict=True)
        return sum(choose_token(t, sampling, p) == choose_token(d, sampling, p + offset) for t, d, p in pairs) / 300

    assert agreement(0) > 2 * agreement(1000)
