"""Several EAGLE-1/2 heads of one size as one network, so that they draft in one batch what each would draft alone.

The heads read the same tokens and features and share embedding and lm_head; fc and block are stacked. One cache serves
all: text rows belong to every head, draft rows to the heads that drafted them, and each head's mask hides the others'.
feature_drafter.FeatureState is the plain form and explains the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.fused import FusedBlock
from outrider_drafters.blocks.layers import Rope
from outrider_drafters.blocks.row_buffer import RowBuffer
from outrider_drafters.blocks.token_state import TokenState, WithTokenState
from outrider_drafters.contracts.drafter import UNLIMITED, Drafter, tree_logits_by_level
from outrider_drafters.families.eagle2.drafter import Eagle2Drafter
from outrider_drafters.routing.batched_block import BatchedBlock, alike, can_stack, for_all, stacked, times
from outrider_drafters.trees.grow import Level
from outrider_proto.tree import ROOT, DraftTree


class BatchedHeads:
    """The stacked network of heads that are alike; made by `batch_heads`."""

    def __init__(self, heads: Sequence[Eagle2Drafter]) -> None:
        biases = [head.fc.bias for head in heads if head.fc.bias is not None]
        self.num_heads = len(heads)
        self.tap = heads[0].tap
        self.embed = heads[0].embed
        self.block = BatchedBlock([head.block for head in heads if isinstance(head.block, FusedBlock)])
        self._first = heads[0]
        self._fc = stacked([head.fc.weight for head in heads])
        self._fc_bias = torch.stack([bias.detach() for bias in biases]) if biases else None

    def pairs(self, embeds: Tensor, features: Tensor, heads: slice) -> Tensor:
        """Fuse embeddings and features, both [heads, n, E], to the inputs of the heads' blocks."""
        bias = None if self._fc_bias is None else self._fc_bias[heads]
        return times(torch.cat((embeds, features), dim=-1), self._fc[heads], bias)

    def logits(self, outputs: Tensor) -> Tensor:
        """Compute logits [heads, n, V] of outputs [heads, n, E], reading lm_head once for all heads."""
        return self._first.logits(outputs)

    def new_state(self) -> BatchedHeadsState:
        return BatchedHeadsState(self)


def batch_heads(heads: Sequence[Drafter]) -> BatchedHeads | None:
    """Stack all heads; None if they are not EAGLE-1/2 or differ in more than their weights."""
    eagles = [head for head in heads if isinstance(head, Eagle2Drafter)]
    if len(eagles) < len(heads) or not all(_alike(eagles[0], other) for other in eagles[1:]):
        return None
    return BatchedHeads(eagles)


class BatchedHeadsState(WithTokenState):
    """The states of all heads on one text. See HeadStates."""

    def __init__(self, heads: BatchedHeads) -> None:
        self.num_passes = 0
        self._heads = heads
        self._all = slice(0, heads.num_heads)
        self._device, dtype = heads.embed.device, heads.embed.dtype
        self._token_state = TokenState(heads.tap.width)
        self._features = RowBuffer(width=heads.tap.width, dtype=dtype, device=self._device)
        self._cache = heads.block.new_cache()
        self._outputs = RowBuffer(heads.num_heads, width=heads.tap.width, dtype=dtype, device=self._device)
        # Per head and draft row: its ancestors and itself, as rows common to all heads.
        self._lines: list[list[list[int]]] = []
        self._num_true = 0  # as in FeatureState
        self._num_text_rows = 0
        self._next_token = 0
        self._output: Tensor | None = None  # [heads, 1, E] of the last text row
        self._roots: Tensor | None = None  # [heads, V] of the current draft

    def max_levels(self, head: int) -> int:
        return UNLIMITED

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        self._features.append(self._token_state.add_features(first, rows).to(self._heads.embed))

    def rollback(self, num_tokens: int) -> None:
        self._token_state.rollback(num_tokens)
        self._features.truncate(self._token_state.num_features)
        self._num_true = min(self._num_true, self._token_state.usable)
        self._output = None

    def start(self) -> None:
        self._roots = None

    @torch.inference_mode()
    def root(self, head: int) -> Tensor:
        if self._roots is None:
            self._roots = self._heads.logits(self._root_outputs())[:, 0]
            self.num_passes += 1
        return self._roots[head]

    @torch.inference_mode()
    def expand(self, levels: Mapping[int, Level]) -> dict[int, Tensor]:
        if len(levels) == self._heads.num_heads:
            ordered = sorted(levels)
            return dict(zip(ordered, self._expand(self._all, [levels[head] for head in ordered]), strict=True))
        return {head: self._expand(slice(head, head + 1), [level])[0] for head, level in levels.items()}

    def tree(self, head: int, tree: DraftTree) -> Tensor:
        self.start()
        return tree_logits_by_level(
            tree, self.root(head), lambda tokens, parents: self.expand({head: Level(list(tokens), list(parents))})[head]
        )

    def _root_outputs(self) -> Tensor:
        """Bring the text rows up to date and drop the draft rows; outputs [heads, 1, E] of the root's row."""
        self._token_state.need_root()
        output = self._output
        if output is None or self._num_true != self._token_state.usable:
            output = self._rebuild_text_rows()
        self._cache.truncate(self._num_text_rows)
        while self._next_token < self.num_tokens:
            output = self._text_rows(self._next_token, output)
        self._output = output
        self._lines = [[] for _ in range(self._heads.num_heads)]
        self._outputs.truncate(0)
        self._outputs.append(output)
        return output

    def _rebuild_text_rows(self) -> Tensor:
        """Rebuild the rows whose true features have arrived; outputs [heads, 1, E] of the last one."""
        usable = self._token_state.usable
        first = max(0, min(self._num_true, usable - 1))
        self._num_true = usable
        self._num_text_rows, self._next_token = first, first + 1 if usable else 0
        self._cache.truncate(first)
        if usable == 0:
            return self._features.all.new_zeros(self._heads.num_heads, 1, self._heads.tap.width)
        features = self._features.all[first:usable]
        return self._text_rows(first + 1, features.expand(self._heads.num_heads, -1, -1))

    def _text_rows(self, first_token: int, features: Tensor) -> Tensor:
        """Pair as many tokens as there are features [heads, n, E]; outputs [heads, 1, E] of the last one."""
        num_rows = features.shape[1]
        self._next_token = first_token + num_rows
        tokens = [self._token_state.tokens[first_token : self._next_token]] * self._heads.num_heads
        rope = self._rope(torch.arange(first_token - 1, self._next_token - 1, device=self._device))
        sees = torch.ones(num_rows, self._cache.length + num_rows, dtype=torch.bool, device=self._device)
        mask = sees.tril(self._cache.length) if num_rows > 1 else None
        outputs = self._heads.block.run(self._pairs(tokens, features, self._all), rope, self._cache, self._all, mask)
        self._num_text_rows = self._cache.length
        return outputs[:, -1:]

    def _expand(self, heads: slice, levels: Sequence[Level]) -> list[Tensor]:
        """Expand one level of some heads, each [n, V]."""
        # Shorter levels are padded: padded rows see the text rows alone, and no mask ever shows them to another row.
        num_rows = max(len(level.tokens) for level in levels)
        first, lines = self._outputs.length - 1, self._lines[heads]
        above = np.zeros((len(levels), num_rows), dtype=np.int64)  # rows of self._outputs: 0 is the root's
        depths = np.ones((len(levels), num_rows), dtype=np.int64)
        sees = np.zeros((len(levels), 1, num_rows, self._num_text_rows + first + num_rows), dtype=np.bool_)
        sees[..., : self._num_text_rows] = True
        for i, (line, level) in enumerate(zip(lines, levels, strict=True)):
            for row, ancestors in enumerate([[] if parent == ROOT else line[parent] for parent in level.parents]):
                above[i, row] = ancestors[-1] + 1 if ancestors else 0
                depths[i, row] = len(ancestors) + 1
                line.append([*ancestors, first + row])
                sees[i, 0, row, [self._num_text_rows + seen for seen in line[-1]]] = True
        tokens = [[*level.tokens, *[0] * (num_rows - len(level.tokens))] for level in levels]
        rope = self._rope(self._tensor(depths).unsqueeze(1) + (self.num_tokens - 2))
        pairs = self._pairs(tokens, self._outputs_at(heads, self._tensor(above)), heads)
        outputs = self._heads.block.run(pairs, rope, self._cache, heads, self._tensor(sees))
        self._outputs.append(for_all(outputs, heads, self._heads.num_heads))
        self.num_passes += 1
        logits = self._heads.logits(outputs)
        return [rows[: len(level.tokens)] for rows, level in zip(logits, levels, strict=True)]

    def _pairs(self, tokens: Sequence[Sequence[int]], features: Tensor, heads: slice) -> Tensor:
        ids = torch.tensor(tokens, dtype=torch.int64, device=self._device)
        return self._heads.pairs(F.embedding(ids, self._heads.embed), features, heads)

    def _outputs_at(self, heads: slice, rows: Tensor) -> Tensor:
        """Gather the outputs [heads, n, E] of each head's rows [heads, n]."""
        outputs = self._outputs.all[heads]
        return outputs.gather(1, rows.unsqueeze(-1).expand(-1, -1, outputs.shape[-1]))

    def _rope(self, positions: Tensor) -> Rope:
        return self._heads.block.shape.rope(positions)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def _alike(one: Eagle2Drafter, other: Eagle2Drafter) -> bool:
    shared = one.embed is other.embed and one.target is other.target
    same_fc = can_stack(one.fc.weight, other.fc.weight) and can_stack(one.fc.bias, other.fc.bias)
    if not isinstance(one.block, FusedBlock) or not isinstance(other.block, FusedBlock):
        return False
    if one.output_norm is not None or other.output_norm is not None:
        return False
    return shared and same_fc and alike(one.block, other.block)
