"""Training of Hydra and Hydra++ (arXiv 2402.05109, 3 and 4; zankner/Hydra train.py).

Heads also read the tokens drafted so far and learn the target's whole distribution, or without `distill` the text's
own tokens (the paper's first Hydra, section 5). Every head weighs the same.
With `own_output` each head's output is trained, starting from the target's lm_head, as in the published heads; without,
it is the target's, and the files contain none: `outrider_own_output` in their config.json says so.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.families.hydra.family import EMBEDDINGS, ROPE_THETA, renumber_blocks
from outrider_drafters.families.hydra.network import Hydra, HydraSizes
from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.core.interfaces import (
    PADDING,
    Batch,
    Frequencies,
    LossOutput,
    TargetFacts,
    TeacherOutput,
    chosen_rows,
)
from outrider_models.training.core.rates import Length, Schedule
from outrider_models.training.core.shapes import LayerShape
from outrider_models.training.families.medusa import TrainableHeads


@dataclass(frozen=True, slots=True)
class HydraSettings:
    heads: PositiveInt
    blocks: PositiveInt
    prefix: bool  # Hydra++'s layer over the target's hidden states
    shape: LayerShape  # of that layer
    own_output: bool
    dropout: Annotated[float, Field(ge=0, lt=1)]
    distill: bool  # learn the target's distributions (the paper's teacher loss); false: the text's tokens
    noise: NonNegativeFloat  # alpha of the uniform noise on hidden states (paper, 6.1: 75, which did not help)
    draft_vocab: NonNegativeInt  # tokens that it drafts, the most frequent ones; 0: all


class TrainableHydra(TrainableHeads):
    network: Hydra

    def __init__(self, settings: HydraSettings, target: TargetFacts, frequencies: Frequencies) -> None:
        sizes, vocab = target.sizes, target.sizes.vocab if settings.own_output else 0
        prefix = settings.shape.block(sizes, ROPE_THETA) if settings.prefix else None
        network = Hydra(HydraSizes(sizes.hidden, vocab, settings.heads, settings.blocks, prefix=prefix))
        super().__init__(network, target, frequencies, settings.draft_vocab)
        self._settings, self.export_details = settings, {"base": target.directory.name}
        # Of files with outputs that were never trained: they are the target's.
        unused = 0 if settings.own_output else settings.heads
        outputs = (f"hydra_lm_head.{head}.{part}" for head in range(unused) for part in ("weight", "bias"))
        self.untrained_tensors = frozenset({*EMBEDDINGS, *outputs})

    def init_from_lm_head(self, lm_head: Tensor) -> None:
        self.network.start_from(lm_head)

    def load_weights(self, files: DrafterFiles) -> None:
        super().load_weights(files.with_checkpoint(renumber_blocks(files.checkpoint)))

    def forward(self, batch: Batch, target: TeacherOutput, progress: float) -> LossOutput:
        hidden, noise = target.hidden[-1], self._settings.noise
        if noise and self.training:
            hidden = hidden + (torch.rand_like(hidden) * 2 - 1) * noise_sizes(batch, hidden.shape[-1], noise)
        # Ungrounded heads read the prefix layer's output too; the published drafting code skips it.
        features = hidden if self.network.prefix is None else self.network.prefix(hidden)
        embeds = F.embedding(batch.tokens, target.embed)

        def drafted(ahead: int, mask: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            """Head i at row t reads tokens t + 1 .. t + 1 + i."""
            rows = mask.shape[1]
            parts = [embeds[:, 1 + further : 1 + further + rows][mask] for further in range(ahead)]
            x = torch.cat((features[:, :rows][mask], *parts), dim=-1)
            hidden = self.network.head_hidden(ahead - 1, x, self._settings.dropout if self.training else 0.0)
            _, output = self.network.heads[ahead - 1]
            if output is None:
                return hidden, target.lm_head, None
            return hidden, chosen_rows(output.weight, self.draft_tokens), chosen_rows(output.bias, self.draft_tokens)

        return self.heads_loss(batch, target, self._settings.distill, [1.0] * self._settings.heads, drafted)


def noise_sizes(batch: Batch, width: int, alpha: float) -> Tensor:
    """Return the largest noise on a value of each row [B, 1, 1]: alpha / sqrt(tokens x width), as NEFTune's."""
    tokens = (batch.labels != PADDING).sum(1)
    return alpha / (tokens * width).sqrt().view(-1, 1, 1)


FAMILY = TrainableFamily(
    name="hydra",
    settings=HydraSettings,
    defaults=lambda target: HydraSettings(
        heads=4, blocks=4, prefix=True, shape=LayerShape.like(target), own_output=False, dropout=0.2,
        distill=True, noise=0.0, draft_vocab=0,
    ),
    make_drafter=TrainableHydra,
    schedule=Schedule(
        peak=5e-4, warmup_updates=100, decay="cosine", last=1.65e-4, beta2=0.999, weight_decay=0.1
    ),
    length=Length(batch=32, epochs=10),
)  # fmt: skip
