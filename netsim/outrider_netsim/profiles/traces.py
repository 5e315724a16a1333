"""Recorded links as frozen data: when packets may leave, or how delay, rate and loss change. Both repeat.

trace_files.py reads and writes them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

OPPORTUNITY_BYTES = 1504  # what one line of a Mahimahi trace lets through
MAX_TRACE_S = 10 * 86400.0


@dataclass(frozen=True, slots=True)
class DeliveryTrace:
    """A Mahimahi trace: at each of `at_ms` up to 1504 bytes may leave, and unused room is lost.

    It starts again after the last time: in the n-th round (from 0) all times are n * period_ms later. Times may repeat
    but never decrease.
    """

    name: str
    at_ms: Sequence[int] = field(hash=False)

    def __post_init__(self) -> None:
        # Four bytes each: there may be millions.
        object.__setattr__(self, "at_ms", array("I", self.at_ms))

    @property
    def period_ms(self) -> int:
        return self.at_ms[-1]

    @property
    def mean_rate_bps(self) -> float:
        return len(self.at_ms) * OPPORTUNITY_BYTES * 8 * 1000 / self.period_ms


@dataclass(frozen=True, slots=True)
class ConditionTrace:
    """Columns over time: row i holds from times_s[i] until the next row, the last one until `period_s`.

    Then the trace starts again. times_s[0] is 0. Where a column is None the direction's own value holds. In a file the
    last row holds for as long as the one before it, and a lone row forever.
    """

    name: str
    times_s: Sequence[float] = field(hash=False)
    period_s: float
    delay_ms: Sequence[float] | None = field(default=None, hash=False)
    rate_bps: Sequence[float] | None = field(default=None, hash=False)  # at least 1000; never 0
    loss: Sequence[float] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        for name in ("times_s", "delay_ms", "rate_bps", "loss"):
            if not isinstance(values := getattr(self, name), array | None):
                object.__setattr__(self, name, array("d", values))


Trace = DeliveryTrace | ConditionTrace


@dataclass(frozen=True, slots=True)
class RecordedLink:
    """What a trace file says of a link, each direction None where it says nothing, and that in words."""

    summary: str
    up: Trace | None
    down: Trace | None
