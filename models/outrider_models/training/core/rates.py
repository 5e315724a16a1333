"""Optimizers, their learning rates, and lengths of runs: schedules of papers."""

import math
from dataclasses import dataclass
from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import nn

from outrider_models.training.core.optimizer import Optimizer
from outrider_proto.errors import UsageError

Decay = Literal["linear", "cosine"]
OptimizerName = Literal["adamw", "muon"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The optimizer's settings and learning rate: from 0 up to `peak`, then down to `last`, where it stays."""

    peak: float
    warmup_updates: NonNegativeInt
    decay: Decay
    last: NonNegativeFloat = 0.0
    decay_epochs: NonNegativeFloat = 0.0  # end of the decay; 0: the end of the run
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: NonNegativeFloat = 0.0
    clip_norm: float = 1.0
    optimizer: OptimizerName = "adamw"
    muon_peak: NonNegativeFloat = 0.01  # muon: the rate of hidden matrices where that of all else, AdamW's, is `peak`

    def __post_init__(self) -> None:
        if not self.peak > 0 or self.last > self.peak:
            raise UsageError(f"schedule: peak={self.peak}, last={self.last}: need 0 < peak and last <= peak")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.clip_norm > 0):
            raise UsageError("schedule: need beta1 and beta2 from 0 to below 1, clip_norm above 0")

    def rate(self, update: int, updates_an_epoch: int, updates: int) -> float:
        """Return the rate of an update, counted from 0, in a run of `updates`."""
        # A run shorter than ten warm-ups warms up for a tenth of its length.
        warmup = min(self.warmup_updates, updates // 10) if updates < 10 * self.warmup_updates else self.warmup_updates
        if update < warmup:
            return self.peak * (update + 1) / (warmup + 1)
        end = self.decay_epochs * updates_an_epoch if self.decay_epochs else updates
        done = min(1.0, (update - warmup) / max(1.0, end - warmup))
        left = 1 - done if self.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.last + (self.peak - self.last) * left

    def make_optimizer(self, network: nn.Module) -> Optimizer:
        betas, muon = (self.beta1, self.beta2), self.optimizer == "muon"
        return Optimizer(network, self.muon_peak, self.peak, self.weight_decay, betas, muon=muon)


@dataclass(frozen=True, slots=True)
class Length:
    """Length of a run: chats per update, over all devices, and passes over the data."""

    batch: PositiveInt
    epochs: PositiveFloat
