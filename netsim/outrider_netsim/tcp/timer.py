"""Timers that fire as late as Linux's do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

HZ = 250  # ticks a second, as in Debian's kernels
_LEVEL_TICKS = 63  # the timer wheel keeps so many ticks apart, then eight times as many in steps of eight, and so on


class Clock(Protocol):
    """The time in seconds, and callbacks at a time."""

    now: float

    def call_at(self, when: float, callback: Callable[[], None]) -> None: ...


def expiry(now: float, delay_s: float) -> float:
    """Return when Linux's timer wheel fires a timer set at `now` (kernel/time/timer.c, calc_index)."""
    ticks = math.ceil(delay_s * HZ)
    shift = 0
    while ticks >= _LEVEL_TICKS << shift:
        shift += 3
    return float(((int(now * HZ) + ticks >> shift) + 1 << shift) / HZ)


class Timer:
    """Calls `fired` after the delay last set, rounded up as Linux does unless it is `exact` (an hrtimer)."""

    def __init__(self, clock: Clock, fired: Callable[[], None], *, exact: bool = False) -> None:
        self.is_set = False
        self._clock = clock
        self._fired = fired
        self._exact = exact
        self._set_at = self._delay_s = 0.0
        self._wake_at = math.inf  # when the clock calls next

    def set(self, delay_s: float) -> None:
        """Fire after that many seconds instead of whenever it was due before."""
        now = self._clock.now
        self.is_set = True
        self._set_at, self._delay_s = now, delay_s
        # Events of a clock cannot be withdrawn: one that comes too early looks again.
        if now + delay_s < self._wake_at:
            self._plan()

    def cancel(self) -> None:
        self.is_set = False

    def _plan(self) -> None:
        due = self._set_at + self._delay_s if self._exact else expiry(self._set_at, self._delay_s)
        if due < self._wake_at:
            self._wake_at = due
            self._clock.call_at(due, self._wake)

    def _wake(self) -> None:
        if self._clock.now < self._wake_at:
            # An earlier event has replaced this one.
            return
        self._wake_at = math.inf
        if not self.is_set:
            return
        self._plan()
        if self._wake_at <= self._clock.now:
            self._wake_at = math.inf
            self.is_set = False
            self._fired()
