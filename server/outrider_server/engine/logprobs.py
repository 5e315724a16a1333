"""How likely a verdict's tokens are under the target's softmax as it is: before temperature, top-k and top-p."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_proto.frames import MIN_LOGPROB, TokenLogprob
from outrider_proto.tree import DraftTree
from outrider_server.engine.acceptance import Walk


def token_logprobs(logits: Tensor, tree: DraftTree, walk: Walk, num_top: int) -> tuple[TokenLogprob, ...]:
    """logits [1 + nodes, vocab] of root and nodes. Of path and bonus, each with the `num_top` likeliest in its place.

    Raises Violation for logits that are no numbers.
    """
    bonus = () if walk.bonus is None else (walk.bonus,)
    tokens = torch.tensor([*tree.path_tokens(walk.path), *bonus], device=logits.device)
    rows = [0, *(1 + node for node in walk.path)][: len(tokens)]  # each says what follows it
    judged = logits[rows].float()
    likeliest, top = judged.topk(min(num_top, judged.shape[-1]))
    scores = torch.cat([judged.gather(-1, tokens[:, None]), likeliest], dim=-1)
    logprobs = (scores - judged.logsumexp(-1, keepdim=True)).clamp(MIN_LOGPROB, 0.0)
    return tuple(
        TokenLogprob(own, tuple(zip(ids, values, strict=True)))
        for (own, *values), ids in zip(logprobs.tolist(), top.tolist(), strict=True)
    )
