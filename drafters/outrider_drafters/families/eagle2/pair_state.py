"""The draft state of EAGLE-1/2 and EAGLE-3: a cache over (token, feature) pairs. Knows no network.

row t     (embed(x_{t+1}), f_t) at RoPE position t, for t = 0 .. features - 1; its logits are those of x_{t+2}
beyond    (embed(x_{t+1}), output of row t - 1): an output replaces the missing feature
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.layers import Rope
from outrider_drafters.blocks.row_buffer import AnyCache, JointCache, KVCache, RowBuffer
from outrider_drafters.blocks.token_state import TokenState, WithTokenState
from outrider_drafters.blocks.tree_mask import TreeMask
from outrider_drafters.checkpoints.draft_vocabulary import split_logits
from outrider_drafters.contracts.drafter import UNLIMITED, tree_logits_by_level
from outrider_drafters.trees.grow import Level
from outrider_proto.frames import TapInfo
from outrider_proto.tree import DraftTree

_FEW_ROWS = 16  # those of a verdict, not of a prompt


class HasRope(Protocol):
    def rope(self, positions: Tensor) -> Rope: ...


class PairBlock(Protocol):
    """A decoder layer over pairs."""

    @property
    def shape(self) -> HasRope: ...

    def new_cache(self) -> KVCache: ...

    def run(self, x: Tensor, rope: Rope, cache: AnyCache, mask: Tensor | None = None) -> Tensor:
        """Append pairs to the cache and return their outputs [n, E]; mask [n, all rows] bool, None: see all."""
        ...

    def append_kv(self, x: Tensor, rope: Rope, cache: KVCache) -> None:
        """Append the pairs' keys and values to the cache without computing outputs."""
        ...


class PairDrafter(Protocol):
    @property
    def embed(self) -> Tensor: ...  # [V, E]

    @property
    def tap(self) -> TapInfo: ...

    @property
    def block(self) -> PairBlock: ...

    def pairs(self, embeds: Tensor, features: Tensor) -> Tensor:
        """Fuse n tokens' embeddings and features, both [n, E], to the block's input."""
        ...

    def logits(self, outputs: Tensor) -> Tensor:
        """Compute logits [n, V] float32 from the block's outputs [n, E]."""
        ...


class PairState(WithTokenState):
    """The block's cache over (token, feature) pairs.

    Row t pairs token t + 1 with feature t. Rows beyond the features are temporary: their feature is the output of the
    row before, and they are rebuilt once true features arrive. Without any feature, row -1 pairs token 0 with zeros and
    starts that recursion.
    """

    def __init__(self, drafter: PairDrafter) -> None:
        self._drafter = drafter
        self._device, dtype = drafter.embed.device, drafter.embed.dtype
        self._token_state = TokenState(drafter.tap.width)
        self._features = RowBuffer(width=drafter.tap.width, dtype=dtype, device=self._device)
        self._cache = drafter.block.new_cache()
        self._outputs = RowBuffer(width=drafter.tap.width, dtype=dtype, device=self._device)  # root, then scratch
        self._tree_mask = TreeMask(self._device)
        self._num_true = 0  # rows of the cache made of true features
        self._num_text_rows = 0  # those and the temporary ones; draft rows follow
        self._next_token = 0  # the first token without a row
        self._output: Tensor | None = None  # [1, E] of the last text row; None if it must be rebuilt

    @property
    def max_levels(self) -> int:
        return UNLIMITED

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        self._features.append(self._token_state.add_features(first, rows).to(self._drafter.embed))

    def rollback(self, num_tokens: int) -> None:
        self._token_state.rollback(num_tokens)
        self._features.truncate(self._token_state.num_features)
        # `usable`, not num_features: the new root's own feature may be here, but its row pairs a token that is gone.
        self._num_true = min(self._num_true, self._token_state.usable)
        self._output = None

    @torch.inference_mode()
    def root_logits(self) -> Tensor:
        self._token_state.need_root()
        output = self._output
        if output is None or self._num_true != self._token_state.usable:
            output = self._rebuild_text_rows()
        self._cache.truncate(self._num_text_rows)
        # One row at a time: without a feature, each row pairs its token with the output of the row before.
        while self._next_token < self.num_tokens:
            output = self._text_rows(self._next_token, output)
        self._output = output
        self._tree_mask.clear()
        self._outputs.truncate(0)
        self._outputs.append(output)
        return self._drafter.logits(output)[0]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        (logits,) = self.expand_together([(self, Level(tokens, parents))])
        return logits

    @staticmethod
    @torch.inference_mode()
    def expand_together(levels: Sequence[tuple[PairState, Level]]) -> list[Tensor]:
        states, drafter = [state for state, _ in levels], levels[0][0]._drafter
        pairs, positions, masks = [], [], []
        for state, level in levels:
            depths, mask = state._tree_mask.add(level.parents, state._num_text_rows)
            features = state._outputs.all[[1 + parent for parent in level.parents]]
            pairs.append(state._pairs(level.tokens, features))
            positions.append(depths + (state.num_tokens - 2))
            masks.append(mask)
        sizes = [len(level.tokens) for _, level in levels]
        cache = JointCache([state._cache for state in states], masks, sizes)
        outputs = drafter.block.run(torch.cat(pairs), drafter.block.shape.rope(torch.cat(positions)), cache)
        for state, own in zip(states, torch.split(outputs, sizes), strict=True):
            state._outputs.append(own)
        return split_logits(drafter.logits(outputs), sizes)

    def tree_logits(self, tree: DraftTree) -> Tensor:
        return tree_logits_by_level(tree, self.root_logits(), self.expand)

    def _rebuild_text_rows(self) -> Tensor:
        """Rebuild the rows whose true features have arrived; the output [1, E] of the last one."""
        usable = self._token_state.usable
        first = max(0, min(self._num_true, usable - 1))  # includes at least the last one, whose output is needed
        self._num_true = usable
        self._num_text_rows, self._next_token = first, first + 1 if usable else 0
        self._cache.truncate(first)
        if usable == 0:
            return self._features.all.new_zeros(1, self._drafter.tap.width)
        return self._text_rows(first + 1, self._features.all[first:usable])

    def _text_rows(self, first_token: int, features: Tensor) -> Tensor:
        """Append a row for each of the features [n, E]; the output [1, E] of the last one."""
        self._next_token = first_token + len(features)
        pairs = self._pairs(self._token_state.tokens[first_token : self._next_token], features)
        block, first, last = self._drafter.block, first_token - 1, self._next_token - 2
        if len(pairs) <= _FEW_ROWS:
            # Outputs that nobody needs cost less than a second pass over the weights.
            output = block.run(pairs, self._rope(first, last + 1), self._cache, self._causal(len(pairs)))[-1:]
        else:
            # Only the last output is needed: the others cost no more than their keys and values.
            block.append_kv(pairs[:-1], self._rope(first, last), self._cache)
            output = block.run(pairs[-1:], self._rope(last, last + 1), self._cache)
        self._num_text_rows = self._cache.length
        return output

    def _causal(self, rows: int) -> Tensor | None:
        """Return what each of the next rows sees, [rows, length of the cache and they] bool; None: all."""
        held = self._cache.length
        ones = torch.ones(rows, held + rows, dtype=torch.bool, device=self._device)
        return None if rows == 1 else ones.tril(held)

    def _pairs(self, tokens: Sequence[int], features: Tensor) -> Tensor:
        ids = torch.tensor(tokens, dtype=torch.int64, device=self._device)
        return self._drafter.pairs(F.embedding(ids, self._drafter.embed), features)

    def _rope(self, first: int, end: int) -> Rope:
        return self._drafter.block.shape.rope(torch.arange(first, end, device=self._device))
