"""The client half of EAGLE-1/2: fc and the block, between the target's embedding and its lm_head."""

import torch
from torch import Tensor

from outrider_drafters.blocks.fused import FusedBlock, FusedLayers
from outrider_drafters.blocks.packed_linear import PackedLinear
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.tap import last_hidden_info
from outrider_drafters.families.eagle2.network import NAME, Eagle2
from outrider_drafters.families.feature_drafter import PairDrafter

TOLERANT_STEPS = 8  # steps of training that let it draft on late features as well as on fresh ones: docs/features.md


class Eagle2Drafter(PairDrafter):
    """Client half; the server half is LastHiddenTap."""

    family = NAME

    def __init__(self, eagle: Eagle2, target: TargetWeights, embed: Tensor | None = None, steps: int = 1) -> None:
        super().__init__(target, last_hidden_info(eagle.sizes.hidden), embed)
        self.stale_tolerant = steps >= TOLERANT_STEPS
        self.fc = eagle.fc
        self._fc = PackedLinear(eagle.fc.weight.detach(), eagle.fc.bias, packed=None)
        blocks = [FusedBlock(block) for block in eagle.blocks]
        self.block: FusedBlock | FusedLayers = blocks[0] if len(blocks) == 1 else FusedLayers(blocks)
        self.embed_norm, self.output_norm = eagle.embedding_layernorm, eagle.pre_lm_head_layernorm

    def pairs(self, embeds: Tensor, features: Tensor) -> Tensor:
        if self.embed_norm is not None:
            embeds = self.embed_norm(embeds)
        return self._fc(torch.cat((embeds, features), dim=-1))

    def logits(self, outputs: Tensor) -> Tensor:
        # Normed for lm_head alone: what is fed back is the block's output, as in every head of EAGLE-1.
        return self.target.logits(outputs if self.output_norm is None else self.output_norm(outputs))
