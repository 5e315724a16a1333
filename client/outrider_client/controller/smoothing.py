"""Running means, medians and quartiles. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median


class Mean:
    """Mean of all samples while there are few, then of about the last `horizon`; 0 without any."""

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self.count = 0
        self.value = 0.0

    def add(self, sample: float) -> None:
        self.count += 1
        self.value += (sample - self.value) / min(self.count, self._horizon)


class Median:
    """Median of the last `window` samples; None without any."""

    def __init__(self, window: int = 15) -> None:
        self._samples: deque[float] = deque(maxlen=window)

    def add(self, sample: float) -> None:
        self._samples.append(sample)

    @property
    def value(self) -> float | None:
        return median(self._samples) if self._samples else None


class UpperQuartile(Median):
    """Upper quartile of the last `window` samples; None while there are fewer than half as many."""

    @property
    def value(self) -> float | None:
        if len(self._samples) < (self._samples.maxlen or 0) // 2:
            return None
        return sorted(self._samples)[3 * len(self._samples) // 4]
