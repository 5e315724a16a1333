"""Synthetic cellular links as traces: a rate that moves between levels, fades and handovers. The seed fixes all of it.

                 4 s          3 s        2 s        0.5 s         mean time in a level, exponential
    levels      strong  <->   fair  <->  weak  <->  fade          neighbors only, both equally likely
    rate          2            1          0.4        0.02         shares, scaled to the requested mean rate
    delay        + 0          + 5        + 15       + 60 ms       the radio repeats more where it is weak

Each step of 20 ms also has a lognormal factor of mean 1 (fast fading). Handovers come at exponential intervals, block
the link for `handover_s`, and end in a randomly drawn level. The numbers are our judgment, based on published cellular
traces, whose rates change by an order of magnitude within seconds (Winstein et al., Sprout, NSDI 2013).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider_netsim.profiles.profile import check_range
from outrider_netsim.profiles.traces import MAX_TRACE_S, OPPORTUNITY_BYTES, ConditionTrace, DeliveryTrace

STEP_S = 0.02
LEAST_BPS = 1000.0  # of a condition trace, which cannot say 0
FAST_FADING = 0.3  # deviation of the factor's logarithm


@dataclass(frozen=True, slots=True)
class _Level:
    share: float
    mean_s: float
    more_delay_ms: float
    loss: float


_LEVELS = (
    _Level(2.0, 4.0, 0, 0.0005),
    _Level(1.0, 3.0, 5, 0.001),
    _Level(0.4, 2.0, 15, 0.005),
    _Level(0.02, 0.5, 60, 0.03),
)
# Share of time = number of visits (a walk with reflecting ends visits inner levels twice as often) x time of a visit.
_WEIGHTS = tuple(level.mean_s * (1 if i in (0, len(_LEVELS) - 1) else 2) for i, level in enumerate(_LEVELS))
_MEAN_SHARE = sum(w * level.share for w, level in zip(_WEIGHTS, _LEVELS, strict=True)) / sum(_WEIGHTS)


@dataclass(frozen=True, slots=True)
class Cellular:
    """One direction of a synthetic cellular link. Raises ProfileError for values out of range."""

    rate_bps: float = 20e6  # mean, apart from handovers
    delay_ms: float = 20.0  # one way, in the strongest level
    handover_every_s: float = 30.0  # mean interval; 0: none
    handover_s: float = 0.05

    def __post_init__(self) -> None:
        check_range("rate_bps", self.rate_bps, 10_000, 10e9)
        check_range("delay_ms", self.delay_ms, 0, 50_000)
        check_range("handover_s", self.handover_s, 0, 10)
        if self.handover_every_s:
            check_range("handover_every_s", self.handover_every_s, 2 * self.handover_s, MAX_TRACE_S)

    def deliveries(self, duration_s: float, seed: int) -> DeliveryTrace:
        """Return a Mahimahi trace whose last opportunity is at `duration_s`, where it repeats."""
        end_ms = round(duration_s * 1000)
        rates_bps = np.array([rate_bps for _, rate_bps in self._steps(duration_s, seed)])
        at_ms = _times_ms(np.cumsum(rates_bps * STEP_S / 8))
        return DeliveryTrace("synthetic", (*at_ms[at_ms < end_ms].tolist(), end_ms))

    def conditions(self, duration_s: float, seed: int) -> ConditionTrace:
        """Return columns of delay, rate and loss, with a row every 20 ms."""
        steps = list(self._steps(duration_s, seed))
        return ConditionTrace(
            "synthetic",
            tuple(round(i * STEP_S, 6) for i in range(len(steps))),
            round(len(steps) * STEP_S, 6),
            tuple(self.delay_ms + level.more_delay_ms for level, _ in steps),
            tuple(float(round(max(LEAST_BPS, rate_bps))) for _, rate_bps in steps),
            tuple(level.loss for level, _ in steps),
        )

    def _steps(self, duration_s: float, seed: int) -> Iterator[tuple[_Level, float]]:
        """Yield the level and the rate of each step."""
        check_range("duration_s", duration_s, 1, MAX_TRACE_S)
        rng = random.Random(f"cellular/{seed}")
        level = _any_level(rng)
        handover_s = self._until_handover_s(rng)
        for i in range(round(duration_s / STEP_S)):
            now = i * STEP_S
            if now >= handover_s + self.handover_s:
                level = _any_level(rng)
                handover_s = now + self._until_handover_s(rng)
            elif rng.random() < STEP_S / _LEVELS[level].mean_s:
                level = _neighbor(level, rng)
            fading = rng.lognormvariate(-(FAST_FADING**2) / 2, FAST_FADING)
            share = 0.0 if now >= handover_s else _LEVELS[level].share / _MEAN_SHARE * fading
            yield _LEVELS[level], self.rate_bps * share

    def _until_handover_s(self, rng: random.Random) -> float:
        return rng.expovariate(1 / self.handover_every_s) if self.handover_every_s else float("inf")


def _any_level(rng: random.Random) -> int:
    return rng.choices(range(len(_LEVELS)), _WEIGHTS)[0]


def _neighbor(level: int, rng: random.Random) -> int:
    if level in (0, len(_LEVELS) - 1):
        return 1 if level == 0 else level - 1
    return level + rng.choice((-1, 1))


def _times_ms(sent_bytes: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return when each opportunity's bytes are through; `sent_bytes` grows evenly within each step."""
    targets = np.arange(1, sent_bytes[-1] // OPPORTUNITY_BYTES + 1) * OPPORTUNITY_BYTES
    steps = np.searchsorted(sent_bytes, targets)
    before = np.concatenate(([0.0], sent_bytes))[steps]
    return (1000 * STEP_S * (steps + (targets - before) / (sent_bytes[steps] - before))).astype(np.int64)
