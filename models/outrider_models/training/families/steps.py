"""Drafting several levels deep during training, as HASS (arXiv 2408.15766, 3.2) and EAGLE-3 (arXiv 2503.01840, 3.2) do.

Row t of step j is the drafter at position t + j, j levels below the last true feature, that of position t. It eats its
own output of step j - 1 instead of a feature, and sees what it will see when it drafts:

    step 0   x_{t+1}      rows .. t of step 0                         (true features)
    step 1   x_{t+2}      rows .. t of step 0, row t of step 1
    step 2   x_{t+3}      rows .. t of step 0, rows t of steps 1, 2

Keys and values of all steps lie one after another: the mask is a triangle, then diagonals.
"""

import torch
from torch import Tensor


def step_mask(rows: int, step: int, device: torch.device) -> Tensor:
    """[rows, rows * (step + 1)] bool, true where a query of `step` sees a key."""
    ones = torch.ones(rows, rows, dtype=torch.bool, device=device)
    return torch.cat([ones.tril(), *[torch.eye(rows, dtype=torch.bool, device=device)] * step], dim=1)


def joined(parts: list[Tensor], rows: int) -> Tensor:
    """The first `rows` rows of keys or values [B, heads, >= rows, head_dim] of all steps, one after another."""
    return torch.cat([part[:, :, :rows] for part in parts], dim=2)
