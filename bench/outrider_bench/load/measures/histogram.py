"""Times counted in buckets that grow by 2 %, in constant memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

_FIRST_S = 1e-5
_GROWTH = math.log(1.02)


class Histogram:
    """A histogram of positive seconds; percentiles are off by 1 % at most."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self._counts = dict(counts or {})

    @classmethod
    def merged(cls, histograms: Iterable[Histogram]) -> Histogram:
        whole = cls()
        for one in histograms:
            for bucket, count in one._counts.items():
                whole._counts[bucket] = whole._counts.get(bucket, 0) + count
        return whole

    @classmethod
    def from_json(cls, counts: Mapping[str, int]) -> Histogram:
        return cls({int(bucket): count for bucket, count in counts.items()})

    def to_json(self) -> dict[str, int]:
        return {str(bucket): count for bucket, count in sorted(self._counts.items())}

    def add(self, seconds: float) -> None:
        # A clock of low resolution may give 0, which has no logarithm.
        bucket = math.floor(math.log(max(seconds, _FIRST_S) / _FIRST_S) / _GROWTH)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    @property
    def count(self) -> int:
        return sum(self._counts.values())

    def percentile_ms(self, percent: float) -> float:
        """Return the least time that `percent` of the values do not exceed; 0 for no values."""
        left = math.ceil(self.count * percent / 100)
        for bucket, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                # The geometric middle of the bucket halves the error.
                return _FIRST_S * math.exp((bucket + 0.5) * _GROWTH) * 1e3
        return 0.0
