"""P-EAGLE's network (arXiv 2602.01469; vllm-project/speculators, models/peagle): EAGLE-3's, which drafts in one pass.

position     L - 2          L - 1    L      ...            L tokens, the root last: its row is that of EAGLE-3
embedding    of the root    of MASK  of MASK               the head's own, in which MASK was trained
feature      g_{L-2}        fc(mask_hidden), also behind the norms that the target's hidden states pass
predicts     x_L            x_{L+1}  x_{L+2} ...           each row sees all before it

mask_hidden is as wide as the tapped hidden states together. Nothing is fed back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outrider_drafters.families.eagle3.network import Eagle3
from outrider_drafters.families.eagle3.sizes import Eagle3Sizes


@dataclass(frozen=True, slots=True)
class PEagleSizes:
    """Sizes of a head: `num_drafts` tokens in one pass; `mask_shape`: of mask_hidden, as stored."""

    eagle: Eagle3Sizes
    mask_token: int
    mask_shape: tuple[int, ...]
    num_drafts: int


class PEagle(Eagle3):
    """The trained part."""

    def __init__(self, sizes: PEagleSizes) -> None:
        super().__init__(sizes.eagle)
        self.mask_token, self.num_drafts = sizes.mask_token, sizes.num_drafts
        self.mask_hidden = nn.Parameter(torch.zeros(sizes.mask_shape))

    @torch.inference_mode()
    def mask_feature(self) -> Tensor:
        """Compute the feature [1, H] of a row that has none of the target's."""
        return self.fuse(self.mask_hidden.view(1, -1))
