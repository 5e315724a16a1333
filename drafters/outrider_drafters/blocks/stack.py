"""Several Llama blocks, one after the other, where most drafters have one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider_drafters.blocks.fused import FusedBlock
from outrider_drafters.blocks.layers import Rope
from outrider_drafters.blocks.rows import KvCache


class StackCache(KvCache):
    """The first block's cache, which those of the blocks above it follow."""

    def __init__(self, block: FusedBlock, above: Sequence[KvCache]) -> None:
        like = block.new_cache().keys
        super().__init__(block.shape.kv_heads, block.shape.head_dim, like.dtype, like.device)
        self.above = above

    def truncate(self, length: int) -> None:
        super().truncate(length)
        for cache in self.above:
            cache.truncate(length)


class FusedStack:
    """Used as one FusedBlock is: rows x [n, width] of one text."""

    def __init__(self, blocks: Sequence[FusedBlock]) -> None:
        self._blocks = blocks
        self.shape = blocks[0].shape

    def new_cache(self) -> KvCache:
        first, *above = self._blocks
        return StackCache(first, [block.new_cache() for block in above])

    def run(self, x: Tensor, rope: Rope, cache: KvCache, mask: Tensor | None = None) -> Tensor:
        """Put the rows into every block's cache and let them attend to it; mask [n, length] bool, None: see all."""
        for block, own in zip(self._blocks, _caches(cache), strict=True):
            x = block.run(x, rope, own, mask)
        return x

    def remember(self, x: Tensor, rope: Rope, cache: KvCache) -> None:
        """Put the rows, which follow one another, into every block's cache: all but the last block have to be run."""
        if len(x) == 0:
            return
        standing = cache.length
        mask = torch.ones(len(x), standing + len(x), dtype=torch.bool, device=x.device).tril(standing)
        *caches, last = _caches(cache)
        for block, own in zip(self._blocks, caches, strict=False):
            x = block.run(x, rope, own, mask)
        self._blocks[-1].remember(x, rope, last)


def _caches(cache: KvCache) -> list[KvCache]:
    assert isinstance(cache, StackCache)
    return [cache, *cache.above]
