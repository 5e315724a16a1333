"""A drafter under a stopwatch, so that the arithmetic of drafting can be told from what goes on around it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from outrider_drafters.drafter import Drafter, DraftState
from outrider_drafters.trees.shape import TreePlan
from outrider_proto.frames import TapInfo
from outrider_proto.tree import DraftTree


class TimedDrafter:
    """A drafter whose states add up the time of their forward passes, and count the levels these drafted."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.family = inner.family
        self.vocab_size = inner.vocab_size
        self.tap: TapInfo = inner.tap
        self.plan: TreePlan | None = inner.plan
        self.stale_tolerant = inner.stale_tolerant
        self.tree_in_one = inner.tree_in_one
        self.seconds = 0.0
        self.num_levels = 0

    def new_state(self) -> DraftState:
        return _TimedState(self._inner.new_state(), self)


class _TimedState:
    def __init__(self, inner: DraftState, drafter: TimedDrafter) -> None:
        self._inner = inner
        self._drafter = drafter

    @property
    def num_tokens(self) -> int:
        return self._inner.num_tokens

    @property
    def num_features(self) -> int:
        return self._inner.num_features

    @property
    def reach(self) -> int:
        return self._inner.reach

    def append(self, tokens: Sequence[int]) -> None:
        self._inner.append(tokens)

    def rollback(self, num_tokens: int) -> None:
        self._inner.rollback(num_tokens)

    def add_features(self, first: int, rows: Tensor) -> None:
        started = time.perf_counter()
        self._inner.add_features(first, rows)
        self._drafter.seconds += time.perf_counter() - started

    def root_logits(self) -> Tensor:
        started = time.perf_counter()
        logits = self._inner.root_logits()
        self._drafter.num_levels += 1
        self._drafter.seconds += time.perf_counter() - started
        return logits

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        started = time.perf_counter()
        logits = self._inner.expand(tokens, parents)
        self._drafter.num_levels += 1
        self._drafter.seconds += time.perf_counter() - started
        return logits

    def tree_logits(self, tree: DraftTree) -> Tensor:
        started = time.perf_counter()
        logits = self._inner.tree_logits(tree)
        self._drafter.num_levels += 1
        self._drafter.seconds += time.perf_counter() - started
        return logits
