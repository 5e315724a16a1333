"""The client half of EAGLE-3 and EAGLE 3.1: the layers and their head, over pairs."""

import torch
from torch import Tensor

from outrider_drafters.blocks.fused import FusedBlock, FusedLayers
from outrider_drafters.blocks.layers import RMSNorm
from outrider_drafters.blocks.packed_linear import PackedLinear
from outrider_drafters.checkpoints.draft_vocabulary import over_target_vocabulary, select_rows
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.families.eagle3.layer import FusedPairLayer
from outrider_drafters.families.eagle3.network import NAME, Eagle3, tap_info
from outrider_drafters.families.feature_drafter import PairDrafter
from outrider_proto.frames import TapInfo

PUBLISHED_STEPS = 7  # of its own output, that published heads were trained over


class Eagle3Drafter(PairDrafter):
    """Client half; the server half is Eagle3Tap, or LastHiddenTap for a head without fc."""

    family = NAME

    def __init__(
        self, eagle: Eagle3, target: TargetWeights, tap: TapInfo | None = None, steps: int = PUBLISHED_STEPS
    ) -> None:
        own_embed = None if eagle.embed_tokens is None else eagle.embed_tokens.weight.detach()
        super().__init__(target, tap_info(eagle, target.sizes.layers) if tap is None else tap, own_embed)
        # A head that was trained over three steps loses 11 to 16 % one verdict late, over seven 3 %: docs/features.md.
        self.stale_tolerant = steps >= PUBLISHED_STEPS
        self.block = fused_layers(eagle, eagle.norm if eagle.sizes.norm_output else None)
        self._head, self._draft_tokens = drafting_head(eagle, target)
        # Applied once: with norm_output the layers' output, which is fed back, is normed already.
        self._norm = None if eagle.sizes.norm_output else eagle.norm

    def pairs(self, embeds: Tensor, features: Tensor) -> Tensor:
        return torch.cat((embeds, features), dim=-1)

    def logits(self, outputs: Tensor) -> Tensor:
        normed = outputs if self._norm is None else self._norm(outputs)
        return over_target_vocabulary(self._head(normed).float(), self._draft_tokens, self.vocab_size)


def fused_layers(eagle: Eagle3, norm: RMSNorm | None = None) -> FusedLayers:
    """Return the layers over pairs [n, 2 H], with a norm after the last if asked for."""
    later = [FusedBlock(layer) for layer in eagle.later_layers]
    return FusedLayers([FusedPairLayer(eagle.midlayer), *later], eagle.sizes.windows, norm)


def drafting_head(eagle: Eagle3, target: TargetWeights) -> tuple[PackedLinear, Tensor | None]:
    """Return the head's product and the target's tokens of its rows [Vd], None where row i is token i."""
    head, tokens = target.lm_head, target.draft_tokens
    if eagle.lm_head is not None:
        head, tokens = select_rows(eagle.lm_head.weight.detach(), eagle.draft_tokens, target.draft_tokens)
    return PackedLinear(head, packed=None), tokens
