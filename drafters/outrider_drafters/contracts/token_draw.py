"""Sampling: temperature, top-k, top-p, min-p and the draw, the same on the server and on a client that writes offline.

Every row has its own parameters, and all rows go through one chain of operations, in which the host waits for nothing.
The order and the ties are those of transformers' `generate`; its processors are not used, since they take one set of
parameters for all rows and seconds to import. A test holds the two equal, value by value.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_proto.frames import Sampling
from outrider_proto.sampling_noise import uniform

_COLDEST = 1e-30  # below it the quotient overflows float32, and the softmax is NaN
_NO_TOP_P = -1.0


def filters(samplings: Sequence[Sampling]) -> NDArray[np.float64]:
    """Return [4, n]: each one's temperature, top-k (0: off), what top-p cuts off (-1: off) and min-p."""
    return np.array(
        [
            (max(one.temperature, _COLDEST), one.top_k, 1.0 - one.top_p if one.top_p < 1.0 else _NO_TOP_P, one.min_p)
            for one in samplings
        ]
    ).T


def distributions(logits: Tensor, rows: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Return the distributions [n, vocab] float64 that tokens are drawn from.

    logits: [n, vocab]; rows: [4, n] or [4, 1] float64, as filters() gives them, on the same device. `samplings`: all
    that occur in the rows; a filter that none of them has costs nothing.
    """
    temperature, top_k, cut, min_p = rows[:, :, None]
    scores = logits.float() / temperature.float()
    if max_top_k := max(one.top_k for one in samplings):
        best = scores.topk(min(max_top_k, scores.shape[-1])).values
        last = (top_k.long().clamp(max=best.shape[-1]) - 1).clamp(min=0).expand(len(scores), 1)
        lowest = best.gather(-1, last).where(top_k > 0, -math.inf)
        scores = scores.masked_fill(scores < lowest, -math.inf)
    if any(one.top_p < 1.0 for one in samplings):
        # The whole vocabulary, also behind top-k: what is cut off at the edge depends on float32 sums from the
        # unlikeliest token on, and on the order in which equals are sorted.
        ascending, order = scores.sort()
        unlikely = ascending.softmax(-1).cumsum(-1) <= cut.float()
        unlikely[:, -1] = False
        scores = scores.masked_fill(unlikely.scatter(-1, order, unlikely), -math.inf)
    if any(one.min_p for one in samplings):
        shares = scores.softmax(-1)
        scores = scores.masked_fill(shares < min_p.float() * shares.amax(-1, keepdim=True), -math.inf)
    probabilities: Tensor = scores.double().softmax(-1)
    return probabilities


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the distributions [n, vocab] float64 of rows that share their parameters."""
    rows = torch.tensor(filters([sampling]), device=logits.device)
    return distributions(logits, rows, [sampling])


def drawn(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Draw a token id from every row of probabilities [n, vocab] float64; row i with the number uniforms[i] float64."""
    cumulative = probabilities.cumsum(-1)
    # Scale by the last cumulative value: rounding leaves it slightly off 1, and u beyond it would be no token.
    heights = uniforms[:, None] * cumulative[:, -1:]
    # right=True: the first token whose cumulative probability exceeds u, so never a token of probability 0.
    found = torch.searchsorted(cumulative, heights, right=True)[:, 0]
    # Probabilities that are NaN exceed nothing. An id outside the vocabulary would end the process: a GPU is lost with
    # the first index beyond an embedding.
    return found.clamp(max=probabilities.shape[-1] - 1)


def uniforms(seed: int, positions: Sequence[int]) -> list[float]:
    """Return the numbers that decide the tokens at `positions`, by (seed, position) alone, however rows are batched."""
    # Nodes of one depth share a position.
    numbers = {position: uniform(seed, position) for position in set(positions)}
    return [numbers[position] for position in positions]


def choose_tokens(logits: Tensor, sampling: Sampling, positions: Sequence[int]) -> list[int]:
    """Choose a token for every row of logits [n, vocab]; row i predicts positions[i]."""
    if not sampling.draws:
        return logits.argmax(-1).tolist()
    numbers = torch.tensor(uniforms(sampling.seed, positions), dtype=torch.float64, device=logits.device)
    return drawn(distribution(logits, sampling), numbers).tolist()
