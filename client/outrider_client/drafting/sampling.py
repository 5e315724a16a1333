"""Samples the drafter's tokens when it writes offline, by the same rule as the server.

The uniform number for position p depends on (seed, p) alone and is the one that the server draws with. Where the two
models agree they therefore choose the same token even when they sample, and more of the answer survives verification.
"""

from __future__ import annotations

import math

from torch import Tensor

from outrider_drafters.contracts.token_draw import draw_tokens
from outrider_proto.frames import Sampling


def choose_token(logits: Tensor, sampling: Sampling, position: int) -> int:
    """Choose the token at `position` from logits [V]."""
    if not sampling.draws:
        return int(logits.argmax())
    return draw_tokens(distribution(logits, sampling)[None], sampling.seed, [position])[0]


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return probabilities [V] float64 after temperature, top-k and top-p.

    The order is that of transformers' generate, whose processors the server uses: another order gives other
    distributions. They are not used here because importing transformers takes seconds; a test holds the two equal.
    """
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
