"""Medians of repeated measurements with bootstrap intervals, and their ratios. Pure; standard library only.

A figure has a list of samples for each repetition. A bootstrap draw takes as many repetitions, with replacement, and of
each as many samples, with replacement: samples of one repetition resemble each other (a queue that is full stays full
for a while), so taking them for independent would make intervals too narrow.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from outrider_netsim.probe.intervals import Interval

Repetitions = Sequence[Sequence[float]]

DRAWS = 1000
CONFIDENCE = 0.95
BAND = 0.15  # a ratio this far from 1 is marked


@dataclass(frozen=True, slots=True)
class TransferEstimate:
    """A figure's median and its interval, with what else describes the samples."""

    median: float
    interval: Interval
    mean: float
    p95: float
    count: int
    draws: tuple[float, ...]  # bootstrapped medians

    @classmethod
    def of(cls, repetitions: Repetitions) -> TransferEstimate | None:
        """Summarize; None without samples."""
        samples = [sample for samples in repetitions for sample in samples]
        if not samples:
            return None
        draws = bootstrapped_medians(repetitions)
        return cls(
            median(samples), central_interval(draws), fmean(samples), quantile(samples, 0.95), len(samples), draws
        )


@dataclass(frozen=True, slots=True)
class TransferRatio:
    """A figure over the same figure of the reference."""

    ratio: float
    interval: Interval

    @classmethod
    def of(cls, figure: TransferEstimate, reference: TransferEstimate) -> TransferRatio | None:
        """Divide; None by zero."""
        if not reference.median or not all(reference.draws):
            return None
        draws = [above / below for above, below in zip(figure.draws, reference.draws, strict=True)]
        return cls(figure.median / reference.median, central_interval(draws))

    @property
    def is_outside(self) -> bool:
        """True if the ratio is farther than BAND from 1."""
        return abs(self.ratio - 1) > BAND

    @property
    def is_surely_outside(self) -> bool:
        """True if its whole interval is."""
        return not self.interval.meets(1 - BAND, 1 + BAND)


def bootstrapped_medians(repetitions: Repetitions) -> tuple[float, ...]:
    """Return DRAWS medians of resampled repetitions; the same for the same samples."""
    chance = random.Random(1)
    filled = [samples for samples in repetitions if samples]
    return tuple(median(_resampled(filled, chance)) for _ in range(DRAWS))


def central_interval(draws: Sequence[float]) -> Interval:
    """Return the interval that leaves out the same share of draws at both ends."""
    tail = (1 - CONFIDENCE) / 2
    return Interval(quantile(draws, tail), quantile(draws, 1 - tail))


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of them do not exceed, interpolated linearly between its neighbors."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    lower = int(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (position - lower)


def _resampled(repetitions: Repetitions, chance: random.Random) -> list[float]:
    drawn = chance.choices(repetitions, k=len(repetitions))
    return [sample for samples in drawn for sample in chance.choices(samples, k=len(samples))]
