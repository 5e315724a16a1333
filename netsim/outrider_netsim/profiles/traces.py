"""Recorded links, as frozen data: when packets can leave, or what delay, rate and loss hold from when on. Both repeat.

Reading and writing them is trace_files.py's business.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

OPPORTUNITY_BYTES = 1504  # what one line of a Mahimahi trace lets through
MAX_TRACE_S = 10 * 86400.0


@dataclass(frozen=True, slots=True)
class Deliveries:
    """A Mahimahi trace: at each of `at_ms` up to 1504 bytes can leave, and unused room is lost. Starts again after the
    last one: in the n-th round (from 0) all times are n * period_ms later. Times may repeat, and never go back."""

    name: str
    at_ms: tuple[int, ...]

    @property
    def period_ms(self) -> int:
        return self.at_ms[-1]

    @property
    def mean_rate_bps(self) -> float:
        return len(self.at_ms) * OPPORTUNITY_BYTES * 8 * 1000 / self.period_ms


@dataclass(frozen=True, slots=True)
class Conditions:
    """Columns over time: row i holds from times_s[i] until the next row, the last one until `period_s`, where the trace
    starts again. times_s[0] is 0. A column that is None leaves the direction's own value in force. In a file the last
    row holds for as long as the one before it, a lone row for ever."""

    name: str
    times_s: tuple[float, ...]
    period_s: float
    delay_ms: tuple[float, ...] | None = None
    rate_bps: tuple[float, ...] | None = None  # at least 1000; never 0
    loss: tuple[float, ...] | None = None

    def row_at(self, time_s: float) -> int:
        """Index of the row that holds at `time_s`, counted from the link's start."""
        return bisect_right(self.times_s, time_s % self.period_s) - 1


Trace = Deliveries | Conditions
