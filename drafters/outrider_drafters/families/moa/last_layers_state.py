"""The target's last layers as MoA's client runs them: target layer inference (arXiv 2410.03804, 3.2).

position   0 .. t-1            t .. root                      drafted
K/V        the target's own    made here, and rebuilt when    made here, dropped with
           (features)          more features come             the next root
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.fused import FusedBlock
from outrider_drafters.blocks.last_layers import LastLayers
from outrider_drafters.blocks.layers import Rope
from outrider_drafters.blocks.row_buffer import JointCache, RowBuffer
from outrider_drafters.families.moa.network import unpack_kv


class FusedLastLayers:
    """The target's last layers, fused; none for TLI 0."""

    def __init__(self, last: LastLayers | None) -> None:
        self.blocks = [FusedBlock(block) for block in last.blocks] if last else []
        self.windows = last.windows if last else ()
        self.norm = last.norm.weight.detach() if last else None


class LastLayersState:
    """K/V of one text in every layer. The caller says where a pass begins and what its rows see."""

    def __init__(self, tail: FusedLastLayers, width: int, like: Tensor) -> None:
        self._tail = tail
        self._features = RowBuffer(width=width, dtype=like.dtype, device=like.device)  # packed K/V of the target
        self._caches = [block.new_cache() for block in tail.blocks]
        self._num_true = 0  # rows of the caches that are the target's own
        self._num_text_rows = 0  # those and the rows made here for text tokens; drafted rows follow
        self._positions: list[int] = []  # of the rows of the caches

    def add_features(self, packed: Tensor) -> None:
        """Add the target's K/V [n, N * 2 E_kv] of the next positions, used from the next `begin` on."""
        self._features.append(packed)

    def rollback(self, num_tokens: int) -> None:
        self._features.truncate(num_tokens)
        self._num_true = min(self._num_true, num_tokens)
        self._num_text_rows = min(self._num_text_rows, num_tokens)

    def begin(self, usable: int, root: int) -> int:
        """Drop drafted rows and take over the target's K/V of the first `usable` positions.

        Returns the first position that must be run, at most the root; earlier ones have their K/V.
        """
        if not self._caches:
            return root
        if usable != self._num_true:
            self._take(min(self._num_true, usable), usable)
        start = min(self._num_text_rows, root)
        self._truncate(start)
        return start

    @staticmethod
    def run(
        texts: Sequence[LastLayersState], x: Tensor, positions: Sequence[Tensor], masks: Sequence[Tensor | None]
    ) -> Tensor:
        """Run states [n, E] entering layer L - N to after the final norm, the rows of several texts one behind another.

        positions[i] [n of text i]; masks[i] [n of text i, all rows of it] bool, None: see all.
        """
        tail, sizes = texts[0]._tail, [len(own) for own in positions]
        if tail.norm is None:
            return x
        shape = tail.blocks[0].shape
        rope: Rope = shape.rope(torch.cat(list(positions)))
        for text, own in zip(texts, positions, strict=True):
            text._positions += own.tolist()
        for layer, (block, window) in enumerate(zip(tail.blocks, tail.windows, strict=True)):
            seen = [t._within(window, own, mask) for t, own, mask in zip(texts, positions, masks, strict=True)]
            x = block.run(x, rope, JointCache([text._caches[layer] for text in texts], seen, sizes))
        return F.rms_norm(x, tail.norm.shape, tail.norm, shape.eps)

    def mark_text(self, num_tokens: int) -> None:
        """Mark the rows of the first `num_tokens` tokens as the text's."""
        self._num_text_rows = num_tokens

    def _take(self, first: int, end: int) -> None:
        self._truncate(first)
        packed = self._features.all[first:end]
        keys, values = unpack_kv(packed, len(self._caches), self._tail.blocks[0].shape.kv_heads)
        for cache, layer_keys, layer_values in zip(self._caches, keys, values, strict=True):
            cache.append(layer_keys, layer_values)
        self._positions += range(first, end)
        self._num_true = self._num_text_rows = end

    def _truncate(self, length: int) -> None:
        for cache in self._caches:
            cache.truncate(length)
        del self._positions[length:]

    def _within(self, window: int | None, positions: Tensor, mask: Tensor | None) -> Tensor | None:
        """Restrict a mask to the latest `window` positions."""
        # By position, not by row: sibling nodes of a tree share a position.
        if window is None or max(self._positions) < window:
            return mask
        rows = torch.tensor(self._positions, device=positions.device)
        near = rows > positions.unsqueeze(1) - window
        return near if mask is None else near & mask
