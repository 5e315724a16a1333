"""Training of HASS (arXiv 2408.15766): EAGLE-2's network on its own hidden states over several steps.

The loss adds the target's likeliest tokens (weights of HArmonizedSS/HASS train/main_hass.py: 1.0 feature + 0.1 all
tokens + 1.0 top 10, 3 steps). Steps weigh the same, and hidden states that enter the next step carry no gradient, as
in that code; with `detached` false they do, so a step also learns to help those after it, as EAGLE-3's do.

Row t of step j is the drafter at position t + j, j levels below the last true feature, that of position t. It takes its
own output of step j - 1 instead of a feature, and sees what it will see when it drafts:

    step 0   x_{t+1}      rows .. t of step 0                         (true features)
    step 1   x_{t+2}      rows .. t of step 0, row t of step 1
    step 2   x_{t+3}      rows .. t of step 0, rows t of steps 1, 2

Keys and values of all steps lie one after another: the mask is a triangle, then diagonals.
"""

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.core.interfaces import Batch, Frequencies, LossOutput, TargetFacts, TeacherOutput
from outrider_models.training.core.losses import PAPER, TargetLabels, add_top, compare, feature_distance
from outrider_models.training.core.shapes import LayerShape
from outrider_models.training.families.eagle2 import FAMILY as EAGLE2
from outrider_models.training.families.eagle2 import Eagle2Settings, TrainableEagle2, noisy


@dataclass(frozen=True, slots=True)
class HassSettings(Eagle2Settings):
    steps: PositiveInt
    detached: bool
    top_k: PositiveInt
    top_weight: NonNegativeFloat


class TrainableHass(TrainableEagle2):
    _settings: HassSettings

    def __init__(self, settings: HassSettings, target: TargetFacts, frequencies: Frequencies) -> None:
        super().__init__(settings, target, frequencies)
        self.export_details = {"steps": settings.steps}

    def forward(self, batch: Batch, target: TeacherOutput, progress: float) -> LossOutput:
        settings, losses = self._settings, self._settings.losses
        reweigh = partial(add_top, divergence=losses.divergence, top_k=settings.top_k, top_weight=settings.top_weight)
        labels = TargetLabels(target, batch.loss_mask, shared=True, reweigh=reweigh)
        # Row t of a step aims at the feature of position t + 1 + step.
        masks = [batch.loss_mask[:, ahead:] for ahead in range(1, settings.steps + 1)]
        steps = [step[mask] for step, mask in zip(self._drafted(batch, target), masks, strict=False)]
        drafted, numbers = torch.cat(steps), torch.cat([labels.ahead(ahead) for ahead in range(1, len(steps) + 1)])
        compared = compare(drafted, target.lm_head, None, labels, numbers)
        wanted = target.hidden[-1][batch.loss_mask][numbers]
        feature = feature_distance(drafted, wanted, target.feature_scale if losses.in_units else 1.0)
        first = len(steps[0])
        total = compared.total + losses.feature * feature.sum()
        return LossOutput(total, compared.loss[:first], compared.hits[:first], masks[0].nonzero()[:, 0])

    def _drafted(self, batch: Batch, target: TeacherOutput) -> list[Tensor]:
        """Compute the hidden states [B, T - 1 - step, E] of every step."""
        blocks, embeds = self.network.blocks, F.embedding(batch.tokens, target.embed)
        features = noisy(target.hidden[-1][:, :-1], self._settings.noise if self.training else 0.0)
        # Of each block, the keys and the values of all steps so far.
        seen: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in blocks]
        outputs: list[Tensor] = []
        for step in range(min(self._settings.steps, embeds.shape[1] - 1)):
            rows = embeds.shape[1] - 1 - step
            hidden = self.network.fuse(embeds[:, step + 1 :], features[:, :rows])
            # Positions advance with the step: row t of this step continues row t of the one before.
            rope = self.network.sizes.block.rope(torch.arange(step, step + rows, device=hidden.device))
            mask = step_mask(rows, step, hidden.device)
            for block, (keys, values) in zip(blocks, seen, strict=True):
                for parts, new in zip((keys, values), block.keys_values(hidden, rope), strict=True):
                    parts.append(new)
                hidden = block(hidden, rope, joined(keys, rows), joined(values, rows), mask)
            outputs.append(hidden)
            features = hidden.detach() if self._settings.detached else hidden
        return outputs


def step_mask(rows: int, step: int, device: torch.device) -> Tensor:
    """Return [rows, rows * (step + 1)] bool, true where a query of `step` sees a key."""
    ones = torch.ones(rows, rows, dtype=torch.bool, device=device)
    return torch.cat([ones.tril(), *[torch.eye(rows, dtype=torch.bool, device=device)] * step], dim=1)


def joined(parts: list[Tensor], rows: int) -> Tensor:
    """Concatenate the first `rows` rows of keys or values [B, heads, >= rows, head_dim] of all steps."""
    return torch.cat([part[:, :, :rows] for part in parts], dim=2)


FAMILY = TrainableFamily(
    name="hass",
    settings=HassSettings,
    defaults=lambda target: HassSettings(
        LayerShape.like(target), layers=1, init="random", losses=PAPER,
        noise=0.1, draft_vocab=0, steps=3, detached=True, top_k=10, top_weight=1.0,
    ),
    make_drafter=TrainableHass,
    schedule=EAGLE2.schedule,
    length=EAGLE2.length,
)  # fmt: skip
