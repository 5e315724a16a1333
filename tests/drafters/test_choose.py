"""The token of a drafter left alone: filters, and frequencies against the exact distribution."""

import pytest
import torch

from outrider_drafters.choose import greedy_token, sampled_token
from outrider_proto.frames import Sampling

LOGITS = torch.tensor([0.5, 2.0, -1.0, 1.0, 0.0])


def drawn(sampling: Sampling, draws: int = 4000) -> torch.Tensor:
    """Frequencies over evenly spaced uniforms: exact to one draw for each token."""
    tokens = [sampled_token(LOGITS, sampling, (i + 0.5) / draws) for i in range(draws)]
    return torch.bincount(torch.tensor(tokens), minlength=5) / draws


def test_greedy():
    assert greedy_token(LOGITS) == sampled_token(LOGITS, Sampling(), 0.99) == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature(temperature):
    expected = (LOGITS / temperature).softmax(-1)
    torch.testing.assert_close(drawn(Sampling(temperature)), expected, atol=5e-4, rtol=0)


def test_top_k_keeps_the_likeliest():
    expected = torch.zeros(5)
    expected[[1, 3]] = LOGITS[[1, 3]].softmax(-1)
    torch.testing.assert_close(drawn(Sampling(1.0, top_k=2)), expected, atol=5e-4, rtol=0)


def test_top_p_keeps_what_reaches_the_mass():
    probabilities = LOGITS.softmax(-1)
    assert probabilities[1] < 0.6 < probabilities[1] + probabilities[3]
    expected = torch.zeros(5)
    expected[[1, 3]] = LOGITS[[1, 3]].softmax(-1)
    torch.testing.assert_close(drawn(Sampling(1.0, top_p=0.6)), expected, atol=5e-4, rtol=0)


def test_tiny_top_p_is_greedy():
    assert drawn(Sampling(1.0, top_p=1e-6), draws=50)[1] == 1.0


def test_uniforms_at_the_ends():
    assert sampled_token(LOGITS, Sampling(1.0), 0.0) == 1  # the likeliest comes first
    assert sampled_token(LOGITS, Sampling(1.0), 1.0 - 2**-53) == 2
    assert sampled_token(LOGITS, Sampling(1.0, top_p=0.6), 1.0 - 2**-53) == 3
