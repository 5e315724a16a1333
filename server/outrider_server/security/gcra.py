"""The generic cell rate algorithm (ITU-T I.371, virtual scheduling): a rate with bursts, kept in one number. No clock.

`_full_at` is the time at which all that was charged will have been earned. Somebody may go on while that lies less than
`burst` of earning ahead, and pays afterwards: so a cost above the burst passes too, and the next one waits for it.
"""

from __future__ import annotations


class Gcra:
    """`rate` units a second, `burst` units at once. Times in seconds; a clock that jumps back earns nothing, and takes
    nothing."""

    def __init__(self, rate: float, burst: float) -> None:
        self._unit_s = 1.0 / rate
        self._burst_s = burst / rate
        self._full_at = float("-inf")
        self._now = float("-inf")

    def wait_s(self, now: float) -> float:
        """How long from now until the next may go; never less for a later question without a refund."""
        self._see(now)
        return max(0.0, self._full_at - self._burst_s - now)

    def charge(self, cost: float, now: float) -> None:
        self._see(now)
        self._full_at = max(self._full_at, now) + cost * self._unit_s

    def refund(self, cost: float) -> None:
        """Give back what was charged and not used."""
        self._full_at -= cost * self._unit_s

    def _see(self, now: float) -> None:
        if now < self._now:
            self._full_at -= self._now - now
        self._now = now
