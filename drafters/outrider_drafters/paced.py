"""A drafter at another machine's pace: each of its forward passes lasts at least as long as one there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from outrider_drafters.drafter import Drafter, DraftState, level_by_level
from outrider_drafters.trees.shape import TreePlan
from outrider_proto.frames import TapInfo
from outrider_proto.tree import DraftTree


class PacedDrafter:
    """`level_ms` is one level's time, times factor(outcomes) (Pace.level_factor).

    `outcomes`, which whoever batches them sets before the passes, is for how many outcomes a pass drafts side by side.
    """

    def __init__(
        self,
        inner: Drafter,
        level_ms: float,
        factor: Callable[[int], float] = float,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.inner = inner
        self.family = inner.family
        self.vocab_size = inner.vocab_size
        self.stale_tolerant = inner.stale_tolerant
        self.tree_in_one = inner.tree_in_one
        self.tap: TapInfo = inner.tap
        self.plan: TreePlan | None = inner.plan
        self.outcomes = 1
        self._level_s = level_ms / 1e3
        self._factor = factor
        self._clock = clock
        self._sleep = sleep

    def new_state(self) -> DraftState:
        return _PacedState(self.inner.new_state(), self)

    def paced(self, run: Callable[[], Tensor]) -> Tensor:
        """What `run` answers, once its time is over."""
        ends = self._clock() + self._level_s * self._factor(self.outcomes)
        logits = run()
        if (left := ends - self._clock()) > 0:
            self._sleep(left)
        return logits


class _PacedState:
    def __init__(self, inner: DraftState, drafter: PacedDrafter) -> None:
        self._inner = inner
        self._paced = drafter.paced
        self._tree_in_one = drafter.tree_in_one

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

    def add_features(self, first: int, rows: Tensor) -> None:
        self._inner.add_features(first, rows)

    def rollback(self, num_tokens: int) -> None:
        self._inner.rollback(num_tokens)

    def root_logits(self) -> Tensor:
        return self._paced(self._inner.root_logits)

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        return self._paced(lambda: self._inner.expand(tokens, parents))

    def tree_logits(self, tree: DraftTree) -> Tensor:
        if self._tree_in_one:
            return self._paced(lambda: self._inner.tree_logits(tree))
        return level_by_level(tree, self.root_logits(), self.expand)
