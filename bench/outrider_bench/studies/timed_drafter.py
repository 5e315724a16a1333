"""A drafter that measures its own forward passes, so that the rest of drafting can be separated from them."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from outrider_drafters.contracts.drafter import Drafter, DraftState
from outrider_drafters.contracts.drafter_wrapper import DrafterWrapper, StateWrapper


class TimedDrafter(DrafterWrapper):
    """Adds up the time of its forward passes and of features, and counts drafted levels."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.seconds = 0.0
        self.num_levels = 0

    def new_state(self) -> DraftState:
        return _TimedState(self.inner.new_state(), self)

    def around(self, run: Callable[[], Tensor]) -> Tensor:
        """Run a forward pass and measure it."""
        started = time.perf_counter()
        logits = run()
        self.num_levels += 1
        self.seconds += time.perf_counter() - started
        return logits


class _TimedState(StateWrapper):
    def __init__(self, inner: DraftState, drafter: TimedDrafter) -> None:
        super().__init__(inner, drafter)
        self._drafter = drafter

    def add_features(self, first: int, rows: Tensor) -> None:
        started = time.perf_counter()
        # Some drafters run a forward pass over features, so it belongs to the time of drafting.
        super().add_features(first, rows)
        self._drafter.seconds += time.perf_counter() - started
