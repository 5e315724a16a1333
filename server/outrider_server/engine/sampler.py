"""The choice of the target's token after every row: argmax, or a draw from the processed distribution.

The draw for position p uses one uniform number that depends on (seed, p) alone, from a counter-based generator. So the
choice depends neither on the tree it is compared with, nor on batching, nor on interruptions of the session.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from outrider_drafters.contracts.token_draw import draw_tokens
from outrider_proto.frames import MIN_LOGPROB, Sampling, TokenLogprob
from outrider_proto.tree import DraftTree
from outrider_server.engine.acceptance import NOT_TYPICAL, AcceptedPath

_COLDEST = 1e-30  # below it the quotient overflows float32, and the softmax is NaN
_ENTROPY_FLOOR = 1e-5  # keeps ln finite; part of the published rule


class Sampler:
    """Choose tokens by `sampling`."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._processors = None if sampling.greedy else _processors(sampling)

    def distribution(self, logits: Tensor) -> Tensor:
        """Return the distribution [n, vocab] float64 after temperature, top-k and top-p."""
        assert self._processors is not None
        no_ids = torch.empty(logits.shape[0], 0, dtype=torch.long, device=logits.device)
        scores: Tensor = self._processors(no_ids, logits.float())  # type: ignore[arg-type] # annotated as LongTensor
        return scores.double().softmax(-1)

    def choose(self, logits: Tensor, positions: list[int]) -> list[int]:
        """Return n tokens for logits [n, vocab]; positions[i] is the position that row i predicts."""
        if not self.sampling.draws:
            return logits.argmax(-1).tolist()
        return draw_tokens(self.distribution(logits), self.sampling.seed, positions)

    def log_probs(self, logits: Tensor, tree: DraftTree) -> list[float]:
        """Return ln p of every node's token below its parent, NOT_TYPICAL below the threshold.

        logits: [1 + nodes, vocab] of root and nodes.
        """
        if not len(tree):
            return []
        parents, tokens = torch.tensor([tree.parents, tree.tokens], device=logits.device)
        # Siblings share the distribution below their parent, and the processors are slow: run each row once.
        rows, row = (parents + 1).unique(return_inverse=True)
        p = self.distribution(logits[rows])
        entropy = -(p * (p + _ENTROPY_FLOOR).log()).sum(-1)
        threshold = (self.sampling.alpha * (-entropy).exp()).clamp(max=self.sampling.epsilon)
        drafted = p[row, tokens]
        return torch.where(drafted > threshold[row], drafted.log(), NOT_TYPICAL).tolist()


def _processors(sampling: Sampling) -> LogitsProcessorList:
    """Return the processors in the order of transformers' `generate`."""
    processors = LogitsProcessorList()
    if sampling.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(max(sampling.temperature, _COLDEST)))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        processors.append(TopPLogitsWarper(sampling.top_p))
    return processors


def token_logprobs(logits: Tensor, tree: DraftTree, accepted: AcceptedPath, num_top: int) -> tuple[TokenLogprob, ...]:
    """Return log probabilities of path and bonus, each with the `num_top` likeliest tokens in its place.

    logits: [1 + nodes, vocab] of root and nodes, before temperature, top-k and top-p. Raises Violation for NaN.
    """
    bonus = () if accepted.bonus is None else (accepted.bonus,)
    tokens = torch.tensor([*tree.path_tokens(accepted.path), *bonus], device=logits.device)
    rows = [0, *(1 + node for node in accepted.path)][: len(tokens)]  # logits of a row predict the token after it
    judged = logits[rows].float()
    likeliest, top = judged.topk(min(num_top, judged.shape[-1]))
    scores = torch.cat([judged.gather(-1, tokens[:, None]), likeliest], dim=-1)
    # Rounding may give slightly more than 0, and -inf does not fit the frame: both would be refused as malformed.
    logprobs = (scores - judged.logsumexp(-1, keepdim=True)).clamp(MIN_LOGPROB, 0.0)
    return tuple(
        TokenLogprob(own, tuple(zip(ids, values, strict=True)))
        for (own, *values), ids in zip(logprobs.tolist(), top.tolist(), strict=True)
    )
