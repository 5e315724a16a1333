"""Which token a drafter that is left alone writes next."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_proto.frames import Sampling


def greedy_token(logits: Tensor) -> int:
    """The likeliest of logits [V]."""
    return int(logits.argmax())


@torch.inference_mode()
def sampled_token(logits: Tensor, sampling: Sampling, uniform: float) -> int:
    """A token of logits [V] under temperature, top-k and top-p (in this order), by inverting the distribution function
    at `uniform` in [0, 1). Greedy for temperature 0."""
    if sampling.greedy:
        return greedy_token(logits)
    scores, tokens = (logits.double() / sampling.temperature).sort(descending=True, stable=True)
    if sampling.top_k:
        scores, tokens = scores[: sampling.top_k], tokens[: sampling.top_k]
    probabilities = scores.softmax(-1)
    likelier = probabilities.cumsum(-1) - probabilities  # mass of the tokens before each one
    kept = probabilities * (likelier < sampling.top_p)
    below = kept.cumsum(-1)
    drawn = int(torch.searchsorted(below, uniform * float(below[-1]), right=True))
    return int(tokens[min(drawn, int(kept.count_nonzero()) - 1)])
