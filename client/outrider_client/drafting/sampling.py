"""How the drafter's token is chosen when it writes alone: as the target would, from the drafter's distribution.

The uniform number for position p depends on (seed, p) alone and is the one that the server draws with. Where the two
models agree they therefore choose the same token even when they sample, and more of the answer survives a check.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider_proto.frames import Sampling
from outrider_proto.sampling_noise import uniform


def choose_token(logits: Tensor, sampling: Sampling, position: int) -> int:
    """logits [V] for the token at `position`."""
    if not sampling.draws:
        return int(logits.argmax())
    cumulative = distribution(logits, sampling).cumsum(0)
    height = cumulative.new_tensor([uniform(sampling.seed, position)]) * cumulative[-1]
    return int(torch.searchsorted(cumulative, height, right=True))


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """[V] float64 after temperature, top-k and top-p, in the order of transformers' generate."""
    scores = logits.float() / sampling.temperature
    if sampling.top_k:
        kth = scores.topk(min(sampling.top_k, len(scores))).values[-1]
        scores = scores.masked_fill(scores < kth, -math.inf)
    if sampling.top_p < 1.0:
        ascending, order = scores.sort()
        unlikely = ascending.softmax(0).cumsum(0) <= 1.0 - sampling.top_p
        unlikely[-1] = False
        scores = scores.masked_fill(unlikely.new_zeros(len(scores)).scatter(0, order, unlikely), -math.inf)
    return scores.double().softmax(0)
