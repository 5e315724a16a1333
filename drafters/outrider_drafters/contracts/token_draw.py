"""The draw of a token from a distribution, the same on the server and on a client that writes offline."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider_proto.sampling_noise import uniform


def draw_tokens(probabilities: Tensor, seed: int, positions: Sequence[int]) -> list[int]:
    """Draw a token from every row of probabilities [n, vocab] float64; row i predicts positions[i].

    The uniform number of a position depends on (seed, position) alone. So models that agree on a distribution draw the
    same token, however the rows are batched.
    """
    uniforms = [uniform(seed, position) for position in positions]
    cumulative = probabilities.cumsum(-1)
    # Scale by the last cumulative value: rounding leaves it slightly off 1, and u beyond it would be no token.
    heights = torch.tensor(uniforms, dtype=torch.float64, device=cumulative.device)[:, None] * cumulative[:, -1:]
    # right=True: the first token whose cumulative probability exceeds u, so never a token of probability 0.
    drawn = torch.searchsorted(cumulative, heights, right=True)[:, 0]
    # Probabilities that are NaN exceed nothing. An id outside the vocabulary would end the process: a GPU is lost with
    # the first index beyond an embedding.
    return drawn.clamp(max=probabilities.shape[-1] - 1).tolist()
