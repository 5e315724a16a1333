"""EAGLE-1/2 and HASS (SafeAILab/EAGLE, cnets1.py; HArmonizedSS/HASS): a Llama block over fused (token, feature) pairs.

z_t = fc(concat[embed(x_{t+1}), f_t])    embedding first; f_t: the target's last hidden after its final norm
out_t = block(z_0 .. z_t)                no input norm, RoPE position t
logits of x_{t+2} = lm_head(out_t)       no final norm: out_t stands in for f_{t+1} when drafting goes on

Published heads have one block; further ones, which the code allows, have an input norm. HASS differs in training only.
A variant of speculators (`layernorms`) norms the embedding, the first block's input, and out_t before lm_head.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from outrider_drafters.blocks.layers import BlockShape, LlamaBlock, RMSNorm, causal_mask
from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.families.shared_layout import STEPS
from outrider_drafters.readers.checkpoint import write_model
from outrider_proto.errors import UsageError

NAME = "eagle2"


@dataclass(frozen=True, slots=True)
class Eagle2Sizes:
    """Sizes of an EAGLE-1/2 drafter; `block` is as wide as the target. `norms`: it is the variant with more norms."""

    block: BlockShape
    fc_bias: bool = True
    layers: int = 1
    norms: bool = False


class Eagle2(nn.Module):
    """The trained part; submodules are named as in the published files."""

    def __init__(self, sizes: Eagle2Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        width, eps = sizes.block.width, sizes.block.eps
        self.fc = nn.Linear(2 * width, width, bias=sizes.fc_bias)
        self.layers = nn.ModuleList(
            LlamaBlock(sizes.block, input_norm=sizes.norms or i > 0) for i in range(sizes.layers)
        )
        # Their names are speculators'.
        self.embedding_layernorm = RMSNorm(width, eps) if sizes.norms else None
        self.pre_lm_head_layernorm = RMSNorm(width, eps) if sizes.norms else None

    @property
    def block(self) -> LlamaBlock:
        """The first block, in published heads the only one."""
        return self.blocks[0]

    @property
    def blocks(self) -> list[LlamaBlock]:
        return [layer for layer in self.layers if isinstance(layer, LlamaBlock)]

    def fuse(self, embeds: Tensor, features: Tensor) -> Tensor:
        """Compute z from embed(x_{t+1}) and f_t, both [..., E]."""
        # Embedding first, feature second: swapped, published weights still run and draft nonsense.
        return self.fc(torch.cat((embeds, features), dim=-1))  # type: ignore[no-any-return]  # nn.Module

    def forward_train(self, embeds_next: Tensor, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run a teacher-forced pass: hidden [B, T, E] in post-norm space, for lm_head; row t predicts token t + 2.

        embeds_next [B, T, E] of tokens t + 1, features [B, T, E] of positions t; mask: bool, broadcast to [B, 1, T, T],
        None for causal. Padding belongs at the end. Raises UsageError for the variant with more norms.
        """
        if self.sizes.norms:
            raise UsageError("a head of speculators with layernorms: only those without are trained")
        positions = torch.arange(features.shape[1], device=features.device)
        mask = causal_mask(len(positions), features.device) if mask is None else mask
        hidden, rope = self.fuse(embeds_next, features), self.sizes.block.rope(positions)
        for block in self.blocks:
            hidden = block.self_attend(hidden, rope, mask)
        return hidden

    def export(self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32, steps: int = 1) -> None:
        """Write SafeAILab's layout, without its copy of the target's embedding; `steps`: see STEPS."""
        sizes, block, scaling = self.sizes, self.sizes.block, self.sizes.block.rope_scaling
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **block.as_config(sizes.layers, target.max_context, target.vocab),
            "bias": sizes.fc_bias,
            "qkv_bias": block.qkv_bias,
            "rope_theta": block.rope_theta,
            # In SafeAILab's spelling and transformers'.
            "rope_scaling": None if scaling is None else {"type": scaling.kind, **scaling.as_config()},
            STEPS: steps,
        }
        write_model(directory, config, self.state_dict(), dtype)
