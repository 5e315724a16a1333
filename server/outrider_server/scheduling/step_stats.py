"""Statistics of one step of the engine loop, and what they tell of the next one's time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider_server.engine.engine import StepResult

_KEPT = 0.98  # of what is known of a pass's time, for each pass
_VARIED = 0.1  # least relative deviation of the rows: equal passes cannot tell the cost of a row


@dataclass(frozen=True, slots=True)
class StepStats:
    """One pass."""

    rows: int
    drafts: int  # sessions that got a verdict
    prefill_rows: int  # rows without a verdict
    sessions: int
    waiting: int  # requests that were left for later
    forward_s: float  # time of the model
    trees: tuple[tuple[int, int], ...] = ()  # nodes and accepted nodes of every tree that is not empty
    tap_s: float = 0.0  # time for features
    idle_s: float = 0.0  # time without work since the pass before

    @classmethod
    def of(cls, results: Sequence[StepResult], num_waiting: int, tap_s: float, idle_s: float) -> StepStats:
        """Summarize one pass, or the several that replace one that failed."""
        accepted = [(one.step_input, one.accepted.path) for one in results if one.accepted is not None]
        rows = [result.step_input.num_rows for result in results]
        # A set: results of one pass share one timing.
        timings = {result.timing for result in results}
        return cls(
            rows=sum(rows),
            drafts=len(accepted),
            prefill_rows=sum(rows) - sum(step_input.num_rows for step_input, _ in accepted),
            sessions=len(results),
            waiting=num_waiting,
            forward_s=sum(timing.ended - timing.started for timing in timings),
            trees=tuple((len(step_input.tree), len(path)) for step_input, path in accepted if step_input.tree),
            tap_s=tap_s,
            idle_s=idle_s,
        )


class PassTime:
    """Seconds of a pass, learned as a fixed part and a part for each row, from recent passes."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)  # of 1, rows, seconds, rows^2 and rows x seconds, of which the older count less

    def add(self, rows: int, seconds: float) -> None:
        self._sums = _KEPT * self._sums + np.array([1, rows, seconds, rows**2, rows * seconds])

    def rows_within(self, rows: int, times: float) -> float:
        """Return how many rows take `times` as long as `rows`; infinitely many while a row's cost is unknown."""
        return times * rows + (times - 1) * self._fixed_rows

    def rows_for_share(self, share: float) -> float:
        """Return how many rows take that share of their pass's time; infinitely many while a row's cost is unknown."""
        return share / (1 - share) * self._fixed_rows

    @property
    def _fixed_rows(self) -> float:
        """The fixed part, in rows that take as long."""
        count, sum_rows, sum_s, squares, products = (float(value) for value in self._sums)
        spread = count * squares - sum_rows**2
        if spread <= _VARIED**2 * sum_rows**2:
            return math.inf
        of_row = (count * products - sum_rows * sum_s) / spread
        if of_row <= 0:
            return math.inf
        return max((sum_s - of_row * sum_rows) / count, 0.0) / of_row
