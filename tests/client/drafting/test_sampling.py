"""The drafter's own choice: the stated distribution, and the same luck as the server's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from outrider_client.drafting.sampling import choose_token, distribution
from outrider_proto.frames import Sampling
from outrider_server.engine import sampler as on_server

LOGITS = torch.tensor([1.0, 0.5, -1.0, 2.0, 0.0, -3.0])


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.7, seed=3),
        Sampling(1.0, top_k=3, seed=4),
        Sampling(1.3, top_p=0.8, seed=5),
        Sampling(0.9, top_k=4, top_p=0.9, seed=2**62),
    ],
)
def test_same_choice_as_the_server_for_the_same_logits(sampling):
    sampler = on_server.Sampler(sampling)
    positions = list(range(500, 800))
    theirs = sampler.choose(LOGITS.expand(len(positions), -1), positions)
    assert [choose_token(LOGITS, sampling, position) for position in positions] == theirs
    assert torch.allclose(distribution(LOGITS, sampling), sampler.distribution(LOGITS[None])[0])


def test_greedy_takes_the_likeliest():
    assert choose_token(LOGITS, Sampling(), 9) == 3


def test_typical_takes_the_likeliest_as_the_target_alone_would():
    assert {choose_token(LOGITS, Sampling(2.0, seed=seed, acceptance="typical"), 9) for seed in range(20)} == {3}


def test_frequencies_are_the_distributions():
    """False alarm in one of a thousand seeds; this seed is fixed."""
    sampling = Sampling(temperature=1.0, seed=11)
    counts = np.bincount([choose_token(LOGITS, sampling, position) for position in range(4000)], minlength=6)
    expected = distribution(LOGITS, sampling).numpy() * 4000
    assert chisquare(counts, expected).pvalue > 0.001


def test_shared_luck_makes_similar_models_agree():
    generator = torch.Generator().manual_seed(1)
    sampling = Sampling(temperature=1.0, seed=1)
    target = torch.randn(300, 50, generator=generator) * 2
    drafter = target + 0.3 * torch.randn(300, 50, generator=generator)

    def agreement(offset: int) -> float:
        pairs = zip(target, drafter, range(300), strict=True)
        return sum(choose_token(t, sampling, p) == choose_token(d, sampling, p + offset) for t, d, p in pairs) / 300

    assert agreement(0) > 2 * agreement(1000)
