"""DFlash's network (z-lab/dflash, dflash/model.py; arXiv 2602.06036), version 1: a whole block of tokens in one pass.

server (tap)   hidden states of n target layers -> fc -> hidden_norm = context row            E values per token
client         block: root, MASK, MASK, ... -> target's embedding -> layers -> norm -> target's lm_head
                                                                      ^ keys and values: context rows, then the block

Row i of the block predicts the token at its own position, so rows 1, 2, ... give the tokens after the root, each
independent of the tokens drafted for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outrider_drafters.blocks.layers import BlockShape, LlamaBlock, RMSNorm
from outrider_drafters.blocks.row_buffer import KVCache
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class LayerMask:
    """The attention mask of one layer: causal, within a window, both, or none."""

    causal: bool = False
    window: int | None = None  # in positions, on both sides

    def mask(self, rows: Tensor, columns: Tensor) -> Tensor | None:
        """Compute the mask [n, m] bool from positions of rows [n] and columns [m]; None if every row sees all."""
        if not self.causal and self.window is None:
            return None
        distance = rows[:, None] - columns
        seen = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        return seen if self.window is None else seen & (distance.abs() < self.window)


@dataclass(frozen=True, slots=True)
class DFlashSizes:
    """Sizes and settings of a drafter. `block` counts the root; `taps` are indices of Hugging Face's hidden_states.

    `embed_scale`, `logit_scale` and `softcap` (of logits; None: none) follow targets that have such. Raises UsageError.
    """

    shape: BlockShape
    layer_masks: tuple[LayerMask, ...]  # one a layer
    taps: tuple[int, ...]
    block: int
    mask_token: int
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        if self.block < 2:
            raise UsageError(f"block_size={self.block}: need at least 2, the root and one token")


class DFlash(nn.Module):
    """The trained part; submodules are named as in the published files."""

    def __init__(self, sizes: DFlashSizes) -> None:
        super().__init__()
        width = sizes.shape.width
        self.sizes = sizes
        self.fc = nn.Linear(len(sizes.taps) * width, width, bias=False)
        self.hidden_norm = RMSNorm(width, sizes.shape.eps)
        self.layers = nn.ModuleList(LlamaBlock(sizes.shape) for _ in sizes.layer_masks)
        self.norm = RMSNorm(width, sizes.shape.eps)

    def context(self, hidden: Sequence[Tensor]) -> Tensor:
        """Mix hidden states of the tapped layers, each [n, E], to context rows [n, E]."""
        return self.hidden_norm(self.fc(torch.cat(list(hidden), dim=-1)))  # type: ignore[no-any-return]  # nn.Module's call

    def new_caches(self) -> list[KVCache]:
        """Make one cache per layer for the context rows' keys and values."""
        shape, like = self.sizes.shape, self.norm.weight
        return [KVCache(shape.kv_heads, shape.head_dim, like.dtype, like.device) for _ in self.layers]

    def append_kv(self, context: Tensor, first: int, caches: Sequence[KVCache]) -> None:
        """Append the keys and values of context rows [n, E], positions first, first + 1, ..., to the caches."""
        # Without the layer's input norm, unlike the block's own rows: hidden_norm has normed the context already.
        rope = self.sizes.shape.rope(torch.arange(first, first + len(context), device=context.device))
        for layer, cache in zip(self._blocks(), caches, strict=True):
            cache.append(*layer.self_attn.keys_values(context[None], rope))

    def run(self, embeds: Tensor, first: int, num_context: int, caches: Sequence[KVCache]) -> Tensor:
        """Run a block [n, E] from position `first` on over `num_context` cached rows; states [n, E] for lm_head."""
        rows = torch.arange(first, first + len(embeds), device=embeds.device)
        columns = torch.cat((torch.arange(num_context, device=embeds.device), rows))
        rope = self.sizes.shape.rope(rows)
        x = embeds[None]
        for layer, cache, sight in zip(self._blocks(), caches, self.sizes.layer_masks, strict=True):
            pairs = zip(cache.first(num_context), layer.keys_values(x, rope), strict=True)
            keys, values = (torch.cat(pair, dim=2) for pair in pairs)
            x = layer(x, rope, keys, values, sight.mask(rows, columns))
        return self.norm(x[0])  # type: ignore[no-any-return]  # nn.Module's call

    def _blocks(self) -> list[LlamaBlock]:
        return [layer for layer in self.layers if isinstance(layer, LlamaBlock)]
