"""What trains: the network runs on its own outputs, and each step learns the target's distribution."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from outrider_models import (
    Batch,
    Frequencies,
    Length,
    LossOutput,
    Schedule,
    TargetFacts,
    TeacherOutput,
    TrainableDrafter,
    TrainableFamily,
)

from .drafter import Toy


@dataclass(frozen=True, slots=True)
class ToySettings:
    width: int
    steps: int  # of its own output
    draft_vocab: int  # tokens that it drafts, the most frequent ones; 0: all


class TrainableToy(TrainableDrafter):
    def __init__(self, settings: ToySettings, target: TargetFacts) -> None:
        super().__init__()
        self.network: Toy = Toy(target.sizes.hidden, settings.width)
        self._steps = settings.steps

    def forward(self, batch: Batch, target: TeacherOutput, progress: float) -> LossOutput:
        embeds, hidden = F.embedding(batch.tokens, target.embed), target.hidden[-1]
        features, losses, hits = hidden, [], []
        for step in range(1, self._steps + 1):
            # Row t: the token after position t + step - 1, and its feature or, from the second step on, its output.
            features = self.network(embeds[:, step:], features[:, :-1])
            mask = batch.loss_mask[:, step:]
            drafted, aim = (rows[mask] @ target.lm_head.T for rows in (features, hidden[:, step:]))
            losses.append(F.cross_entropy(drafted, aim.softmax(-1), reduction="none"))
            hits.append(drafted.argmax(-1) == aim.argmax(-1))
        rows = batch.loss_mask[:, 1:].nonzero()[:, 0]
        return LossOutput(torch.cat(losses).sum(), losses[0].detach(), hits[0], rows)

    def export(self, directory: Path) -> None:
        self.network.export(directory)


def make_drafter(settings: ToySettings, target: TargetFacts, frequencies: Frequencies) -> TrainableDrafter:
    return TrainableToy(settings, target).limited_to(settings.draft_vocab, frequencies, target.sizes.vocab)


FAMILY = TrainableFamily(
    name="toy",
    settings=ToySettings,
    defaults=lambda target: ToySettings(width=2 * target.sizes.hidden, steps=3, draft_vocab=0),
    make_drafter=make_drafter,
    schedule=Schedule(
        peak=1e-3, last=0.0, warmup_updates=20, decay="cosine", decay_epochs=0,
        beta1=0.9, beta2=0.95, weight_decay=0.0, clip_norm=1.0,
    ),
    length=Length(batch=16, epochs=4),
)  # fmt: skip
