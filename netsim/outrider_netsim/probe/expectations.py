"""Expected values of a probe beyond a profile's own moments: reordering, bursts, serialization."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean

from outrider_netsim.impairments import DelayDraws
from outrider_netsim.profiles.profile import Bursts, Direction

REALIZATIONS = 10  # of correlated delays: a single one is not long enough to be typical


def serialisation_ms(direction: Direction, link_bytes: int) -> float:
    """Return how long the rate takes for one packet of that size."""
    return link_bytes * 8000 / direction.rate_bps if direction.rate_bps else 0.0


def design_effect(direction: Direction) -> float:
    """Return how many packets count as one independent one for losses; 1 without bursts.

    The states that packets n and n + k find a Gilbert-Elliott link in are correlated by c^k, c = 1 - p - r.
    """
    bursts, mean = direction.bursts, direction.mean_loss
    if bursts is None or not 0 < mean < 1:
        return 1.0
    correlation = 1 - bursts.p - bursts.r
    return max(1.0, 1 + 2 * _state_variance(bursts) / (mean * (1 - mean)) * correlation / (1 - correlation))


def delay_effect(direction: Direction, sent_s: Sequence[float]) -> float:
    """Return how many delays of packets sent then count as one independent one, at most; 1 without correlation.

    Packets k apart have normal variables with correlation c^k, and no function of two normal variables is correlated
    more than they are (Lancaster 1957). So (1 + c) / (1 - c) is a bound for means and for deviations.
    """
    if not direction.jitter_ms or len(sent_s) < 2:
        return 1.0
    c = direction.correlation
    if direction.coherence_ms:
        spacing_ms = 1000 * (sent_s[-1] - sent_s[0]) / (len(sent_s) - 1)
        c = math.exp(-spacing_ms / direction.coherence_ms)
    return min(float(len(sent_s)), (1 + c) / (1 - c)) if c < 1 else float(len(sent_s))


def mean_burst(direction: Direction) -> float:
    """Return the mean number of losses in a row: 1 / (1 - loss) if losses are independent."""
    bursts, mean = direction.bursts, direction.mean_loss
    if bursts is None or not mean:
        return in_a_row(mean)
    both = mean**2 + _state_variance(bursts) * (1 - bursts.p - bursts.r)
    return in_a_row(both / mean)


def missing_share(direction: Direction) -> float:
    """Return the share of packets of which no copy arrives whole: lost, or found corrupt by their checksum."""
    whole = 1 - direction.corrupt * (1 - direction.duplicate * (1 - direction.corrupt))
    return 1 - (1 - direction.mean_loss) * whole


def passing_bps(direction: Direction) -> float:
    """Return the rate at which packets arrive whole, each once, while more is offered than passes."""
    return direction.rate_bps * (1 - direction.corrupt) / (1 + direction.duplicate)


def undecided_delay(direction: Direction) -> str:
    """Return why the profile alone does not say how long packets take; nothing if it does."""
    if direction.trace:
        return "the trace decides"
    if direction.slot_ms:
        return "the slots decide"
    return "the faster copy decides" if direction.duplicate and direction.jitter_ms else ""


def undecided_loss(direction: Direction, *, in_a_row: bool = False) -> str:
    """Return why the profile alone does not say how many packets are missing, or how many in a row."""
    return "the trace decides" if direction.trace else "corruption decides" if in_a_row and direction.corrupt else ""


def in_a_row(followed: float) -> float:
    """Return the mean length of runs whose every member is followed by another with that probability."""
    return 1 / (1 - followed) if followed < 1 else math.inf


def overtaken(arrivals_s: Sequence[float]) -> list[bool]:
    """Return for each packet, in the order sent, whether a later one arrived before it."""
    earliest, flags = math.inf, []
    for arrival in reversed(arrivals_s):
        flags.append(arrival > earliest)
        earliest = min(earliest, arrival)
    return flags[::-1]


def expected_overtaken(sent_s: Sequence[float], direction: Direction, seed: int) -> float:
    """Return the expected share of overtaken packets, by draws from the profile."""
    if direction.in_order:
        return 0.0
    rng = random.Random(f"{seed}/overtaken")

    def once() -> float:
        draws = DelayDraws(direction, rng)
        return fmean(overtaken([sent + draws.draw_s(sent) for sent in sent_s]))

    return fmean(once() for _ in range(1 if delay_effect(direction, sent_s) == 1 else REALIZATIONS))


def waiting_share(sent_s: Sequence[float], direction: Direction, seed: int) -> float:
    """Return which share of the mean delay is waiting for earlier packets, by draws from the profile."""
    if not direction.in_order or not direction.jitter_ms:
        return 0.0
    draws = DelayDraws(direction, random.Random(f"{seed}/waiting"))
    latest, drawn, waited = -math.inf, 0.0, 0.0
    for sent in sent_s:
        due = sent + draws.draw_s(sent)
        drawn += due - sent
        waited += max(0.0, latest - due)
        latest = max(latest, due)
    return waited / (drawn + waited)


def _state_variance(bursts: Bursts) -> float:
    """Return the variance, over packets, of the loss probability of the state they find."""
    in_bad = bursts.p / (bursts.p + bursts.r)
    return (bursts.bad - bursts.good) ** 2 * in_bad * (1 - in_bad)
