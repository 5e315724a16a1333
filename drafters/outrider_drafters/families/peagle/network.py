"""P-EAGLE's network (arXiv 2602.01469; vllm-project/speculators, models/peagle): EAGLE-3's, which drafts in one pass.

position     L - 2          L - 1    L      ...            L tokens, the root last: its row is that of EAGLE-3
embedding    of the root    of MASK  of MASK               the head's own, in which MASK was trained
feature      g_{L-2}        fc(mask_hidden), also behind the norms that the target's hidden states pass
predicts     x_L            x_{L+1}  x_{L+2} ...           each row sees all before it

mask_hidden is as wide as the tapped hidden states together. Nothing is fed back.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.families.eagle3.layer import Eagle3Sizes, TrainStepCache
from outrider_drafters.families.eagle3.network import Eagle3
from outrider_drafters.families.shared_layout import proposing
from outrider_drafters.readers.checkpoint import write_model


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

    def forward_depths(
        self, embeds: Tensor, states: Tensor, mask_embed: Tensor, anchors: Tensor, depths: Tensor
    ) -> Tensor:
        """Run all rows of a text, and rows of masks, in one causal pass: [B, T + M, H] after the norm, for the head.

        embeds [B, T, H] of tokens t + 1, states [B, T, k Ht] of positions t, mask_embed [H]. Mask row m stands
        `depths` [B, M] positions, 1 or more, behind the text's row `anchors` [B, M]. As in drafting, it sees the text
        up to there and the masks of the same anchor up to itself, which must all be given. Anchor -1 fills up: no row
        but another such sees it. No layer may have a window.
        """
        batch, length, _ = embeds.shape
        text = torch.arange(length, device=embeds.device).expand(batch, -1)
        anchors, depths = torch.cat((text, anchors), dim=1), torch.cat((torch.zeros_like(text), depths), dim=1)
        before = (depths == 0).unsqueeze(1) & (anchors.unsqueeze(1) <= anchors.unsqueeze(2))
        behind = (anchors.unsqueeze(1) == anchors.unsqueeze(2)) & (depths.unsqueeze(1) <= depths.unsqueeze(2))
        seen = before | behind
        masks = (batch, anchors.shape[1] - length, -1)
        embeds = torch.cat((embeds, mask_embed.expand(masks)), dim=1)
        features = torch.cat((self.fuse(states), self.fuse(self.mask_hidden.view(1, -1)).expand(masks)), dim=1)
        rope = self.sizes.block.rope(anchors + depths).for_heads()
        x: Tensor = self.midlayer(embeds, features, rope, TrainStepCache(seen[:, None, None]))
        for layer in self.later_layers:
            x = layer.self_attend(x, rope, seen.unsqueeze(1))
        return self.norm(x)  # type: ignore[no-any-return]  # nn.Module.__call__ is Any

    def export(
        self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32, steps: int | None = None
    ) -> None:
        """Write speculators' layout, of a head without windows; `steps` say nothing here."""
        sizes = self.sizes
        rope = {"rope_theta": sizes.block.rope_theta, "rope_type": "default"}
        config = self._switches() | {
            "architectures": ["PEagleSpeculator"],
            "speculators_model_type": "peagle",
            "transformer_layer_config": self._llama_config(target) | {"rope_parameters": rope},
            "embed_requires_grad": sizes.own_embedding,
            "eagle_aux_hidden_state_layer_ids": list(sizes.target_layers),
            "mask_token_id": self.mask_token,
            "speculators_config": proposing("peagle", self.num_drafts),
        }
        tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in self._tensors().items()}
        write_model(directory, config, tensors, dtype)
