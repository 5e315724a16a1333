"""Training of EAGLE-1/2: one teacher-forced step (arXiv 2401.15077, 3.3; hyperparameters of SafeAILab/EAGLE main.py).

Row t sees embed(x_{t+1}) and the target's hidden state f_t with noise on it, and aims at f_{t+1}:
1.0 smooth L1 on the feature + 0.1 cross-entropy against the target's distribution through its lm_head.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from outrider_drafters.families.eagle2.network import Eagle2, Eagle2Sizes
from outrider_drafters.families.shared_layout import EMBEDDING
from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.core.interfaces import (
    Batch,
    Frequencies,
    LossOutput,
    NetworkDrafter,
    TargetFacts,
    TeacherOutput,
)
from outrider_models.training.core.losses import PAPER, Losses, TargetLabels, compare, feature_distance
from outrider_models.training.core.rates import Length, Schedule
from outrider_models.training.core.shapes import Init, LayerShape
from outrider_models.training.families.target_start import start_from_target, start_request
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class Eagle2Settings:
    shape: LayerShape
    layers: PositiveInt  # blocks; 1 in the paper and in published heads
    init: Init  # target: start as its last layers (target_start.py)
    losses: Losses
    noise: NonNegativeFloat  # uniform noise of +- this on features (paper 3.3: 0.1)
    draft_vocab: NonNegativeInt  # tokens that it drafts, the most frequent ones; 0: all


class TrainableEagle2(NetworkDrafter):
    untrained_tensors = frozenset({EMBEDDING})
    network: Eagle2

    def __init__(self, settings: Eagle2Settings, target: TargetFacts, frequencies: Frequencies) -> None:
        layers, init, sizes = settings.layers, settings.init, target.sizes
        if init == "target" and layers > sizes.layers:
            raise UsageError(f"layers={layers}: the target, as which it starts, has {sizes.layers}")
        bias = init == "target" and sizes.model_type == "qwen2"
        block = replace(settings.shape.block(sizes, sizes.rope_theta), qkv_bias=bias)
        network = Eagle2(Eagle2Sizes(block, layers=layers))
        super().__init__(network, target, frequencies, settings.draft_vocab)
        self._settings = settings
        self.start_request = start_request(layers) if init == "target" else None

    def init_from_examples(self, examples: Iterable[tuple[Batch, TeacherOutput]]) -> None:
        start_from_target(self.network, examples)

    def forward(self, batch: Batch, target: TeacherOutput, progress: float) -> LossOutput:
        losses, hidden = self._settings.losses, target.hidden[-1]
        features = noisy(hidden[:, :-1], self._settings.noise if self.training else 0.0)
        drafted = self.network.forward_train(F.embedding(batch.tokens[:, 1:], target.embed), features)
        mask = batch.loss_mask[:, 1:]
        drafted_hidden, target_hidden = drafted[mask], hidden[:, 1:][mask]
        labels = TargetLabels(target, batch.loss_mask)
        compared = compare(drafted_hidden, target.lm_head, None, labels, labels.ahead(1))
        feature = feature_distance(drafted_hidden, target_hidden, target.feature_scale if losses.in_units else 1.0)
        total = losses.divergence * compared.total + losses.feature * feature.sum()
        return LossOutput(total, compared.loss, compared.hits, mask.nonzero()[:, 0])


def noisy(features: Tensor, size: float) -> Tensor:
    """Add uniform noise of +- size to every value."""
    return features + (torch.rand_like(features) * 2 - 1) * size if size else features


FAMILY = TrainableFamily(
    name="eagle2",
    settings=Eagle2Settings,
    defaults=lambda target: Eagle2Settings(
        LayerShape.like(target), layers=1, init="random", losses=PAPER, noise=0.1, draft_vocab=0
    ),
    make_drafter=TrainableEagle2,
    schedule=Schedule(peak=3e-5, warmup_updates=2000, decay="linear", weight_decay=0.01, clip_norm=0.5),
    length=Length(batch=16, epochs=20),
)
