"""Losses: the distance of a drafter from its target, position by position."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from outrider_models.core.tables import need_at_least
from outrider_proto.errors import UsageError

Head = Callable[[Tensor], Tensor]  # rows [n, ...] -> logits [n, V]
LogitLoss = Callable[[Tensor, Tensor], Tensor]  # the drafter's logits, the target's -> [n]
MAX_LOGITS = 1 << 26  # held at once; more rows go in parts, whose logits are computed again in backward


@dataclass(frozen=True, slots=True)
class Losses:
    """Weights of the two terms that EAGLE (arXiv 2401.15077, 3.3) and MoA (arXiv 2410.03804, 3.3) share."""

    divergence: float  # cross-entropy against the target's distribution
    feature: float  # smooth L1 against the target's last hidden state
    in_units: bool  # divide features by their scale, so that a weight means the same for every target

    def __post_init__(self) -> None:
        need_at_least(self, 0, "divergence", "feature")


PAPER = Losses(divergence=0.1, feature=1.0, in_units=False)


@dataclass(frozen=True, slots=True)
class HeadDecay:
    """Weights of several heads or steps: 1, decay, decay squared, ..."""

    count: int
    decay: float

    def __post_init__(self) -> None:
        need_at_least(self, 1, "count")
        if not 0 < self.decay <= 1:
            raise UsageError(f"decay={self.decay}: need more than 0 and at most 1")

    @property
    def weights(self) -> list[float]:
        return [self.decay**number for number in range(self.count)]


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    loss: Tensor  # [n] float32
    hits: Tensor  # [n] bool: both have the same likeliest token


def rms(features: Tensor) -> Tensor:
    """Return the root mean square of all values."""
    return features.float().pow(2).mean().sqrt()


def linear(weight: Tensor, bias: Tensor | None = None) -> Head:
    """Wrap a head [V, E] as a function."""
    return lambda rows: F.linear(rows, weight, bias)


def compare(
    student: Head,
    drafted: Tensor,
    teacher: Head,
    wanted: Tensor,
    loss: LogitLoss,
    vocab: int,
    student_ids: Tensor | None = None,
) -> Compared:
    """Compute the loss between the logits of `drafted` and `wanted`, both [n, ...], MAX_LOGITS at a time.

    The teacher may return tokens [n] instead of logits. `student_ids` [Vd] maps the student's ids to the target's.
    """
    work = (student, teacher, loss, student_ids)
    rows = max(1, MAX_LOGITS // vocab)
    if len(drafted) <= rows:
        return Compared(*_part(drafted, wanted, *work))
    # The reentrant kind would drop the gradients of heads: their inputs, the target's features, require none.
    parts = [
        checkpoint(_part, some, others, *work, use_reentrant=False)
        for some, others in zip(torch.split(drafted, rows), torch.split(wanted, rows), strict=True)
    ]
    return Compared(torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]))


def soft_cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy [n] of softmax(wanted) against softmax(logits), both [n, V]: forward KL up to a constant."""
    return -(wanted.float().softmax(-1) * logits.float().log_softmax(-1)).sum(-1)


def token_cross_entropy(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross-entropy [n] of tokens [n] against softmax(logits) [n, V]."""
    return F.cross_entropy(logits.float(), tokens, reduction="none")


def top_cross_entropy(logits: Tensor, wanted: Tensor, top_k: int) -> Tensor:
    """Cross-entropy over the target's `top_k` likeliest tokens only (HASS, arXiv 2408.15766, 3.1)."""
    chances, tokens = wanted.float().softmax(-1).topk(min(top_k, wanted.shape[-1]))
    return -(chances * logits.float().log_softmax(-1).gather(-1, tokens)).sum(-1)


def feature_distance(drafted: Tensor, wanted: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    """Smooth L1 distance [n] between hidden states [n, E], the mean over their values."""
    return F.smooth_l1_loss(drafted.float() / unit, wanted.float() / unit, reduction="none").mean(-1)


def _part(
    drafted: Tensor, wanted: Tensor, student: Head, teacher: Head, loss: LogitLoss, student_ids: Tensor | None
) -> tuple[Tensor, Tensor]:
    logits = student(drafted)
    with torch.no_grad():
        aim = teacher(wanted)
    likeliest = logits.argmax(-1) if student_ids is None else student_ids[logits.argmax(-1)]
    return loss(logits, aim), likeliest == (aim if aim.ndim == 1 else aim.argmax(-1))
