"""Several Llama blocks of one shape as one: weights stacked along a first dimension, products over all heads at once.

fused.FusedBlock is the plain form, computed for each head. Rows x are [heads, n, width]; each call names a slice of the
heads, so that one head can run alone on views of the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.blocks.fused import BlockWeights, FusedBlock
from outrider_drafters.blocks.layers import Rope
from outrider_drafters.blocks.row_buffer import KVCache


class BatchedBlock:
    """Stacked blocks, which must be alike (see `alike`)."""

    def __init__(self, blocks: Sequence[FusedBlock]) -> None:
        weights = [block.weights for block in blocks]
        self.shape = blocks[0].shape
        self.num_heads = len(blocks)
        self._qkv = stacked([each.qkv for each in weights])
        self._qkv_bias = _stacked_if_any([each.qkv_bias for each in weights])
        self._head_norms = _stacked_if_any([each.head_norms for each in weights])
        self._out = stacked([each.out for each in weights])
        self._gate_up = stacked([each.gate_up for each in weights])
        self._down = stacked([each.down for each in weights])
        self._input_norm = _stacked_if_any([each.input_norm for each in weights])
        self._mlp_norm = torch.stack([each.mlp_norm for each in weights])

    def new_cache(self) -> BatchedCache:
        return BatchedCache(self.num_heads, self.shape.kv_heads, self.shape.head_dim, self._out)

    def run(self, x: Tensor, rope: Rope, cache: BatchedCache, heads: slice, mask: Tensor | None = None) -> Tensor:
        """Append the rows' keys and values to the cache and attend to it.

        mask: bool, broadcast to [heads, 1, n, length]; None: see all.
        """
        shape, split = self.shape, self.shape.heads + self.shape.kv_heads
        rows = self._rows(x, heads)
        rotated = rope.rotate(rows[:, :split])
        cache.append_of(heads, rotated[:, shape.heads :], rows[:, split:])
        mixed = F.scaled_dot_product_attention(
            rotated[:, : shape.heads], cache.keys[heads], cache.values[heads], attn_mask=mask, enable_gqa=True
        )
        x = x + times(mixed.transpose(1, 2).flatten(2), self._out[heads])
        gate, up = times(self._norm(x, self._mlp_norm[heads]), self._gate_up[heads]).chunk(2, dim=-1)
        return x + times(F.silu(gate) * up, self._down[heads])

    def _rows(self, x: Tensor, heads: slice) -> Tensor:
        """Project x to all q, k and v heads: [heads, q + k + v heads, n, head_dim]."""
        if self._input_norm is not None:
            x = self._norm(x, self._input_norm[heads])
        rows = times(x, self._qkv[heads], None if self._qkv_bias is None else self._qkv_bias[heads])
        rows = rows.view(*x.shape[:2], -1, self.shape.head_dim).transpose(1, 2)
        if self._head_norms is None:
            return rows
        split = self._head_norms.shape[1]
        normed = F.rms_norm(rows[:, :split], (self.shape.head_dim,), eps=self.shape.eps) * self._head_norms[heads]
        return torch.cat((normed, rows[:, split:]), dim=1)

    def _norm(self, x: Tensor, weights: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self.shape.eps) * weights.unsqueeze(1)


class BatchedCache(KVCache):
    """Keys and values, each [heads, kv_heads, length, head_dim].

    Rows are common to all heads. Where only some heads wrote a row, the others hold zeros, which their masks must hide.
    """

    def __init__(self, num_heads: int, kv_heads: int, head_dim: int, like: Tensor) -> None:
        super().__init__(kv_heads, head_dim, like.dtype, like.device, num_heads)
        self._num_heads = num_heads

    def append_of(self, heads: slice, keys: Tensor, values: Tensor) -> None:
        """Append rows that some heads wrote."""
        self.append(for_all(keys, heads, self._num_heads), for_all(values, heads, self._num_heads))


def times(x: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply x [heads, n, in] with stacked matrices [heads, in, out] and add bias [heads, out]."""
    return torch.bmm(x, weights) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weights)


def stacked(matrices: Sequence[Tensor]) -> Tensor:
    """Stack matrices [out, in] as [heads, in, out]."""
    # contiguous() on purpose: on transposed views, bmm over few rows takes twice as long on a CPU.
    return torch.stack([matrix.detach() for matrix in matrices]).transpose(1, 2).contiguous()


def for_all(rows: Tensor, heads: slice, num_heads: int) -> Tensor:
    """Expand rows of some heads to all heads, with zeros for the others."""
    if len(rows) == num_heads:
        return rows
    # Zeros, not uninitialized memory: attention multiplies hidden rows by 0, and 0 * NaN is NaN.
    every = rows.new_zeros(num_heads, *rows.shape[1:])
    every[heads] = rows
    return every


def alike(one: FusedBlock, other: FusedBlock) -> bool:
    """True if two blocks can be stacked: same shape and parts, and plain weights of one type on one device."""
    pairs = [(getattr(one.weights, name), getattr(other.weights, name)) for name in BlockWeights.__slots__]
    return one.shape == other.shape and all(map(can_stack, *zip(*pairs, strict=True)))


def can_stack(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    # `type`, not isinstance: quantized weights are Tensors that would silently decode when stacked.
    plain = type(one) in (Tensor, nn.Parameter) and type(other) in (Tensor, nn.Parameter)
    return plain and (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def _stacked_if_any(tensors: Sequence[Tensor | None]) -> Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(present) if present else None
