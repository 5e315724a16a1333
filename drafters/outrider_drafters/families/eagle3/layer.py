"""EAGLE-3's single layer over (embedding, feature) pairs: the plain form for training, the fused one for drafting."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.blocks.fused import FusedMLP, FusedProjections
from outrider_drafters.blocks.layers import Attention, GatedMLP, RMSNorm, Rope
from outrider_drafters.blocks.row_buffer import KVCache
from outrider_drafters.families.eagle3.sizes import Eagle3Sizes


class PairLayer(nn.Module):
    def __init__(self, sizes: Eagle3Sizes) -> None:
        super().__init__()
        self.sizes, shape = sizes, sizes.block
        self.input_layernorm = RMSNorm(shape.width, shape.eps)
        self.hidden_norm = RMSNorm(shape.width, shape.eps)
        self.self_attn = Attention(shape, 2 * shape.width, out_bias=sizes.out_bias)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.eps)
        self.mlp = GatedMLP(shape.width, shape.mlp)

    def forward(self, embeds: Tensor, features: Tensor, rope: Rope, seen: TrainStepCache) -> Tensor:
        """Compute the outputs [B, T, H] of one training step; its keys and values join those `seen`."""
        normed = self.hidden_norm(features)
        pairs = torch.cat((self.input_layernorm(embeds), normed), dim=-1)
        mixed = seen.attend(self.self_attn.queries(pairs, rope), *self.self_attn.keys_values(pairs, rope))
        y = (normed if self.sizes.norm_before_residual else features) + self.self_attn.o_proj(mixed)
        return y + self.mlp(self.post_attention_layernorm(y))  # type: ignore[no-any-return]  # nn.Module.__call__ is Any


class TrainStepCache:
    """Keys and values of the steps of the training-time test.

    A row of step k sees the true rows up to its own (step 0, causal), and of the later steps only its own row: the
    tokens drafted one after the other from there.
    """

    def __init__(self, mask: Tensor) -> None:
        self._mask = mask  # [T, T] bool, or broadcast to [B, 1, 1, T, T]
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Add a step and attend: queries [B, heads, T, head_dim], keys and values [B, kv_heads, T, head_dim].

        Returns [B, T, heads x head_dim].
        """
        self._keys.append(keys.unsqueeze(2))
        self._values.append(values.unsqueeze(2))
        batch, heads, length, width = queries.shape
        grouped = queries.reshape(batch, keys.shape[1], heads // keys.shape[1], length, width) * width**-0.5
        scores = (grouped @ self._keys[0].transpose(-1, -2)).masked_fill(~self._mask, -torch.inf)
        own = [(grouped * later).sum(-1, keepdim=True) for later in self._keys[1:]]
        # One softmax over the true rows and the row's own later steps, in float32 also under autocast.
        weights = torch.cat((scores, *own), dim=-1).float().softmax(-1).to(values.dtype)
        mixed = weights[..., :length] @ self._values[0]
        for number, later in enumerate(self._values[1:]):
            mixed = mixed + weights[..., length + number, None] * later
        return mixed.flatten(1, 2).transpose(1, 2).flatten(2)


class FusedPairLayer:
    """PairLayer and the norm after it for inference, over rows [n, 2 H] of one text.

    Its output replaces the next feature when drafting goes on.
    """

    def __init__(self, layer: PairLayer, norm: RMSNorm) -> None:
        self.shape = layer.sizes.block
        self._norm_before_residual = layer.sizes.norm_before_residual
        self._projections = FusedProjections(layer.self_attn, self.shape)
        out = layer.self_attn.o_proj
        self._out, self._out_bias = out.weight.detach(), None if out.bias is None else out.bias.detach()
        self._mlp = FusedMLP(layer.post_attention_layernorm, layer.mlp)
        self._embed_norm, self._feature_norm = layer.input_layernorm.weight.detach(), layer.hidden_norm.weight.detach()
        self._output_norm = norm.weight.detach() if layer.sizes.norm_output else None

    def new_cache(self) -> KVCache:
        return KVCache(self.shape.kv_heads, self.shape.head_dim, self._out.dtype, self._out.device)

    def run(self, x: Tensor, rope: Rope, cache: KVCache, mask: Tensor | None = None) -> Tensor:
        split = self.shape.heads + self.shape.kv_heads
        embeds, features = x.chunk(2, dim=-1)
        normed = self._normed(features, self._feature_norm)
        heads = self._projections.heads(self._pairs(embeds, normed), 0, split + self.shape.kv_heads)
        rotated = rope.rotate(heads[:split])
        cache.append(rotated[self.shape.heads :], heads[split:])
        mixed = F.scaled_dot_product_attention(
            rotated[: self.shape.heads].unsqueeze(0), cache.keys, cache.values, attn_mask=mask, enable_gqa=True
        )
        y = F.linear(mixed[0].transpose(0, 1).flatten(1), self._out, self._out_bias)
        output = self._mlp.run(y + (normed if self._norm_before_residual else features))
        return output if self._output_norm is None else self._normed(output, self._output_norm)

    def append_kv(self, x: Tensor, rope: Rope, cache: KVCache) -> None:
        embeds, features = x.chunk(2, dim=-1)
        pairs = self._pairs(embeds, self._normed(features, self._feature_norm))
        heads = self._projections.heads(pairs, self.shape.heads, self.shape.heads + 2 * self.shape.kv_heads)
        cache.append(rope.rotate(heads[: self.shape.kv_heads]), heads[self.shape.kv_heads :])

    def _pairs(self, embeds: Tensor, normed: Tensor) -> Tensor:
        return torch.cat((self._normed(embeds, self._embed_norm), normed), dim=-1)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.shape.eps)
