"""A drafter at another machine's pace: each of its forward passes lasts at least as long as one there."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.emulation.drafter_wrapper import DrafterWrapper


class PacedDrafter(DrafterWrapper):
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
        super().__init__(inner)
        self.outcomes = 1
        self._level_s = level_ms / 1e3
        self._factor = factor
        self._clock = clock
        self._sleep = sleep

    def around(self, run: Callable[[], Tensor]) -> Tensor:
        """What it answers, once its time is over."""
        ends = self._clock() + self._level_s * self._factor(self.outcomes)
        logits = run()
        if (left := ends - self._clock()) > 0:
            self._sleep(left)
        return logits
