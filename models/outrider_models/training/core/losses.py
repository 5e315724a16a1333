"""Losses: the distance of a drafter from its target, position by position."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from outrider_models.training.core.interfaces import Batch, TeacherOutput

Reweigh = Callable[[Tensor], Tensor]  # distributions [n, Vd] -> weights of the cross-entropy
MAX_SHARED = 1 << 26  # weights kept for all steps of a batch; more are computed for each step
MAX_LOGITS = 1 << 21  # held at once: measured, about the processor's cache
MAX_HELD = 1 << 23  # logit gradients held for a trained output: each sum into its own gradient goes through all of it


@dataclass(frozen=True, slots=True)
class Losses:
    """Weights of the two terms that EAGLE (arXiv 2401.15077, 3.3) and MoA (arXiv 2410.03804, 3.3) share."""

    divergence: NonNegativeFloat  # cross-entropy against the target's distribution
    feature: NonNegativeFloat  # smooth L1 against the target's last hidden state
    in_units: bool  # divide features by their scale, so that a weight means the same for every target


PAPER = Losses(divergence=0.1, feature=1.0, in_units=False)


@dataclass(frozen=True, slots=True)
class HeadDecay:
    """Weights of several heads or steps: 1, decay, decay squared, ..."""

    count: PositiveInt
    decay: Annotated[float, Field(gt=0, le=1)]

    @property
    def weights(self) -> list[float]:
        return [self.decay**number for number in range(self.count)]


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """A drafter's rows against the target's distributions."""

    total: Tensor  # []: the cross-entropy of all rows, each by its scale
    loss: Tensor  # [n] float32: of each row, without its scale and without gradient
    hits: Tensor  # [n] bool: the drafter's likeliest token is the target's


@dataclass(frozen=True, slots=True, eq=False)
class SoftLabels:
    """The label of some rows of logits: weights over the draft vocabulary."""

    weights: Tensor  # [n, Vd] float32: of the cross-entropy, 0 in rows without a loss
    likeliest: Tensor  # [n] int64: the target's likeliest token


class Labels(ABC):
    """What the drafter learns at each trained position, counted through a batch's loss mask."""

    def __init__(self, mask: Tensor, draft_tokens: Tensor | None) -> None:
        self._mask, self._numbers = mask, mask.flatten().cumsum(0).view_as(mask) - 1
        self.draft_tokens = draft_tokens

    def ahead(self, steps: int) -> Tensor:
        """Return the numbers [n] of the trained positions that lie `steps` or more after a row's start."""
        return self._numbers[:, steps:][self._mask[:, steps:]]

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return which of these positions [B, R] are trained, [B, R] bool, and the numbers [n] of those."""
        inside = places.clamp(max=self._mask.shape[1] - 1)
        trained = self._mask.gather(1, inside) & (places == inside)
        return trained, self._numbers.gather(1, inside)[trained]

    @abstractmethod
    def of(self, numbers: Tensor) -> SoftLabels:
        """Compute the labels of some positions."""


class TargetLabels(Labels):
    """The target's distributions, over the draft vocabulary; positions whose likeliest token it lacks have no loss.

    `shared` keeps those of a whole batch, for drafters that learn from them several times; `reweigh` changes them once.
    """

    def __init__(
        self, target: TeacherOutput, mask: Tensor, *, shared: bool = False, reweigh: Reweigh | None = None
    ) -> None:
        super().__init__(mask, target.draft_tokens)
        self._hidden, self._lm_head, self._reweigh = target.hidden[-1][mask], target.lm_head, reweigh
        self._likeliest = None if target.likeliest is None else target.likeliest[mask]
        self._covered = None
        if target.draft_tokens is not None and self._likeliest is not None:
            self._covered = torch.isin(self._likeliest, target.draft_tokens)
        size = len(self._hidden) * len(self._lm_head)
        self._kept = self._made(torch.arange(len(self._hidden))) if shared and size <= MAX_SHARED else None

    def of(self, numbers: Tensor) -> SoftLabels:
        if self._kept is None:
            return self._made(numbers)
        return SoftLabels(self._kept.weights[numbers], self._kept.likeliest[numbers])

    def _made(self, numbers: Tensor) -> SoftLabels:
        numbers = numbers.to(self._hidden.device)
        weights = F.linear(self._hidden[numbers], self._lm_head).float().softmax(-1)
        likeliest = weights.argmax(-1) if self._likeliest is None else self._likeliest[numbers]
        if self._reweigh is not None:
            weights = self._reweigh(weights)
        if self._covered is not None:
            weights.mul_(self._covered[numbers].unsqueeze(-1))
        return SoftLabels(weights, likeliest)


class TextLabels(Labels):
    """The text's own next tokens."""

    def __init__(self, batch: Batch, target: TeacherOutput) -> None:
        super().__init__(batch.loss_mask, target.draft_tokens)
        self._tokens, self._columns = batch.labels[batch.loss_mask], len(target.lm_head)

    def of(self, numbers: Tensor) -> SoftLabels:
        tokens = self._tokens[numbers]
        if self.draft_tokens is None:
            return SoftLabels(F.one_hot(tokens, self._columns).float(), tokens)
        return SoftLabels((tokens.unsqueeze(-1) == self.draft_tokens).float(), tokens)


def compare(
    hidden: Tensor,  # [n, E]
    weight: Tensor,  # [Vd, E]
    bias: Tensor | None,  # [Vd]
    labels: Labels,
    numbers: Tensor,  # [n] int64
    scales: Tensor | None = None,  # [n] float32: of each row's loss; None: 1
) -> Compared:
    """Compute the cross-entropy of a drafter's output against the labels of the positions `numbers`."""
    scales = torch.ones(len(hidden), device=hidden.device) if scales is None else scales
    total, loss, hits = _CrossEntropy.apply(hidden, weight, bias, labels, numbers, scales)  # type: ignore[no-untyped-call]  # torch
    return Compared(total, loss, hits)


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy through an output layer, some rows at a time, whose gradients are computed with the loss.

    Logits [n, V] are the largest tensors of training by far. Their gradient is softmax - label, known at once, so no
    more than a chunk of them is ever held, and none is computed twice (as in Liger's fused linear cross-entropy).
    """

    @staticmethod
    def forward(
        ctx: Any,  # Any: torch's context holds what one puts there
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Labels,
        numbers: Tensor,
        scales: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        kind = hidden.device.type
        narrow = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        output, offset = weight.to(narrow), None if bias is None else bias.to(narrow)
        losses, hits = torch.empty(len(hidden), device=hidden.device), torch.empty_like(numbers, dtype=torch.bool)
        d_hidden = torch.empty_like(hidden) if wants_hidden else None
        d_weight = torch.zeros_like(weight) if wants_weight else None
        d_bias = torch.zeros_like(bias) if bias is not None and wants_bias else None
        held: list[Tensor] = []
        num_rows, max_held = max(1, MAX_LOGITS // len(weight)), MAX_HELD // len(weight)
        # Casts are explicit: autocast would cache those it makes here, where there is no graph, for where there is one.
        with torch.autocast(kind, enabled=False):
            for first in range(0, len(hidden), num_rows):
                some = slice(first, first + num_rows)
                rows, soft = hidden[some].to(narrow), labels.of(numbers[some])
                logits = F.linear(rows, output, offset).float()
                largest, chances = logits.max(-1, keepdim=True), logits.softmax(-1)
                hits[some] = _tokens(largest.indices.squeeze(-1), labels) == soft.likeliest
                norm = largest.values - chances.gather(-1, largest.indices).log()  # logsumexp, in fewer passes
                mass = soft.weights.sum(-1, keepdim=True)
                losses[some] = (mass * norm).squeeze(-1) - torch.linalg.vecdot(soft.weights, logits)
                gradient = chances.mul_(mass).sub_(soft.weights).mul_(scales[some].unsqueeze(-1))
                if d_bias is not None:
                    d_bias += gradient.sum(0)
                gradient = gradient.to(narrow)
                if d_hidden is not None:
                    d_hidden[some] = gradient @ output
                if d_weight is not None:
                    held.append(gradient)
                    if len(held) * num_rows >= max_held or first + num_rows >= len(hidden):
                        begin = first + len(gradient) - sum(map(len, held))
                        d_weight += torch.cat(held).T @ hidden[begin : first + len(gradient)].to(narrow)
                        held.clear()
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.mark_non_differentiable(losses, hits)
        return (losses * scales).sum(), losses, hits

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # Any: as above
        gradients = (None if part is None else part * upstream[0] for part in ctx.saved_tensors)
        return (*gradients, None, None, None)


def _tokens(likeliest: Tensor, labels: Labels) -> Tensor:
    """Return the target's ids [n] of a drafter's."""
    return likeliest if labels.draft_tokens is None else labels.draft_tokens[likeliest]


def add_top(weights: Tensor, divergence: float, top_k: int, top_weight: float) -> Tensor:
    """Weigh the whole distribution and its `top_k` likeliest tokens (HASS, arXiv 2408.15766, 3.1)."""
    chances, tokens = weights.topk(min(top_k, weights.shape[-1]))
    return (weights * divergence).scatter_add_(-1, tokens, chances * top_weight)


def rms(features: Tensor) -> Tensor:
    """Return the root mean square of all values."""
    return features.float().pow(2).mean().sqrt()


def feature_distance(drafted: Tensor, wanted: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    """Smooth L1 distance [n] between hidden states [n, E], the mean over their values."""
    return F.smooth_l1_loss(drafted.float() / unit, wanted.float() / unit, reduction="none").mean(-1)
