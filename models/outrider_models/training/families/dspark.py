"""Training of DSpark (arXiv 2607.05147; numbers of deepseek-ai/DeepSpec, config/dspark): DFlash's blocks and two heads.

The Markov head learns with the blocks, along the text's tokens; the confidence head learns how likely a slot's token is
accepted, by binary cross-entropy that weighs slots as the loss does. A head over a draft vocabulary has the target's
rows, which stay as they are.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.families.dspark.network import DSpark, DSparkHeads, MarkovKind
from outrider_drafters.families.shared_layout import T2D
from outrider_models.training.core.block_losses import BlockLabels, BlockLosses, SlotsCompared, compare_slots
from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.core.interfaces import Batch, Frequencies, TargetFacts, chosen_rows, most_frequent
from outrider_models.training.core.rates import Length
from outrider_models.training.core.shapes import RAREST, LayerShape
from outrider_models.training.families.dflash import FAMILY as DFLASH
from outrider_models.training.families.dflash import (
    DFlashSettings,
    TrainableBlocks,
    TrainedBlocks,
    block_sizes,
    default_taps,
)


@dataclass(frozen=True, slots=True)
class MarkovSettings:
    rank: NonNegativeInt  # 0: no Markov head
    kind: MarkovKind


@dataclass(frozen=True, slots=True)
class DSparkSettings(DFlashSettings):
    markov: MarkovSettings
    confidence: NonNegativeFloat  # weight of the confidence head's loss; 0: no such head


class TrainableDSpark(TrainableBlocks):
    untrained_tensors = frozenset({T2D})
    layout_has_draft_vocab = True
    network: DSpark

    def __init__(self, settings: DSparkSettings, target: TargetFacts, frequencies: Frequencies) -> None:
        vocab, tokens = target.sizes.vocab, None
        if 0 < settings.draft_vocab < vocab:
            # Sorted: d2t can express rising ids alone.
            tokens = most_frequent(frequencies(), settings.draft_vocab).sort().values
        rows, sizes = 0 if tokens is None else len(tokens), block_sizes(settings, target, frequencies)
        network = DSpark(replace(sizes, from_root=True, head_rows=rows), _heads(settings))
        super().__init__(settings, target, network, frequencies)
        if tokens is not None:
            network.set_draft_tokens(tokens)
        self.draft_tokens, self._confidence = tokens, settings.confidence
        if network.lm_head is not None:
            network.lm_head.requires_grad_(False)

    def init_from_lm_head(self, lm_head: Tensor) -> None:
        if self.network.lm_head is not None:
            self.network.lm_head.weight.data.copy_(chosen_rows(lm_head, self.draft_tokens))

    def load_weights(self, files: DrafterFiles) -> None:
        super().load_weights(files)
        # The draft vocabulary comes with the weights, as w2's rows do.
        self.draft_tokens = self.network.draft_tokens

    def _compared(
        self, batch: Batch, blocks: TrainedBlocks, labels: BlockLabels, numbers: Tensor
    ) -> tuple[Tensor, SlotsCompared]:
        hidden, scales, head = blocks.states[blocks.trained], blocks.scales[blocks.trained], self.network.markov_head
        before, z = self._markov(batch, blocks)
        w2 = hidden.new_empty(len(labels.lm_head), 0) if head is None else head.markov_w2.weight
        compared = compare_slots(hidden, z, w2, scales, labels, numbers)
        total, confidence = compared.total, self.network.confidence_head
        if confidence is not None:
            loss = F.binary_cross_entropy_with_logits(
                confidence.logits(hidden, before), compared.accepted, reduction="none"
            )
            total = total + self._confidence * (loss * scales).sum()
        return total, compared

    def _markov(self, batch: Batch, blocks: TrainedBlocks) -> tuple[Tensor, Tensor]:
        """Return w1's rows of the tokens before the trained slots, and z of them, each [n, rank]."""
        head = self.network.markov_head
        if head is None:
            none = blocks.states.new_empty(int(blocks.trained.sum()), 0)
            return none, none
        places = self._places(blocks.anchors).clamp(max=batch.tokens.shape[1] - 1)
        tokens = batch.tokens.gather(1, places.flatten(1)).view_as(places)
        before, states = head.markov_w1(tokens), blocks.states.float()
        state, made = before.new_zeros(before.shape[0] * before.shape[1], before.shape[-1]), []
        # Without autocast: it would narrow some of what the rnn mixes and not the rest.
        with torch.autocast(before.device.type, enabled=False):
            for rows, hidden in zip(before.flatten(0, 1).unbind(1), states.flatten(0, 1).unbind(1), strict=True):
                z, state = head.step(rows, hidden, state)
                made.append(z)
        z = torch.stack(made, dim=1).view_as(before)
        return before[blocks.trained], z[blocks.trained]


def _heads(settings: DSparkSettings) -> DSparkHeads:
    rank, kind = settings.markov.rank, settings.markov.kind
    if not settings.confidence:
        return DSparkHeads(rank, kind)
    return DSparkHeads(rank, kind, "hidden and token" if rank else "hidden")


FAMILY = TrainableFamily(
    name="dspark",
    settings=DSparkSettings,
    defaults=lambda target: DSparkSettings(
        LayerShape.like(target), layers=5, target_layers=default_taps(target.sizes.layers), block_size=7,
        mask_token=RAREST, anchors=512, late=0, gamma=4.0,
        losses=BlockLosses(text=0.1, divergence=0.0, variation=0.9), draft_vocab=0,
        markov=MarkovSettings(rank=256, kind="vanilla"), confidence=1.0,
    ),
    make_drafter=TrainableDSpark,
    schedule=DFLASH.schedule,
    length=Length(batch=512, epochs=10),
)  # fmt: skip
