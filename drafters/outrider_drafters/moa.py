"""Mixture of Attentions (arXiv 2410.03804; huawei-noah/HEBO, branch mixture-of-attentions), TLI = 0.

server (tap)   K/V of all L layers -> pack -> LSA over the layer axis -> mean over layers        2 E_kv values a token
client         tokens -> embedding -> SA (causal) ---> CA -> lm_head (no final norm: CA's output is post-norm)
               features -> Ekv2E ---------------------^ keys and values: all features there are, whoever asks
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from outrider_drafters.checkpoint import write_model
from outrider_drafters.frozen import TargetSizes
from outrider_drafters.layers import BlockShape, LlamaBlock, causal_mask
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class MoASizes:
    """Sizes of a MoA drafter. `heads` are the target's in all three blocks; `packed_kv` is the wire width 2 E_kv."""

    hidden: int
    heads: int
    head_dim: int
    packed_kv: int
    lsa_kv_heads: int
    lsa_mlp: int
    sa_kv_heads: int
    sa_mlp: int
    ca_kv_heads: int
    ca_mlp: int
    rope_theta: float = 10000.0
    eps: float = 1e-5
    qkv_bias: bool = False  # of SA and LSA, for Qwen2 targets; CA never has any

    def __post_init__(self) -> None:
        if self.packed_kv % self.heads:
            raise UsageError(f"packed_kv={self.packed_kv}: must be a multiple of heads={self.heads}, which LSA shares")

    @property
    def lsa(self) -> BlockShape:
        head_dim = self.packed_kv // self.heads
        return self._block(self.packed_kv, self.lsa_kv_heads, head_dim, self.lsa_mlp, self.qkv_bias)

    @property
    def sa(self) -> BlockShape:
        return self._block(self.hidden, self.sa_kv_heads, self.head_dim, self.sa_mlp, self.qkv_bias)

    @property
    def ca(self) -> BlockShape:
        return self._block(self.hidden, self.ca_kv_heads, self.head_dim, self.ca_mlp, False)

    def _block(self, width: int, kv_heads: int, head_dim: int, mlp: int, qkv_bias: bool) -> BlockShape:
        return BlockShape(width, self.heads, kv_heads, head_dim, mlp, self.rope_theta, self.eps, qkv_bias)


class MoA(nn.Module):
    """The trained part; submodules are named as in the published files."""

    def __init__(self, sizes: MoASizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.layer_self_attention = LlamaBlock(sizes.lsa)
        self.Ekv2E = nn.Linear(sizes.packed_kv, sizes.hidden)
        self.self_attention = LlamaBlock(sizes.sa)
        self.cross_attention = LlamaBlock(sizes.ca)

    def layer_mean(self, packed_kv: Tensor) -> Tensor:
        """Packed K/V [n, L, 2 E_kv] -> what goes over the wire [n, 2 E_kv]: LSA over the layers, then their mean.

        Each token for itself, no mask, RoPE over the layer's number.
        """
        layers = torch.arange(packed_kv.shape[1], device=packed_kv.device)
        attended: Tensor = self.layer_self_attention.self_attend(packed_kv, self.layer_self_attention.rope(layers))
        return attended.mean(dim=1)

    def forward_train(self, embeds: Tensor, packed_kv: Tensor, sync: Tensor) -> Tensor:
        """Teacher-forced pass: hidden [B, T, E] in post-norm space, ready for lm_head; row p predicts token p + 1.

        embeds [B, T, E] (the target's embedding), packed_kv [B, T, L, 2 E_kv], sync [B, T] int64: query i sees the
        features of positions j <= sync[i] (the T-step bounded mask). Padding belongs at the end.
        """
        positions = torch.arange(embeds.shape[1], device=embeds.device)
        rope = self.self_attention.rope(positions)
        rows = self.layer_mean(packed_kv.flatten(0, 1)).view(*packed_kv.shape[:2], -1)
        spoken = self.self_attention.self_attend(embeds, rope, causal_mask(len(positions), embeds.device))
        keys, values = self.cross_attention.keys_values(self.Ekv2E(rows), rope)
        visible = positions <= sync.unsqueeze(-1)
        return self.cross_attention(spoken, rope, keys, values, visible.unsqueeze(1))  # type: ignore[no-any-return]  # nn.Module

    def export(self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32) -> None:
        """Write the published training layout: the drafter's tensors and the target's sizes."""
        config = {
            "architectures": ["MOASpec"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.sizes.hidden,
            "num_attention_heads": self.sizes.heads,
            "num_hidden_layers": target.layers,
            "num_key_value_heads": target.kv_heads,
            "head_dim": self.sizes.head_dim,
            "max_position_embeddings": target.max_context,
            "rms_norm_eps": self.sizes.eps,
            "rope_theta": self.sizes.rope_theta,
            "rope_scaling": None,
            "vocab_size": target.vocab,
        }
        write_model(directory, config, self.state_dict(), dtype)


def pack_kv(keys: Tensor, values: Tensor) -> Tensor:
    """K (post-RoPE) and V [..., L, kv_heads, n, head_dim] -> [..., n, L, 2 E_kv], by head: k0 v0 k1 v1 ..."""
    both = torch.cat((keys, values), dim=-1)
    return both.movedim(-2, -4).flatten(-2)
