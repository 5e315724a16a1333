"""A drafter at another machine's speed: each forward pass lasts at least as long as on that machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from outrider_drafters.contracts.drafter import Drafter, DraftState
from outrider_drafters.contracts.drafter_wrapper import DrafterWrapper, StateWrapper
from outrider_proto.tree import DraftTree


class PacedDrafter(DrafterWrapper):
    """A drafter whose passes last `level_ms` x factor(outcomes); who drafts for several outcomes sets `outcomes`."""

    def __init__(
        self,
        inner: Drafter,
        level_ms: float,
        factor: Callable[[int], float] = float,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self.outcomes = 1
        self._level_s = level_ms / 1e3
        self._factor = factor
        self._clock = clock
        self._sleep = sleep

    def new_state(self) -> PacedState:
        return PacedState(self.inner.new_state(), self)

    def around(self, run: Callable[[], Tensor]) -> Tensor:
        """Run a pass and return its result once its time is over."""
        # The pass itself counts: only the rest of its time is slept.
        ends = self._clock() + self._level_s * self._factor(self.outcomes)
        logits = run()
        if (left := ends - self._clock()) > 0:
            self._sleep(left)
        return logits


class PacedState(StateWrapper):
    """The state of a paced drafter: levels that a pass has given already take no time."""

    def __init__(self, inner: DraftState, drafter: PacedDrafter) -> None:
        super().__init__(inner, drafter)
        self._further = drafter.levels_per_pass - 1
        self._given = 0  # levels that the last pass gave and nobody has asked for

    def root_logits(self) -> Tensor:
        self._given = self._further
        return super().root_logits()

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        if self._given:
            self._given -= 1
            return self.inner.expand(tokens, parents)
        self._given = self._further
        return super().expand(tokens, parents)

    def tree_logits(self, tree: DraftTree) -> Tensor:
        logits = super().tree_logits(tree)
        self._given = 0  # bonuses begin blocks of their own, in a pass
        return logits
