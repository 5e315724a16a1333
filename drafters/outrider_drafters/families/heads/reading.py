"""Drafting with heads, each of which looks one token further than the one before: the state of Medusa and Hydra.

position     q        q+1      q+2      q+3      q+4            h: the feature of position q, the newest there is
token        x_q      x_q+1    x_q+2    ...                     x_q+1 is the root, unless features lag behind it
predicted by          lm_head  head 0   head 1   head 2  ...    from h (Medusa), and the tokens after q (Hydra)

A root at q + 1 is the common case: its successor is head 0's. Every token by which the root is further away costs a
head; a root at q, whose own feature is there, has its successor from the target's lm_head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from outrider_drafters.contracts.drafter import level_by_level
from outrider_drafters.contracts.tree_choices import Choices
from outrider_drafters.families.heads.newest import NewestRecord
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo
from outrider_proto.tree import MAX_NODES, ROOT, DraftTree

DEFAULT_CHOICES = "mc_sim_7b_63"
Line = tuple[int, ...]  # the tokens after the feature's position


class Reading(Protocol):
    """What heads make of one feature."""

    def after(self, lines: Sequence[Line]) -> Tensor:
        """Logits [n, V] for the successors of n lines of the same length; of no tokens: the target's lm_head's."""
        ...


class Heads(Protocol):
    """What a family of heads computes."""

    @property
    def tap(self) -> TapInfo: ...

    @property
    def num_heads(self) -> int: ...

    @property
    def knows_next(self) -> bool:
        """Whether the feature is what the target's lm_head reads."""
        ...

    @property
    def like(self) -> Tensor:
        """Of the type and on the device in which it computes."""
        ...

    def read(self, feature: Tensor) -> Reading:
        """Of one drafting's feature [1, width]."""
        ...


class ReadingState:
    """See drafter.DraftState. Nothing is cached between drafts, so a rollback has nothing to undo."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._record = NewestRecord(heads.tap.width, heads.like)
        self._reading: Reading | None = None  # this drafting's
        self._root: Line = ()  # this drafting's
        self._lines: list[Line] = []  # of its scratch rows

    @property
    def num_tokens(self) -> int:
        return len(self._record.tokens)

    @property
    def num_features(self) -> int:
        return self._record.num_features

    @property
    def reach(self) -> int:
        newest = self._newest()
        return 0 if newest is None else max(0, self._heads.num_heads - (self.num_tokens - 2 - newest[0]))

    def append(self, tokens: Sequence[int]) -> None:
        self._record.append(tokens)

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        self._record.take(first, rows)

    def rollback(self, num_tokens: int) -> None:
        self._record.rollback(num_tokens)

    @torch.inference_mode()
    def root_logits(self) -> Tensor:
        if not self.num_tokens:
            raise UsageError("nothing to draft from: append the prompt's tokens first")
        newest = self._newest()
        if newest is None or not self.reach:
            raise UsageError(f"the newest of {self.num_features} features is too old for {self._heads.num_heads} heads")
        position, row = newest
        self._reading = self._heads.read(row.clone())  # a rollback may overwrite the row
        self._root = tuple(self._record.tokens[position + 1 :])
        self._lines = []
        return self._reading.after([self._root])[0]

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        assert self._reading is not None
        above = [self._root if parent == ROOT else self._lines[parent] for parent in parents]
        lines = [(*line, token) for line, token in zip(above, tokens, strict=True)]
        if len(lines[0]) > self._heads.num_heads:
            raise UsageError(f"a level beyond the last of {self._heads.num_heads} heads")
        self._lines += lines
        return self._reading.after(lines)

    def tree_logits(self, tree: DraftTree) -> Tensor:
        return level_by_level(tree, self.root_logits(), self.expand)

    def _newest(self) -> tuple[int, Tensor] | None:
        """The feature to draft from; the root's own only where its successor can be told from it."""
        return self._record.newest(self.num_tokens - (0 if self._heads.knows_next else 1))


def default_choices(num_heads: int) -> Choices:
    """Medusa's and Hydra's tree, as far as the heads go. Raises UsageError for no heads at all."""
    fitted = Choices.load(DEFAULT_CHOICES).fitted(num_heads, MAX_NODES)
    if fitted is None:
        raise UsageError("a drafter of heads without a head")
    return fitted
