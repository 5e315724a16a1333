"""The Llama block for inference: one product for q, k and v, one for gate and up, and stacks of such blocks.

layers.LlamaBlock is the plain form, which is trained; this one computes the same in fewer and larger steps.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.layers import Attention, BlockShape, GatedMLP, LlamaBlock, RMSNorm, Rope
from outrider_drafters.blocks.packed_linear import PackedLinear
from outrider_drafters.blocks.row_buffer import AnyCache, JointCache, KVCache

_PIECE = 512  # rows of a prompt that pass through several blocks at a time


class FusedMLP:
    """A gated MLP with its norm and residual."""

    def __init__(self, norm: RMSNorm, mlp: GatedMLP, *, packed: bool | None = None) -> None:
        self.norm, self._eps = norm.weight.detach(), norm.eps
        gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).detach()
        self.gate_up = PackedLinear(gate_up, packed=packed)
        self.down = PackedLinear(mlp.down_proj.weight.detach(), packed=packed)

    def run(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(F.rms_norm(x, self.norm.shape, self.norm, self._eps)).chunk(2, dim=-1)
        return self.down.plus(F.silu(gate) * up, x)


class FusedBlock:
    """A Llama block over rows x [n, width] of one text; the caller owns the cache and the mask.

    `self_attend` takes a batch [b, n, width] instead, each sequence on its own. `packed` as in PackedLinear.
    """

    def __init__(self, block: LlamaBlock, *, packed: bool | None = None) -> None:
        self.shape, attention, out = block.shape, block.self_attn, block.self_attn.o_proj
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)  # whose heads are numbered in this order
        self._weight = torch.cat([projection.weight for projection in projections]).detach()
        self._bias = torch.cat([each.bias for each in projections]).detach() if self.shape.qkv_bias else None
        self._head_norms = _head_norms(attention, self.shape)
        self._packed, self._slices = packed, dict[tuple[int, int], PackedLinear]()
        self._out = PackedLinear(out.weight.detach(), None if out.bias is None else out.bias.detach(), packed=packed)
        self._mlp = FusedMLP(block.post_attention_layernorm, block.mlp, packed=packed)
        norm = block.input_layernorm
        self._input_norm = norm.weight.detach() if isinstance(norm, RMSNorm) else None

    def new_cache(self) -> KVCache:
        return KVCache(self.shape.kv_heads, self.shape.head_dim, self._out.weight.dtype, self._out.weight.device)

    def run(self, x: Tensor, rope: Rope, cache: AnyCache, mask: Tensor | None = None) -> Tensor:
        """Append the rows' keys and values to the cache and attend to it; mask [n, length] bool, None: see all."""
        return self._output(x, cache.attend(*self._queries_keys_values(x, rope), mask))

    def self_attend(self, x: Tensor, rope: Rope) -> Tensor:
        """Let each of b sequences [b, n, width] attend to all of its own keys and values."""
        return self._output(x, F.scaled_dot_product_attention(*self._queries_keys_values(x, rope), enable_gqa=True))

    def append_kv(self, x: Tensor, rope: Rope, cache: KVCache) -> None:
        """Append the rows' keys and values to the cache without computing outputs."""
        heads = self._heads(x, self.shape.heads, self.shape.heads + 2 * self.shape.kv_heads)
        cache.append(rope.rotate(heads[: self.shape.kv_heads]), heads[self.shape.kv_heads :])

    def cross_attend(self, x: Tensor, rope: Rope, seen: Sequence[tuple[Tensor, Tensor]], sizes: list[int]) -> Tensor:
        """Let the sizes[i] rows of text i attend to all of its keys and values seen[i] [1, kv_heads, m, head_dim]."""
        queries = torch.split(rope.rotate(self._heads(x, 0, self.shape.heads)).unsqueeze(0), sizes, dim=2)
        mixed = [
            F.scaled_dot_product_attention(own, keys, values, enable_gqa=True)
            for own, (keys, values) in zip(queries, seen, strict=True)
        ]
        return self._output(x, torch.cat(mixed, dim=2))

    def _queries_keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        split = self.shape.heads + self.shape.kv_heads
        heads = self._heads(x, 0, split + self.shape.kv_heads)
        rotated = rope.rotate(heads[..., :split, :, :])
        queries, keys = torch.split(rotated, [self.shape.heads, self.shape.kv_heads], dim=-3)
        return queries, keys, heads[..., split:, :, :]

    def _heads(self, x: Tensor, first: int, end: int) -> Tensor:
        """Project rows [..., n, inputs] to the heads `first` to `end`, q and k normed: [..., heads, n, head_dim]."""
        heads = self._product(first, end)(self._normed(x))
        heads = heads.view(*x.shape[:-1], end - first, self.shape.head_dim).transpose(-3, -2)
        if self._head_norms is None:
            return heads
        # v heads, which follow, have no norm.
        split = len(weights := self._head_norms[first:end])
        normed = F.rms_norm(heads[..., :split, :, :], (self.shape.head_dim,), eps=self.shape.eps) * weights
        return torch.cat((normed, heads[..., split:, :, :]), dim=-3)

    def _product(self, first: int, end: int) -> PackedLinear:
        """Return the product with the rows of those heads."""
        # Cached: cutting quantized rows repacks them for the kernel.
        if (first, end) not in self._slices:
            rows = slice(first * self.shape.head_dim, end * self.shape.head_dim)
            bias = None if self._bias is None else self._bias[rows]
            self._slices[first, end] = PackedLinear(self._weight[rows], bias, packed=self._packed)
        return self._slices[first, end]

    def _normed(self, x: Tensor) -> Tensor:
        """Return what attention reads of rows."""
        norm = self._input_norm
        return x if norm is None else F.rms_norm(x, norm.shape, norm, self.shape.eps)

    def _output(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Compute the block's output from what attention mixed [..., heads, n, head_dim]."""
        mixed = mixed.transpose(1, 2).flatten(2).view(*x.shape[:-1], self._out.weight.shape[1])
        return self._mlp.run(self._out.plus(mixed, x))


def _head_norms(attention: Attention, shape: BlockShape) -> Tensor | None:
    """Return the norm weights of all q and k heads [heads + kv_heads, 1, head_dim]; None without such norms."""
    q_norm, k_norm = attention.q_norm, attention.k_norm
    if not isinstance(q_norm, RMSNorm) or not isinstance(k_norm, RMSNorm):
        return None
    weights = q_norm.weight.expand(shape.heads, 1, -1), k_norm.weight.expand(shape.kv_heads, 1, -1)
    return torch.cat(weights).detach()


class LayersCache(KVCache):
    """The caches of several blocks, `layers`: itself the first block's; truncating it truncates the others too."""

    def __init__(self, block: FusedBlock, above: Sequence[KVCache]) -> None:
        like = block.new_cache().keys
        super().__init__(block.shape.kv_heads, block.shape.head_dim, like.dtype, like.device)
        self.layers = [self, *above]

    def truncate(self, length: int) -> None:
        super().truncate(length)
        for cache in self.layers[1:]:
            cache.truncate(length)


class FusedLayers:
    """Several blocks, one after the other, behind the interface of one FusedBlock.

    `windows`: how many of the rows that it would see, its own and the newest ones before, a row of each block sees;
    None: all. `norm` is applied to the last block's output.
    """

    def __init__(
        self, blocks: Sequence[FusedBlock], windows: Sequence[int | None] = (), norm: RMSNorm | None = None
    ) -> None:
        self._blocks = blocks
        self._windows = tuple(windows) or (None,) * len(blocks)
        self._norm = norm
        self.shape = blocks[0].shape

    def new_cache(self) -> LayersCache:
        first, *above = self._blocks
        return LayersCache(first, [block.new_cache() for block in above])

    def run(self, x: Tensor, rope: Rope, cache: AnyCache, mask: Tensor | None = None) -> Tensor:
        """Append the rows to every block's cache and attend to it; mask [n, length] bool, None: see all."""
        for block, window, own in zip(self._blocks, self._windows, _caches(cache), strict=True):
            x = block.run(x, rope, _narrowed(own, window), _newest(mask, window, own, len(x)))
        return x if self._norm is None else F.rms_norm(x, self._norm.weight.shape, self._norm.weight, self._norm.eps)

    def append_kv(self, x: Tensor, rope: Rope, cache: KVCache) -> None:
        """Append consecutive rows to every block's cache; all blocks but the last have to run for that."""
        *caches, last = _layers(cache)
        if not caches:
            self._blocks[0].append_kv(x, rope, last)
            return
        # In pieces: the mask of a long prompt would be as large as its square.
        for first in range(0, len(x), _PIECE):
            piece = slice(first, first + _PIECE)
            part, turned, earlier = x[piece], Rope(rope.cos[piece], rope.sin[piece]), cache.length
            mask = torch.ones(len(part), earlier + len(part), dtype=torch.bool, device=x.device).tril(earlier)
            for block, window, own in zip(self._blocks, self._windows, caches, strict=False):
                part = block.run(part, turned, own, _newest(mask, window, own, len(part)))
            self._blocks[-1].append_kv(part, turned, last)


def _newest(mask: Tensor | None, window: int | None, cache: AnyCache, rows: int) -> Tensor | None:
    """Narrow what rows see, mask [n, length], to the newest `window` of it. A joint cache has masks of its own."""
    if window is None or isinstance(cache, JointCache) or cache.length + rows <= window:
        return mask
    if mask is None:
        mask = torch.ones(rows, cache.length + rows, dtype=torch.bool, device=cache.keys.device)
    # By count, not by place: the rows of a tree's branches lie between a row and those that it sees.
    return mask & (mask.flip(-1).cumsum(-1).flip(-1) <= window)


def _narrowed(cache: AnyCache, window: int | None) -> AnyCache:
    if window is None or not isinstance(cache, JointCache):
        return cache
    texts = zip(cache.caches, cache.masks, cache.sizes, strict=True)
    return JointCache(cache.caches, [_newest(mask, window, own, rows) for own, mask, rows in texts], cache.sizes)


def _caches(cache: AnyCache) -> Sequence[AnyCache]:
    """Return the cache of each block."""
    if isinstance(cache, JointCache):
        layers = zip(*map(_layers, cache.caches), strict=True)
        return [JointCache(layer, cache.masks, cache.sizes) for layer in layers]
    return _layers(cache)


def _layers(cache: KVCache) -> Sequence[KVCache]:
    assert isinstance(cache, LayersCache)
    return cache.layers
