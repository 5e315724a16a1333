"""Memory growth of processes: the last third of the samples against the first, warm-up left out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SAMPLES = 9


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Resident memory at `at_s` seconds after the start; `who` names one life of a process."""

    at_s: float
    who: str
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """Medians of the first and the last third of one process's samples, and the least-squares slope."""

    who: str
    first_bytes: float
    last_bytes: float
    bytes_per_hour: float

    @property
    def share(self) -> float:
        return self.last_bytes / self.first_bytes - 1


def memory_growths(samples: Sequence[MemorySample], warm_up_s: float) -> list[MemoryGrowth]:
    """Measure every process with enough samples after `warm_up_s` of its own life."""
    by_process: dict[str, list[MemorySample]] = {}
    for sample in samples:
        by_process.setdefault(sample.who, []).append(sample)
    found = []
    for who, own in by_process.items():
        kept = [sample for sample in own if sample.at_s - own[0].at_s >= warm_up_s]
        if len(kept) >= LEAST_SAMPLES:
            found.append(_growth(who, kept))
    return found


def _growth(who: str, kept: Sequence[MemorySample]) -> MemoryGrowth:
    third = len(kept) // 3
    first = statistics.median(sample.rss_bytes for sample in kept[:third])
    last = statistics.median(sample.rss_bytes for sample in kept[-third:])
    times, sizes = [sample.at_s for sample in kept], [float(sample.rss_bytes) for sample in kept]
    # linear_regression raises for samples of a single moment.
    slope = statistics.linear_regression(times, sizes).slope if times[0] != times[-1] else 0.0
    return MemoryGrowth(who, first, last, slope * 3600)
