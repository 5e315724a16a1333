"""Fit a profile's delay, its coherence, loss, bursts and outages to recorded round trips. Pure.

Half of a round trip each way: a ping cannot tell the two apart. With both ways alike and independent, one of them has
half of the least and of the mean round trip, and the deviation over sqrt 2.

    delay       base = half of the least; X (delays.py) has the mean and deviation that remain, for each distribution;
                the one whose round trips are nearest to the recorded ones, by the mean distance of quantiles, is taken
    coherence   in which the correlation falls to 1/e, of ranks turned into normal variables
    loss        share q lost of a round trip is 1 - sqrt(1 - q) each way; a chain of two states (Gilbert-Elliott) where
                losses come in a row more often than chance has it: r = bursts / losses, p = r q / (1 - q)
    outages     at least OUTAGE_PINGS lost in a row, for at least OUTAGE_S; or, with hold, as many that come back
                together: the first one unusually late, and each faster than the one before by at least half of the
                time between them. Neither counts as delay or loss
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.fitting.recordings import RoundTrips
from outrider_netsim.profiles import delays
from outrider_netsim.profiles.delays import DISTRIBUTIONS, NamedDistribution
from outrider_netsim.profiles.outages import Outage
from outrider_netsim.profiles.profile import Bursts, Direction

Array = NDArray[np.float64]

MIN_REPLIES = 100  # fewer say nothing of the 99th percentile
SAME_INTERVAL = 1.5  # largest ratio of two recordings' intervals between pings
OUTAGE_PINGS = 3
OUTAGE_S = 1.0
HOLD_S = 0.2  # what is shorter belongs to the delay
HOLD_DEVIATIONS = 5.0  # above the median, for the first ping of a hold; by the quartiles, as of a normal variable
MEASURED_CORRELATION = 0.7
CHANCE = 3.0  # deviations of pure chance that a correlation or a burst must exceed
_LAGS = sorted({round(1.25**n) for n in range(40)})  # to some 6,000
_GRID = (np.arange(200) + 0.5) / 200
_MIN_JITTER_MS = 1e-3
_QUARTILES = 2 * NormalDist().inv_cdf(0.75)  # distance of a normal variable's quartiles, in deviations


@dataclass(frozen=True, slots=True)
class DelayFit:
    """One way's delay, and how far its round trips are from the recorded ones."""

    direction: Direction
    distance_ms: float  # mean, of their quantiles


@dataclass(frozen=True, slots=True)
class RoundTripFit:
    """One way of a link, fitted; `delays` has every distribution, the nearest first, which is that of `direction`."""

    delays: tuple[DelayFit, ...]
    direction: Direction
    outages: tuple[Outage, ...]


def fit_round_trips(recordings: Sequence[RoundTrips]) -> RoundTripFit:
    """Fit one way of a link to several recordings of the same one. Raises ProfileError for too few replies."""
    _check_intervals(recordings)
    rtts = usual(recordings)
    if len(rtts) < MIN_REPLIES:
        raise ProfileError(f"{recordings[0].name}: {len(rtts)} round trips: need at least {MIN_REPLIES}")
    loss, bursts = fit_loss(recordings)
    coherence_ms = coherence_of(lambda lag: _neighbors(recordings, lag), recordings[0].interval_s)
    fits = fit_delays(rtts)
    direction = replace(fits[0].direction, loss=loss, bursts=bursts, in_order=True)
    if direction.jitter_ms:
        direction = replace(direction, coherence_ms=coherence_ms)
    return RoundTripFit(fits, direction, fit_outages(recordings))


def _check_intervals(recordings: Sequence[RoundTrips]) -> None:
    for recording in recordings:
        if len(recording.sent_s) < 2 or recording.interval_s <= 0:
            raise ProfileError(f"{recording.name}: need pings at different times")
        here, first = recording.interval_s, recordings[0].interval_s
        if not 1 / SAME_INTERVAL < here / first < SAME_INTERVAL:
            raise ProfileError(
                f"{recording.name}: a ping every {here:.3g} s, and every {first:.3g} s in {recordings[0].name}: "
                "fit recordings of one interval together"
            )


def usual(recordings: Sequence[RoundTrips]) -> Array:
    """Return all round trips that came back, apart from those of a hold, in ms."""
    return np.concatenate([one.rtt_ms[there] for one, there in zip(recordings, _are_usual(recordings), strict=True)])


def figures(recordings: Sequence[RoundTrips]) -> dict[str, float]:
    """Return what a recording and the round trips of its fitted profile are compared by; losses apart from outages."""
    rtts = usual(recordings)
    lost, bursts, counted = _count_losses(recordings)
    duration_s = sum(recording.duration_s for recording in recordings)
    out_s, held_s = (
        sum(end - start for of_one in found for start, end in of_one)
        for found in (map(outages_of, recordings), holds_of(recordings))
    )
    return {
        "mean, ms": float(rtts.mean()),
        "deviation, ms": float(rtts.std()),
        **{f"p{100 * share:.0f}, ms": float(np.quantile(rtts, share)) for share in (0.5, 0.9, 0.99)},
        "correlation of neighbors": _correlation(*_neighbors(recordings)),
        "lost, %": 100 * lost / counted,
        "losses in a row": lost / bursts if bursts else 0.0,
        "time in outages, %": 100 * out_s / duration_s,
        "time in holds, %": 100 * held_s / duration_s,
    }


def outages_of(recording: RoundTrips) -> list[tuple[float, float]]:
    """Return start and end of each outage: from its first lost ping to the next one that came back."""
    ends = np.append(recording.sent_s[1:], recording.sent_s[-1] + recording.interval_s)
    return [
        (float(recording.sent_s[first]), float(ends[last]))
        for first, last in _runs(recording.is_lost)
        if last - first + 1 >= OUTAGE_PINGS and ends[last] - recording.sent_s[first] >= OUTAGE_S
    ]


def holds_of(recordings: Sequence[RoundTrips]) -> list[list[tuple[float, float]]]:
    """Return, for each recording, start and end of each time in which pings waited and then came back together."""
    rtts_s = np.concatenate([recording.rtt_ms[~recording.is_lost] for recording in recordings]) / 1000
    if not len(rtts_s):
        return [[] for _ in recordings]
    lower, median, upper = np.quantile(rtts_s, [0.25, 0.5, 0.75])
    # Else jitter larger than the interval, and what waits behind a late packet, would look like short holds.
    least_s = median + max(HOLD_S, HOLD_DEVIATIONS * (upper - lower) / _QUARTILES)
    return [_holds(recording, float(median), float(least_s)) for recording in recordings]


def _holds(recording: RoundTrips, usual_s: float, least_s: float) -> list[tuple[float, float]]:
    came = ~recording.is_lost
    sent_s, rtt_s = recording.sent_s[came], recording.rtt_ms[came] / 1000
    is_next = -np.diff(rtt_s) >= np.maximum(np.diff(sent_s), recording.interval_s) / 2
    ends = np.maximum(sent_s, sent_s + rtt_s - usual_s)
    found: list[tuple[float, float]] = []
    for first, last in _runs(is_next):
        if last - first + 2 >= OUTAGE_PINGS and rtt_s[first] >= max(least_s, usual_s + 2 * recording.interval_s):
            start, end = float(sent_s[first]), float(ends[last + 1])
            # A hold that another interrupts for a moment is one.
            found.append((found.pop()[0], end) if found and start <= found[-1][1] else (start, end))
    return found


def fit_outages(recordings: Sequence[RoundTrips]) -> tuple[Outage, ...]:
    """Return an outage that recurs as often as those of the recordings, with their mean length; one more for holds."""
    duration_s = sum(recording.duration_s for recording in recordings)
    found = []
    for hold, times in ((False, [outages_of(recording) for recording in recordings]), (True, holds_of(recordings))):
        lengths = [end - start for of_one in times for start, end in of_one]
        if lengths:
            every_s, length_s = duration_s / len(lengths), float(np.mean(lengths))
            # Apart from each other at first: one kind in the middle of its time, the other early.
            start_s = (every_s - length_s) / (8 if hold else 2)
            found.append(Outage(round(length_s, 3), round(start_s, 3), round(every_s, 3), hold))
    return tuple(found)


def fit_loss(recordings: Sequence[RoundTrips]) -> tuple[float, Bursts | None]:
    """Return one way's share of lost packets, or the bursts they come in where that is more than chance."""
    lost, runs, counted = _count_losses(recordings)
    share = lost / counted
    one_way = 1 - float(np.sqrt(1 - share))
    in_a_row, by_chance = lost - runs, lost * share
    if in_a_row <= CHANCE + by_chance + CHANCE * np.sqrt(by_chance):
        return _short(one_way), None
    r = runs / lost
    return 0.0, Bursts(_short(r * one_way / (1 - one_way)), _short(r))


def coherence_of(pairs: Callable[[int], tuple[Array, Array]], interval_s: float) -> float:
    """Return in how many ms the correlation of a value with a later one falls to 1/e; 0 where neighbors show none.

    `pairs` returns, for a lag n, values and those n intervals after them. They count as normal variables of the same
    rank, so that neither outliers nor the distribution matter. The exponential goes through the first lag with a
    correlation of at most MEASURED_CORRELATION: at shorter ones white noise tells more than the link, at longer ones
    what differs from one hour to another.
    """
    coherence_ms = 0.0
    for lag in _LAGS:
        first, second = pairs(lag)
        if len(first) < MIN_REPLIES / 2:
            break
        both = normal_scores(np.concatenate([first, second]))
        correlation = _correlation(both[: len(first)], both[len(first) :])
        if not CHANCE / np.sqrt(len(first)) < correlation < 1:
            break
        coherence_ms = _short(-1000 * interval_s * lag / float(np.log(correlation)))
        if correlation <= MEASURED_CORRELATION:
            break
    return coherence_ms


def fit_delays(samples_ms: Array) -> tuple[DelayFit, ...]:
    """Fit every distribution to samples that are the sum of two equal and independent delays, the nearest first."""
    samples = np.sort(samples_ms)
    base, mean = float(samples[0]) / 2, float(samples.mean()) / 2
    deviation = float(samples.std()) / np.sqrt(2)
    if deviation < _MIN_JITTER_MS:
        return (DelayFit(Direction(base_ms=_short(mean)), 0.0),)
    shapes: list[NamedDistribution] = [name for name in DISTRIBUTIONS if name != "constant"]
    fits = [_nearest(name, samples, base, np.array([mean - base, deviation])) for name in shapes]
    return tuple(sorted(fits, key=lambda fit: fit.distance_ms))


def _nearest(distribution: NamedDistribution, samples: Array, base_ms: float, start: Array) -> DelayFit:
    """Search the mean and deviation that make the nearest samples: from these moments on, in steps that shrink."""
    recorded = np.quantile(samples, (np.arange(len(_GRID) ** 2) + 0.5) / len(_GRID) ** 2)

    def distance(at: Array) -> float:
        if at[0] < 0 or at[1] <= 0:
            return float("inf")
        one = np.array([delays.quantile(distribution, float(at[0]), float(at[1]), float(u)) for u in _GRID]) + base_ms
        # The quantiles of the sum of both ways.
        return float(np.abs(np.sort(np.add.outer(one, one), axis=None) - recorded).mean())

    at, best, step = start, distance(start), start[1] / 2
    while step > start[1] / 1000:
        tries = [at + step * np.array(move) for move in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1))]
        distances = [distance(one) for one in tries]
        if min(distances) < best:
            best, at = min(distances), tries[int(np.argmin(distances))]
        else:
            step /= 2
    mean, deviation = (_short(float(value)) for value in at)
    return DelayFit(Direction(mean, deviation, distribution, base_ms=_short(base_ms)), best)


def _count_losses(recordings: Sequence[RoundTrips]) -> tuple[int, int, int]:
    """Return the number of lost pings, of runs of them, and of all pings, each apart from outages."""
    lost = runs = counted = 0
    for recording in recordings:
        out = _is_within(recording, outages_of(recording))
        for first, last in _runs(recording.is_lost):
            if not out[first]:
                lost, runs = lost + last - first + 1, runs + 1
        counted += len(out) - int(out.sum())
    return lost, runs, counted


def _are_usual(recordings: Sequence[RoundTrips]) -> list[NDArray[np.bool_]]:
    """Return, for each recording, which pings came back and did not wait."""
    held = zip(recordings, holds_of(recordings), strict=True)
    return [~recording.is_lost & ~_is_within(recording, times) for recording, times in held]


def _is_within(recording: RoundTrips, times: Sequence[tuple[float, float]]) -> NDArray[np.bool_]:
    """Return which pings were sent in one of these times."""
    within = np.zeros(len(recording.sent_s), dtype=np.bool_)
    for start, end in times:
        within |= (start <= recording.sent_s) & (recording.sent_s < end)
    return within


def _runs(is_lost: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the first and last index of each run of lost pings."""
    edges = np.diff(np.concatenate(([0], is_lost.astype(np.int8), [0])))
    yield from zip(np.flatnonzero(edges == 1).tolist(), (np.flatnonzero(edges == -1) - 1).tolist(), strict=True)


def _neighbors(recordings: Sequence[RoundTrips], lag: int = 1) -> tuple[Array, Array]:
    """Return the round trips that have one `lag` pings later, at about the usual interval, and those later ones."""
    firsts, seconds = [], []
    for recording, there in zip(recordings, _are_usual(recordings), strict=True):
        apart_s = recording.sent_s[lag:] - recording.sent_s[:-lag]
        both = there[:-lag] & there[lag:] & (apart_s < (lag + 0.5) * recording.interval_s)
        firsts.append(recording.rtt_ms[:-lag][both])
        seconds.append(recording.rtt_ms[lag:][both])
    return np.concatenate(firsts), np.concatenate(seconds)


def normal_scores(values: Array) -> Array:
    """Return each value's rank as the quantile of a normal variable, so that outliers and shape do not matter."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    # Equal values share the middle of their ranks: in any order, they would correlate by their places alone.
    ranks = (np.cumsum(counts) - counts / 2) / len(values)
    inverse = NormalDist().inv_cdf
    return np.array([inverse(float(rank)) for rank in ranks])[place]


def _correlation(first: Array, second: Array) -> float:
    if len(first) < 2 or not first.std() or not second.std():
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _short(value: float) -> float:
    """Return `value` to four digits, as nobody wants more in a file."""
    return float(f"{value:.4g}")
