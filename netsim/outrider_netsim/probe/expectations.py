"""What a profile foretells for a probe, beyond the moments it states itself: order, bursts, the time of the rate."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean

from outrider_netsim.profiles.profile import Bursts, Direction


def serialisation_ms(direction: Direction, link_bytes: int) -> float:
    """What the rate takes for one packet of that size."""
    return link_bytes * 8000 / direction.rate_bps if direction.rate_bps else 0.0


def design_effect(direction: Direction) -> float:
    """How many packets are worth one independent one in counting losses: 1 without bursts.

    Whether packets n and n + k find a Gilbert-Elliott link bad is correlated by c^k, c = 1 - p - r.
    """
    bursts, mean = direction.bursts, direction.mean_loss
    if bursts is None or not 0 < mean < 1:
        return 1.0
    correlation = 1 - bursts.p - bursts.r
    return max(1.0, 1 + 2 * _state_variance(bursts) / (mean * (1 - mean)) * correlation / (1 - correlation))


def mean_burst(direction: Direction) -> float:
    """Expected number of losses in a row, from P(two neighbors lost): 1 / (1 - loss) if losses are independent."""
    bursts, mean = direction.bursts, direction.mean_loss
    if bursts is None or not mean:
        return in_a_row(mean)
    both = mean**2 + _state_variance(bursts) * (1 - bursts.p - bursts.r)
    return in_a_row(both / mean)


def in_a_row(followed: float) -> float:
    """Mean length of runs whose every member is followed by another with that probability."""
    return 1 / (1 - followed) if followed < 1 else math.inf


def overtaken(arrivals_s: Sequence[float]) -> list[bool]:
    """By packet in the order of sending: whether one sent later arrived before it."""
    earliest, flags = math.inf, []
    for arrival in reversed(arrivals_s):
        flags.append(arrival > earliest)
        earliest = min(earliest, arrival)
    return flags[::-1]


def expected_overtaken(sent_s: Sequence[float], direction: Direction, seed: int) -> float:
    """Share of packets sent then that are overtaken, by the profile's own draws."""
    if direction.in_order:
        return 0.0
    rng = random.Random(f"{seed}/overtaken")
    return fmean(overtaken([sent + direction.delay_s(rng) for sent in sent_s]))


def waiting_share(sent_s: Sequence[float], direction: Direction, seed: int) -> float:
    """How much of the mean delay of packets sent then is waiting for earlier ones, by the profile's own draws."""
    if not direction.in_order or not direction.jitter_ms:
        return 0.0
    rng = random.Random(f"{seed}/waiting")
    latest, drawn, waited = -math.inf, 0.0, 0.0
    for sent in sent_s:
        due = sent + direction.delay_s(rng)
        drawn += due - sent
        waited += max(0.0, latest - due)
        latest = max(latest, due)
    return waited / (drawn + waited)


def _state_variance(bursts: Bursts) -> float:
    """Variance, over packets, of the loss share that the state they find has."""
    in_bad = bursts.p / (bursts.p + bursts.r)
    return (bursts.bad - bursts.good) ** 2 * in_bad * (1 - in_bad)
