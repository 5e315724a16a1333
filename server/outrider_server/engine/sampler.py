"""How the target's token after every row is chosen: argmax, or a draw from the processed distribution; and which
drafted tokens are typical of that distribution (acceptance.py).

The draw for position p uses one uniform number that depends on (seed, p) alone, through a counter-based generator. So
the choice depends neither on the tree it is tried against, nor on batching, nor on how often a session was interrupted.
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

from outrider_proto.frames import MIN_LOGPROB, Sampling, TokenLogprob
from outrider_proto.sampling_noise import uniform
from outrider_proto.tree import DraftTree
from outrider_server.engine.acceptance import NOT_TYPICAL, AcceptedPath

_COLDEST = 1e-30  # below it float32 has no quotient, and what is drawn would be no token
_ENTROPY_FLOOR = 1e-5  # keeps ln finite; part of the published rule


class Sampler:
    """Chooses tokens as `sampling` says."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._processors = None if sampling.greedy else _processors(sampling)

    def distribution(self, logits: Tensor) -> Tensor:
        """[n, vocab] -> [n, vocab] float64: what tokens are drawn from, after temperature, top-k and top-p."""
        assert self._processors is not None
        no_ids = torch.empty(logits.shape[0], 0, dtype=torch.long, device=logits.device)
        scores: Tensor = self._processors(no_ids, logits.float())  # type: ignore[arg-type] # annotated as LongTensor
        return scores.double().softmax(-1)

    def choose(self, logits: Tensor, positions: list[int]) -> list[int]:
        """logits [n, vocab]; positions[i] is the position of the token that row i predicts. n chosen tokens."""
        if not self.sampling.draws:
            return logits.argmax(-1).tolist()
        uniforms = [uniform(self.sampling.seed, position) for position in positions]
        cumulative = self.distribution(logits).cumsum(-1)
        heights = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * cumulative[:, -1:]
        # right=True: the first token whose cumulative probability exceeds u, so never one of probability 0.
        return torch.searchsorted(cumulative, heights, right=True)[:, 0].tolist()

    def log_probs(self, logits: Tensor, tree: DraftTree) -> list[float]:
        """logits [1 + nodes, vocab] of root and nodes. ln p of every node's token below its parent; NOT_TYPICAL where p
        does not exceed the parent's threshold.
        """
        if not len(tree):
            return []
        parents, tokens = torch.tensor([tree.parents, tree.tokens], device=logits.device)
        rows, row = (parents + 1).unique(return_inverse=True)
        p = self.distribution(logits[rows])
        entropy = -(p * (p + _ENTROPY_FLOOR).log()).sum(-1)
        threshold = (self.sampling.alpha * (-entropy).exp()).clamp(max=self.sampling.epsilon)
        drafted = p[row, tokens]
        return torch.where(drafted > threshold[row], drafted.log(), NOT_TYPICAL).tolist()


def _processors(sampling: Sampling) -> LogitsProcessorList:
    """In the order of transformers' `generate`."""
    processors = LogitsProcessorList()
    if sampling.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(max(sampling.temperature, _COLDEST)))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        processors.append(TopPLogitsWarper(sampling.top_p))
    return processors


def token_logprobs(logits: Tensor, tree: DraftTree, accepted: AcceptedPath, num_top: int) -> tuple[TokenLogprob, ...]:
    """logits [1 + nodes, vocab] of root and nodes. Of path and bonus, each with the `num_top` likeliest in its place.

    Raises Violation for logits that are no numbers.
    """
    bonus = () if accepted.bonus is None else (accepted.bonus,)
    tokens = torch.tensor([*tree.path_tokens(accepted.path), *bonus], device=logits.device)
    rows = [0, *(1 + node for node in accepted.path)][: len(tokens)]  # each says what follows it
    judged = logits[rows].float()
    likeliest, top = judged.topk(min(num_top, judged.shape[-1]))
    scores = torch.cat([judged.gather(-1, tokens[:, None]), likeliest], dim=-1)
    logprobs = (scores - judged.logsumexp(-1, keepdim=True)).clamp(MIN_LOGPROB, 0.0)
    return tuple(
        TokenLogprob(own, tuple(zip(ids, values, strict=True)))
        for (own, *values), ids in zip(logprobs.tolist(), top.tolist(), strict=True)
    )
