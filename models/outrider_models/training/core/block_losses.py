"""Losses of block drafters: cross-entropy against the text, and total variation from the target's distributions.

A slot's logits are lm_head(h) + w2 z (DSpark; DFlash has no z), of which h, z and w2 learn. With q = softmax(logits)
and p the target's distribution, DSpark's loss (arXiv 2607.05147; deepseek-ai/DeepSpec, dspark/loss.py) is
-0.1 log q(text) + 0.9 |q - p|, and 1 - |q - p| / 2 is how likely speculative sampling accepts the slot's token.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from outrider_models.training.core import losses
from outrider_models.training.core.interfaces import Batch, TeacherOutput
from outrider_models.training.core.losses import Compared, TargetLabels, TextLabels
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class BlockLosses:
    """Weights of the terms of a slot."""

    text: NonNegativeFloat  # cross-entropy against the text's own token
    divergence: NonNegativeFloat  # cross-entropy against the target's distribution
    variation: NonNegativeFloat  # L1 distance from the target's distribution

    def __post_init__(self) -> None:
        if not self.text + self.divergence + self.variation > 0:
            raise UsageError("losses: text, divergence and variation are 0: need one above 0")


@dataclass(frozen=True, slots=True, eq=False)
class SlotsCompared(Compared):
    """Slots of blocks against their labels."""

    accepted: Tensor  # [n] float32: 1 - |q - p| / 2, without gradient; 0 where the target's likeliest is not drafted


class BlockLabels:
    """The text's tokens and the target's distributions at trained positions."""

    def __init__(self, batch: Batch, target: TeacherOutput, weights: BlockLosses) -> None:
        self.target = TargetLabels(target, batch.loss_mask, shared=True)
        self.text = TextLabels(batch, target) if weights.text else None
        self.weights, self.lm_head = weights, target.lm_head

    def of(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights of the cross-entropy and distributions, each [n, Vd], and likeliest tokens [n]."""
        soft = self.target.of(numbers)
        wanted = soft.weights * self.weights.divergence
        if self.text is not None:
            wanted += self.text.of(numbers).weights * self.weights.text
        return wanted, soft.weights, soft.likeliest

    def hits(self, logits: Tensor, likeliest: Tensor) -> Tensor:
        drafted, tokens = logits.argmax(-1), self.target.draft_tokens
        return (drafted if tokens is None else tokens[drafted]) == likeliest


def compare_slots(
    hidden: Tensor,  # [n, E]
    z: Tensor,  # [n, r]; r = 0: no Markov head
    w2: Tensor,  # [Vd, r]
    scales: Tensor,  # [n] float32: how much each slot counts
    labels: BlockLabels,
    numbers: Tensor,  # [n] int64
) -> SlotsCompared:
    """Compute the loss of slots, whose logits these make, against the labels of the trained positions `numbers`."""
    return SlotsCompared(*_SlotLoss.apply(hidden, z, w2, scales, labels, numbers))  # type: ignore[no-untyped-call]  # torch


class _SlotLoss(torch.autograd.Function):
    """The loss some slots at a time, whose gradients are computed with it: logits are the largest tensors by far."""

    @staticmethod
    def forward(
        ctx: Any,  # Any: torch's context holds what one puts there
        hidden: Tensor,
        z: Tensor,
        w2: Tensor,
        scales: Tensor,
        labels: BlockLabels,
        numbers: Tensor,
    ) -> tuple[Tensor, ...]:
        kind = hidden.device.type
        narrow = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        head, bias_head, variation = labels.lm_head.to(narrow), w2.to(narrow), labels.weights.variation
        loss, accepted = torch.empty(2, len(hidden), device=hidden.device)
        hits = torch.empty(len(hidden), dtype=torch.bool, device=hidden.device)
        d_hidden, d_z, d_w2 = torch.empty_like(hidden), torch.empty_like(z), torch.zeros_like(w2)
        num_rows = max(1, losses.MAX_LOGITS // len(head))
        # Casts are explicit: autocast would cache those it makes here, where there is no graph, for where there is one.
        with torch.autocast(kind, enabled=False):
            for first in range(0, len(hidden), num_rows):
                some = slice(first, first + num_rows)
                rows, low = hidden[some].to(narrow), z[some].to(narrow)
                wanted, distribution, likeliest = labels.of(numbers[some])
                logits = (F.linear(rows, head) + F.linear(low, bias_head)).float()
                hits[some] = labels.hits(logits, likeliest)
                chances, mass = logits.softmax(-1), wanted.sum(-1)
                entropy = mass * logits.logsumexp(-1) - torch.linalg.vecdot(wanted, logits)
                covered = distribution.sum(-1)
                apart = chances - distribution
                distance = apart.abs().sum(-1) * covered
                loss[some] = entropy + variation * distance
                accepted[some] = covered - distance / 2
                gradient = chances * mass.unsqueeze(-1) - wanted
                if variation:
                    # d|q - p| / d logits = q (s - q.s), s the signs of q - p
                    signs = apart.sign_()
                    mean = torch.linalg.vecdot(chances, signs).unsqueeze(-1)
                    gradient += chances.mul_(signs.sub_(mean)).mul_((covered * variation).unsqueeze(-1))
                gradient = gradient.mul_(scales[some].unsqueeze(-1)).to(narrow)
                d_hidden[some], d_z[some] = gradient @ head, gradient @ bias_head
                d_w2 += gradient.T @ low
        ctx.save_for_backward(d_hidden, d_z, d_w2)
        ctx.mark_non_differentiable(loss, hits, accepted)
        return (loss * scales).sum(), loss, hits, accepted

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # Any: as above
        return (*(part * upstream[0] for part in ctx.saved_tensors), None, None, None)
