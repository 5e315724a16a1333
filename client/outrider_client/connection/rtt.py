"""The round trip's length and spread, estimated as TCP does (RFC 6298), and how long an answer may stay away."""

from __future__ import annotations

_MEAN_WEIGHT = 1 / 8
_SPREAD_WEIGHT = 1 / 4


class RttEstimator:
    """Smoothed round trip and mean deviation, in seconds. Pure: it is told what others measured."""

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._spread_s = 0.0
        self._measured = False

    @property
    def mean_s(self) -> float | None:
        """None before anything is known."""
        return self._mean_s

    @property
    def spread_s(self) -> float:
        return self._spread_s

    def guess(self, seconds: float) -> None:
        """An upper bound, such as the time a connection took to open; the first sample replaces it."""
        if not self._measured:
            self._mean_s, self._spread_s = seconds, seconds / 2

    def add(self, sample_s: float) -> None:
        """One measured round trip."""
        sample_s = max(sample_s, 0.0)
        if self._mean_s is None or not self._measured:
            self._mean_s, self._spread_s, self._measured = sample_s, sample_s / 2, True
            return
        self._spread_s += _SPREAD_WEIGHT * (abs(sample_s - self._mean_s) - self._spread_s)
        self._mean_s += _MEAN_WEIGHT * (sample_s - self._mean_s)
