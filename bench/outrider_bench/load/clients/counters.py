"""What one client counts, with times in buckets that grow by 2 %, in constant memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

_MAX_EXAMPLES = 5
_FIRST_S = 1e-5
_GROWTH = math.log(1.02)


@dataclass(slots=True)
class Histogram:
    """A histogram of positive seconds; percentiles are off by 1 % at most."""

    counts: Counter[int] = field(default_factory=Counter)  # by bucket

    @classmethod
    def merged(cls, histograms: Iterable[Histogram]) -> Histogram:
        return cls(sum((one.counts for one in histograms), Counter()))

    def add(self, seconds: float) -> None:
        # A clock of low resolution may give 0, which has no logarithm.
        self.counts[math.floor(math.log(max(seconds, _FIRST_S) / _FIRST_S) / _GROWTH)] += 1

    @property
    def count(self) -> int:
        return self.counts.total()

    def percentile_ms(self, percent: float) -> float:
        """Return the least time that `percent` of the values do not exceed; 0 for no values."""
        left = math.ceil(self.count * percent / 100)
        for bucket, count in sorted(self.counts.items()):
            left -= count
            if left <= 0:
                # The geometric middle of the bucket halves the error.
                return _FIRST_S * math.exp((bucket + 0.5) * _GROWTH) * 1e3
        return 0.0


@dataclass(slots=True)
class ClientCounters:
    """The counters of one client."""

    client: int
    verdict_s: Histogram = field(default_factory=Histogram)  # on a draft
    first_verdict_s: Histogram = field(default_factory=Histogram)  # on a prompt
    queue_s: Histogram = field(default_factory=Histogram)
    verify_s: Histogram = field(default_factory=Histogram)
    request_s: Histogram = field(default_factory=Histogram)
    first_token_s: Histogram = field(default_factory=Histogram)
    verdicts: int = 0
    tokens: int = 0
    drafts: int = 0
    accepted: int = 0
    nodes: int = 0
    answers: int = 0  # whole ones, in the window
    checked: int = 0  # all that were compared, from the start
    sessions: int = 0
    outages: int = 0
    unverified: int = 0
    rolled_back: int = 0
    strays: int = 0  # duplicate or unexpected verdicts
    lost: int = 0  # drafts whose verdict was missing on a live connection when their answer was done
    wrong: int = 0  # answers that differ from the target's own
    examples: list[str] = field(default_factory=list)  # of wrong answers
    errors: Counter[str] = field(default_factory=Counter)

    def differs(self, text: str, got: tuple[int, ...], expected: tuple[int, ...], history: str = "") -> None:
        """Count a wrong answer; `history` describes what happened to it."""
        self.wrong += 1
        if len(self.examples) < _MAX_EXAMPLES:
            place = next((i for i, pair in enumerate(zip(got, expected, strict=False)) if pair[0] != pair[1]), None)
            where = f"{len(got)} tokens of {len(expected)}" if place is None else f"token {place}"
            around = slice(max(0, (place or 0) - 2), (place or 0) + 4)
            these = f"{list(got[around])} for {list(expected[around])}"
            self.examples.append(
                f"client {self.client}, {text}: differs at {where}, {these}; {history}".removesuffix("; ")
            )
