"""The generic cell rate algorithm (ITU-T I.371, virtual scheduling): a rate with bursts in one number. No clock.

`_full_at` is the time at which all that was charged will have been earned. A caller may go on while that is less than
`burst` ahead, and pays afterwards: a cost above the burst passes too, and the next one waits for it.
"""

from __future__ import annotations


class Gcra:
    """Allows `rate` units a second, `burst` at once. Times are in seconds; a clock that jumps back changes nothing."""

    def __init__(self, rate: float, burst: float) -> None:
        self._unit_s = 1.0 / rate
        self._burst_s = burst / rate
        self._full_at = float("-inf")
        self._now = float("-inf")

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next may go; never rises without a charge."""
        self._see(now)
        return max(0.0, self._full_at - self._burst_s - now)

    def charge(self, cost: float, now: float) -> None:
        self._see(now)
        self._full_at = max(self._full_at, now) + cost * self._unit_s

    def refund(self, cost: float) -> None:
        """Give back what was charged and not used."""
        self._full_at -= cost * self._unit_s

    def _see(self, now: float) -> None:
        # The clock has jumped back: shift the debt along with it, or the caller would wait for the whole jump.
        if now < self._now:
            self._full_at -= self._now - now
        self._now = now
