"""The server half of a Gemma-4 assistant: what the target has computed anyway, as it is.

[ sliding layer: K | V | full layer: K | V | last hidden state E ]       K and V head by head, K post-RoPE
"""

import torch
from torch import Tensor

from outrider_drafters.contracts.tap import LAST, Activations, StatelessTap
from outrider_drafters.families.gemma4.network import NAME, AssistantSizes
from outrider_proto.frames import TapInfo


def tap_info(sizes: AssistantSizes, lenders: tuple[int, ...]) -> TapInfo:
    """Describe the features of the target's layers `lenders`. No weights make them: all assistants share them."""
    layers = "-".join(map(str, lenders))
    return TapInfo(f"{NAME}:{layers}:{sizes.feature_width}", NAME, sizes.feature_width)


class LentTap(StatelessTap):
    """K/V of the layers that lend theirs, and the last hidden state after the final norm."""

    needs_kv = True
    hidden_layers = (LAST,)

    def __init__(self, info: TapInfo, lenders: tuple[int, ...]) -> None:
        self.info = info
        self._lenders = lenders

    @torch.inference_mode()
    def rows(self, acts: Activations) -> Tensor:
        lent = [part for layer in self._lenders for part in (acts.keys[layer], acts.values[layer])]
        hidden = acts.hidden[LAST].float()
        return torch.cat([*(part.transpose(0, 1).flatten(1).to(hidden) for part in lent), hidden], dim=1)
