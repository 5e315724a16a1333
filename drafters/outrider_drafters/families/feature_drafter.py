"""A base class for families that read a feature of every token: they write one step, the state is here.

row t     (token x_{t+1}, feature f_t) at position t, for t = 0 .. features - 1; its output gives the logits of x_{t+2}
beyond    (token x_{t+1}, output of row t - 1): an output stands in for the feature that is missing
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.fused import FusedBlock, FusedLayers
from outrider_drafters.blocks.row_buffer import AnyCache, JointCache, KVCache, RowBuffer
from outrider_drafters.blocks.token_state import TokenState, TreeMask
from outrider_drafters.checkpoints.draft_vocabulary import split_logits
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.drafter import Drafter, WithTokenState
from outrider_drafters.trees.grow import Level
from outrider_proto.frames import TapInfo

_FEW_ROWS = 16  # those of a verdict, not of a prompt


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRows:
    """Rows to run, of one text or of several: `cache` and `mask` say what each of them sees.

    mask [n, rows of the cache and these] bool; None: they see all, or the cache has masks of its own.
    """

    tokens: Tensor  # [n] int64
    features: Tensor  # [n, width]: the target's, or outputs in their place
    positions: Tensor  # [n] int64, from -1: that row pairs the first token with zeros, where there is no feature at all
    cache: AnyCache | None  # of new_cache
    mask: Tensor | None


class FeatureDrafter(Drafter, ABC):
    """A drafter whose rows pair a token with the feature before it, as EAGLE's do (arXiv 2401.15077, 3.1).

    A family writes `step`, and where it differs from what is here `logits`, `fill` and `new_cache`.
    """

    def __init__(self, target: TargetWeights, tap: TapInfo, embed: Tensor | None = None) -> None:
        """`embed` [V, E]: an embedding of its own in place of the target's."""
        self.target = target
        self.tap = tap
        self.embed = target.embed if embed is None else embed
        self.vocab_size = target.sizes.vocab

    @abstractmethod
    def step(self, rows: FeatureRows) -> Tensor:
        """Append rows to their cache, if there is one, and return their outputs [n, width]."""

    def fill(self, rows: FeatureRows) -> None:
        """Append causal rows whose outputs nobody needs, most of a prompt's, to their cache, if there is one.

        Their mask is None. By default `step` runs them; a family may compute their keys and values alone.
        """
        if isinstance(rows.cache, KVCache):
            self.step(replace(rows, mask=causal_mask(len(rows.tokens), rows.cache)))

    def logits(self, outputs: Tensor) -> Tensor:
        """Compute logits [n, V] float32 of outputs [n, width]; by default the target's lm_head does."""
        return self.target.logits(outputs)

    @property
    def shared_output(self) -> object:
        """What computes its logits: where that is one for several drafters, it runs once for all of their rows."""
        return self

    def new_cache(self) -> KVCache | None:
        """Make the cache of one text; None for a step that looks at its own row alone."""
        return None

    def new_state(self) -> FeatureState:
        return FeatureState(self)


class PairDrafter(FeatureDrafter):
    """A drafter whose step is a decoder layer: EAGLE-1/2 and EAGLE-3."""

    block: FusedBlock | FusedLayers  # over pairs

    @abstractmethod
    def pairs(self, embeds: Tensor, features: Tensor) -> Tensor:
        """Fuse n tokens' embeddings and features, both [n, E], to the block's input."""

    def step(self, rows: FeatureRows) -> Tensor:
        assert rows.cache is not None
        return self.block.run(self._inputs(rows), self.block.shape.rope(rows.positions), rows.cache, rows.mask)

    def fill(self, rows: FeatureRows) -> None:
        assert isinstance(rows.cache, KVCache)
        self.block.append_kv(self._inputs(rows), self.block.shape.rope(rows.positions), rows.cache)

    def new_cache(self) -> KVCache:
        return self.block.new_cache()

    def _inputs(self, rows: FeatureRows) -> Tensor:
        return self.pairs(F.embedding(rows.tokens, self.embed), rows.features)


class FeatureState(WithTokenState):
    """The draft state of a FeatureDrafter. Rows beyond the features are rebuilt once true features arrive.

    Without any feature, row -1 pairs token 0 with zeros and starts the recursion.
    """

    def __init__(self, drafter: FeatureDrafter) -> None:
        self._drafter = drafter
        self._device, dtype, width = drafter.embed.device, drafter.embed.dtype, drafter.tap.width
        self._token_state = TokenState(width)
        self._features = RowBuffer(width=width, dtype=dtype, device=self._device)
        self._cache = drafter.new_cache()
        self._outputs = RowBuffer(width=width, dtype=dtype, device=self._device)  # root, then scratch
        self._tree_mask = TreeMask(self._device)
        self._num_true = 0  # rows made of true features
        self._num_text_rows = 0  # those and the temporary ones; draft rows follow
        self._next_token = 0  # the first token without a row
        self._output: Tensor | None = None  # [1, width] of the last text row; None if it must be rebuilt

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        self._features.append(self._token_state.add_features(first, rows).to(self._drafter.embed))

    def rollback(self, num_tokens: int) -> None:
        self._token_state.rollback(num_tokens)
        self._features.truncate(self._token_state.num_features)
        # `usable`, not num_features: the new root's own feature may be here, but its row pairs a token that is gone.
        self._num_true = min(self._num_true, self._token_state.usable)
        self._output = None

    def root_logits(self) -> Tensor:
        return self.roots_together([self])[0]

    @staticmethod
    @torch.inference_mode()
    def roots_together(states: Sequence[FeatureState]) -> list[Tensor]:
        """Return the root_logits of states whose drafters share their output."""
        return list(states[0]._drafter.logits(torch.cat([state._root_output() for state in states])))

    def _root_output(self) -> Tensor:
        """Start a new draft; the output [1, width] of the root's row."""
        self._token_state.need_root()
        output = self._output
        if output is None or self._num_true != self._token_state.usable:
            output = self._rebuild_text_rows()
        self._keep_rows(self._num_text_rows)
        # One row at a time: without a feature, each row pairs its token with the output of the row before.
        while self._next_token < self.num_tokens:
            output = self._text_rows(self._next_token, output)
        self._output = output
        self._tree_mask.clear()
        self._outputs.truncate(0)
        self._outputs.append(output)
        return output

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        (logits,) = self.expand_together([(self, Level(tokens, parents))])
        return logits

    @staticmethod
    @torch.inference_mode()
    def expand_together(levels: Sequence[tuple[FeatureState, Level]]) -> list[Tensor]:
        """As JointState has it; the states may be of several drafters that share their output."""
        by_drafter = [list(own) for _, own in groupby(levels, key=lambda pair: id(pair[0]._drafter))]
        outputs = torch.cat([FeatureState._step_together(own) for own in by_drafter])
        return split_logits(levels[0][0]._drafter.logits(outputs), [len(level.tokens) for _, level in levels])

    @staticmethod
    def _step_together(levels: Sequence[tuple[FeatureState, Level]]) -> Tensor:
        """Run a level of each text in one pass of their drafter; the outputs [n, width], text behind text."""
        states, drafter = [state for state, _ in levels], levels[0][0]._drafter
        features, positions, masks = [], [], []
        for state, level in levels:
            depths, mask = state._tree_mask.add(level.parents, state._num_text_rows)
            features.append(state._outputs.all[[1 + parent for parent in level.parents]])
            positions.append(depths + (state.num_tokens - 2))
            masks.append(mask)
        sizes = [len(level.tokens) for _, level in levels]
        tokens = states[0]._ids([token for _, level in levels for token in level.tokens])
        caches = [state._cache for state in states if state._cache is not None]
        joint = JointCache(caches, masks, sizes) if caches else None
        outputs = drafter.step(FeatureRows(tokens, torch.cat(features), torch.cat(positions), joint, None))
        for state, own in zip(states, torch.split(outputs, sizes), strict=True):
            state._outputs.append(own)
        return outputs

    def _rebuild_text_rows(self) -> Tensor:
        """Rebuild the rows whose true features have arrived; the output [1, width] of the last one."""
        usable = self._token_state.usable
        first = max(0, min(self._num_true, usable - 1))  # includes at least the last one, whose output is needed
        self._num_true = usable
        self._num_text_rows, self._next_token = first, first + 1 if usable else 0
        self._keep_rows(first)
        if usable == 0:
            return self._features.all.new_zeros(1, self._drafter.tap.width)
        return self._text_rows(first + 1, self._features.all[first:usable])

    def _text_rows(self, first_token: int, features: Tensor) -> Tensor:
        """Append a row for each of the features [n, width]; the output [1, width] of the last one."""
        count = len(features)
        self._next_token = first_token + count
        self._num_text_rows += count
        tokens = self._ids(self._token_state.tokens[first_token : self._next_token])
        positions = torch.arange(first_token - 1, self._next_token - 1, device=self._device)
        early = 0
        if count > _FEW_ROWS:
            # Only the last output is needed: the others cost no more than their keys and values. Of few rows, outputs
            # that nobody needs cost less than a second pass over the weights.
            early = count - 1
            self._drafter.fill(FeatureRows(tokens[:early], features[:early], positions[:early], self._cache, None))
        mask = None if self._cache is None else causal_mask(count - early, self._cache)
        rows = FeatureRows(tokens[early:], features[early:], positions[early:], self._cache, mask)
        return self._drafter.step(rows)[-1:]

    def _keep_rows(self, count: int) -> None:
        if self._cache is not None:
            self._cache.truncate(count)

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(tokens, dtype=torch.int64, device=self._device)


def causal_mask(rows: int, cache: KVCache) -> Tensor | None:
    """Return what each of the next rows sees, [rows, length of the cache and they] bool; None: one row sees all."""
    ones = torch.ones(rows, cache.length + rows, dtype=torch.bool, device=cache.keys.device)
    return None if rows == 1 else ones.tril(cache.length)
