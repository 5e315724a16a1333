"""Draft vocabularies: a head that drafts only some tokens maps its id d to the target's token d + d2t[d]."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_proto.errors import UsageError


def draft_tokens(d2t: Tensor, vocab: int) -> Tensor:
    """Compute target ids [Vd] int64 from offsets [Vd]. Raises UsageError for ids out of range or not rising."""
    tokens = torch.arange(len(d2t), device=d2t.device) + d2t.to(torch.int64)
    if len(tokens) and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab):
        raise UsageError(
            f"d2t leads to token {int(tokens.min())} to {int(tokens.max())}: need 0 to {vocab - 1}; it holds offsets "
            "(target id - draft id), not ids"
        )
    if bool((tokens.diff() <= 0).any()):
        raise UsageError("d2t: the target ids it leads to must rise from one draft id to the next")
    return tokens


def offsets(tokens: Tensor) -> Tensor:
    """Compute d2t [Vd] int64 from rising target ids [Vd]."""
    return tokens.to(torch.int64) - torch.arange(len(tokens), device=tokens.device)


def membership(tokens: Tensor, vocab: int) -> Tensor:
    """Compute t2d [V] bool, true for target ids that can be drafted."""
    drafted = torch.zeros(vocab, dtype=torch.bool, device=tokens.device)
    drafted[tokens] = True
    return drafted


def over_target_vocabulary(logits: Tensor, tokens: Tensor | None, vocab: int) -> Tensor:
    """Scatter logits [n, Vd] to [n, V], -inf for tokens that cannot be drafted; `tokens` None: Vd is V already."""
    # -inf keeps log-softmax over V equal to that over Vd, so that no other code needs the map.
    if tokens is None:
        return logits
    return logits.new_full((len(logits), vocab), -torch.inf).index_copy_(1, tokens, logits)


def check_membership(t2d: Tensor, tokens: Tensor, vocab: int) -> None:
    """Raise UsageError unless t2d [V] marks exactly the draft ids' target ids."""
    if t2d.shape != (vocab,):
        raise UsageError(f"t2d has shape {list(t2d.shape)}: need [{vocab}]")
    if not torch.equal(t2d.to(torch.bool), membership(tokens, vocab).to(t2d.device)):
        raise UsageError("t2d and d2t contradict each other: one of them is of another head")
