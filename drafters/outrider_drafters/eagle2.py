"""EAGLE-1/2 (SafeAILab/EAGLE, cnets1.py): one Llama block over fused (token, feature) pairs.

z_t = fc(concat[embed(x_{t+1}), f_t])    embedding first; f_t: the target's last hidden after its final norm
out_t = block(z_0 .. z_t)                no input norm, RoPE position t
logits of x_{t+2} = lm_head(out_t)       no final norm: out_t stands in for f_{t+1} when drafting goes on
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from outrider_drafters.checkpoint import write_model
from outrider_drafters.frozen import TargetSizes
from outrider_drafters.layers import BlockShape, LlamaBlock, causal_mask


@dataclass(frozen=True, slots=True)
class Eagle2Sizes:
    """Sizes of an EAGLE-1/2 drafter; `hidden` is the target's."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    rope_theta: float = 10000.0
    eps: float = 1e-5
    fc_bias: bool = True
    qkv_bias: bool = False

    @property
    def block(self) -> BlockShape:
        return BlockShape(
            self.hidden, self.heads, self.kv_heads, self.head_dim, self.mlp, self.rope_theta, self.eps, self.qkv_bias
        )


class Eagle2(nn.Module):
    """The trained part; submodules are named as in the published files."""

    def __init__(self, sizes: Eagle2Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.fc = nn.Linear(2 * sizes.hidden, sizes.hidden, bias=sizes.fc_bias)
        self.layers = nn.ModuleList([LlamaBlock(sizes.block, input_norm=False)])

    @property
    def block(self) -> LlamaBlock:
        layer = self.layers[0]
        assert isinstance(layer, LlamaBlock)
        return layer

    def fuse(self, embeds: Tensor, features: Tensor) -> Tensor:
        """z of embed(x_{t+1}) and f_t, both [..., E]."""
        return self.fc(torch.cat((embeds, features), dim=-1))  # type: ignore[no-any-return]  # nn.Module

    def forward_train(self, embeds_next: Tensor, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Teacher-forced pass: hidden [B, T, E] in post-norm space, ready for lm_head; row t predicts token t + 2.

        embeds_next [B, T, E] of tokens t + 1, features [B, T, E] of positions t; mask: bool, broadcast to [B, 1, T, T],
        None for causal. Padding belongs at the end.
        """
        positions = torch.arange(features.shape[1], device=features.device)
        mask = causal_mask(len(positions), features.device) if mask is None else mask
        return self.block.self_attend(self.fuse(embeds_next, features), self.block.rope(positions), mask)

    def export(self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32) -> None:
        """Write SafeAILab's layout, without its copy of the target's embedding."""
        sizes = self.sizes
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "bias": sizes.fc_bias,
            "qkv_bias": sizes.qkv_bias,
            "hidden_size": sizes.hidden,
            "intermediate_size": sizes.mlp,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "head_dim": sizes.head_dim,
            "num_hidden_layers": 1,
            "max_position_embeddings": target.max_context,
            "rms_norm_eps": sizes.eps,
            "rope_theta": sizes.rope_theta,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "vocab_size": target.vocab,
        }
        write_model(directory, config, self.state_dict(), dtype)
