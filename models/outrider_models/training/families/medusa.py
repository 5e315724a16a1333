"""Training of Medusa-1 (arXiv 2401.10774, 2.2.1): heads on a frozen target, each for one position ahead.

Head k weighs 0.8^k. Rates are those of FasterDecoding/Medusa's README. Heads use the target's lm_head; with
`own_output`, as in the published v0.1 files, each has its own output of V x E parameters, started from lm_head.
With `distill` (ours) they learn the target's distributions along the text instead of the text's own tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outrider_drafters.families.medusa.network import Medusa, MedusaSizes
from outrider_models.core.tables import need_at_least
from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.core.interfaces import (
    Batch,
    Frequencies,
    LossOutput,
    NetworkDrafter,
    TargetFacts,
    TeacherOutput,
    chosen_rows,
    rows_of,
)
from outrider_models.training.core.losses import HeadDecay, Labels, TargetLabels, TextLabels, compare
from outrider_models.training.core.rates import Length, Schedule


@dataclass(frozen=True, slots=True)
class MedusaSettings:
    heads: HeadDecay
    blocks: int
    tied: bool  # all blocks of a head share their weights, as in the published code
    own_output: bool
    distill: bool  # learn the target's distributions instead of the text's tokens
    draft_vocab: int  # tokens that it drafts, the most frequent ones; 0: all

    def __post_init__(self) -> None:
        need_at_least(self, 1, "blocks")
        need_at_least(self, 0, "draft_vocab")


class TrainableMedusa(NetworkDrafter):
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
        mask, distill = batch.loss_mask, self._settings.distill
        labels = TargetLabels(target, mask, shared=True) if distill else TextLabels(batch, target)
        outputs = [self._loss_output(number, batch, target, labels) for number in range(self._settings.heads.count)]
        weighted = [weight * one.total for weight, one in zip(self._settings.heads.weights, outputs, strict=True)]
        return LossOutput(torch.stack(weighted).sum(), outputs[0].main, outputs[0].hits, outputs[0].rows)

    def _loss_output(self, number: int, batch: Batch, target: TeacherOutput, labels: Labels) -> LossOutput:
        """Head i at row t predicts token t + 2 + i, the successor of position t + 1 + i."""
        ahead = number + 1
        head: nn.Module = self.network.heads[number]
        mask = batch.loss_mask[:, ahead:]
        rows = target.hidden[-1][:, : mask.shape[1]][mask]
        if self._settings.own_output:
            *blocks, output = self.network.heads[number]
            head = nn.Sequential(*blocks)
            assert isinstance(output, nn.Linear)
            weight = chosen_rows(output.weight, self.draft_tokens)
        else:
            weight = target.lm_head
        compared = compare(head(rows), weight, None, labels, labels.ahead(ahead))
        return LossOutput(compared.total, compared.loss, compared.hits, rows_of(mask))


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
