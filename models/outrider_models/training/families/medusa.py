"""Training of Medusa-1 (arXiv 2401.10774, 2.2.1): heads on a frozen target, each for one position ahead.

Head k weighs 0.8^k. Rates are those of FasterDecoding/Medusa's README. Heads use the target's lm_head; with
`own_output`, as in the published v0.1 files, each has its own output of V x E parameters, started from lm_head.
With `distill` (ours) they learn the target's distributions along the text instead of the text's own tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from outrider_drafters.families.medusa.network import Medusa, MedusaSizes
from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.core.interfaces import (
    Batch,
    Frequencies,
    LossOutput,
    NetworkDrafter,
    TargetFacts,
    TeacherOutput,
    chosen_rows,
)
from outrider_models.training.core.losses import HeadDecay, TargetLabels, TextLabels, compare
from outrider_models.training.core.rates import Length, Schedule


@dataclass(frozen=True, slots=True)
class MedusaSettings:
    heads: HeadDecay
    blocks: PositiveInt
    tied: bool  # all blocks of a head share their weights, as in the published code
    own_output: bool
    distill: bool  # learn the target's distributions instead of the text's tokens
    draft_vocab: NonNegativeInt  # tokens that it drafts, the most frequent ones; 0: all


# Number of a head, from 1, and the rows [B, R] bool that it reads -> hidden states [n, E], output weight and bias.
Drafted = Callable[[int, Tensor], tuple[Tensor, Tensor, Tensor | None]]


class TrainableHeads(NetworkDrafter):
    """Heads on the target's last hidden state: Medusa's, and Hydra's."""

    def heads_loss(
        self, batch: Batch, target: TeacherOutput, distill: bool, weights: Sequence[float], drafted: Drafted
    ) -> LossOutput:
        """Head i at row t predicts token t + 2 + i, the successor of position t + 1 + i."""
        mask = batch.loss_mask
        labels = TargetLabels(target, mask, shared=True) if distill else TextLabels(batch, target)
        compared = [
            compare(*drafted(ahead, mask[:, ahead:]), labels, labels.ahead(ahead))
            for ahead in range(1, len(weights) + 1)
        ]
        total = torch.stack([weight * one.total for weight, one in zip(weights, compared, strict=True)]).sum()
        return LossOutput(total, compared[0].loss, compared[0].hits, mask[:, 1:].nonzero()[:, 0])


class TrainableMedusa(TrainableHeads):
    network: Medusa

    def __init__(self, settings: MedusaSettings, target: TargetFacts, frequencies: Frequencies) -> None:
        rows = target.sizes.vocab if settings.own_output else 0
        sizes = MedusaSizes(target.sizes.hidden, rows, settings.heads.count, settings.blocks, tied=settings.tied)
        super().__init__(Medusa(sizes), target, frequencies, settings.draft_vocab)
        self._settings, self.export_details = settings, {"base": target.directory.name}

    def init_from_lm_head(self, lm_head: Tensor) -> None:
        if self._settings.own_output:
            self.network.start_from(lm_head)

    def forward(self, batch: Batch, target: TeacherOutput, progress: float) -> LossOutput:
        def drafted(ahead: int, mask: Tensor) -> tuple[Tensor, Tensor, None]:
            head, rows = self.network.heads[ahead - 1], target.hidden[-1][:, : mask.shape[1]][mask]
            if not self._settings.own_output:
                return head(rows), target.lm_head, None
            *blocks, output = head
            assert isinstance(output, nn.Linear)
            return nn.Sequential(*blocks)(rows), chosen_rows(output.weight, self.draft_tokens), None

        return self.heads_loss(batch, target, self._settings.distill, self._settings.heads.weights, drafted)


FAMILY = TrainableFamily(
    name="medusa",
    settings=MedusaSettings,
    defaults=lambda target: MedusaSettings(
        HeadDecay(count=5, decay=0.8), blocks=1, tied=True, own_output=False, distill=False, draft_vocab=0
    ),
    make_drafter=TrainableMedusa,
    schedule=Schedule(peak=1e-3, warmup_updates=100, decay="cosine", beta2=0.999),
    length=Length(batch=128, epochs=2),
)
