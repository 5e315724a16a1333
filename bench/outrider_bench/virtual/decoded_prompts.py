"""Tokens and times of one way's answers, prompt by prompt, and 95 % intervals of its speed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from outrider_bench.core.bootstrap import Floats, Interval, Resamples, quotient, ratio_interval
from outrider_bench.network.timed_answer import TimedAnswer


@dataclass(frozen=True, slots=True)
class DecodedPrompts:
    """Tokens after the first arrival and the ms that they took, both [runs, prompts]."""

    tokens: Floats
    ms: Floats

    @classmethod
    def of(cls, runs: Sequence[Sequence[TimedAnswer]]) -> Self:
        tokens = [[one.decoded_tokens for one in run] for run in runs]
        return cls(np.array(tokens, dtype=float), np.array([[one.decode_ms for one in run] for run in runs]))

    @property
    def speed_ci95(self) -> Interval | None:
        """Interval of tokens per second over runs and prompts."""
        return ratio_interval(self.tokens * 1e3, self.ms)

    def ratio_ci95(self, other: DecodedPrompts) -> Interval | None:
        """Return the interval of this speed as a ratio to the other's, paired prompt by prompt.

        Runs are drawn of the other; runs of this one have nothing to do with those, and are taken together.
        """
        draws = Resamples(*other.tokens.shape)
        mine = (np.broadcast_to(one.sum(axis=0), other.tokens.shape) for one in (self.tokens, self.ms))
        theirs = quotient(draws.sums(other.tokens), draws.sums(other.ms))
        return draws.interval(quotient(quotient(*map(draws.sums, mine)), theirs))
