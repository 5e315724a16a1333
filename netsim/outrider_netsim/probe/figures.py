"""Measured figures with their confidence intervals and verdicts against the profile. Pure: no clock, no sockets.

A figure with a tolerance is `ok` within it. Outside it is `unclear` while its 99.99 % interval overlaps the tolerance
(chance may explain it: take more packets), else `off`. A figure without systematic error (loss, bursts) is `ok` when
its 99 % interval holds the profile's value, `unclear` when only its 99.99 % interval does, else `off`.

    delay        TOLERANCE, or TIMER_MS where that is more, the resolution of user-space engines' timers
    shape        mean distance between measured and expected quantiles (Wasserstein): uniform in place of normal
                 jitter has the right mean and deviation but is 0.14 deviations off; chance gives 1.1 / sqrt(n)
                 (of all three: n correlated delays count as n / delay_effect independent ones)
    loss         Clopper-Pearson; with bursty losses n packets count as n / design_effect independent ones
    loss burst   losses in a row; each is followed by another with probability 1 - 1/burst, so again a share
    overtaken    share of packets that arrive after one sent later, against draws from the profile
    throughput   bytes over time while more is offered than passes
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Literal

from outrider_netsim.probe.expectations import (
    delay_effect,
    design_effect,
    expected_overtaken,
    in_a_row,
    mean_burst,
    missing_share,
    overtaken,
    passing_bps,
    serialisation_ms,
    undecided_delay,
    undecided_loss,
    waiting_share,
)
from outrider_netsim.probe.intervals import Interval, deviation_interval, mean_interval, share_interval
from outrider_netsim.probe.samples import LoadTimes, PacketTimes
from outrider_netsim.profiles.profile import Direction

Verdict = Literal["ok", "unclear", "off", "n/a"]
Name = Literal["mean_delay_ms", "deviation_ms", "shape_gap_ms", "loss", "loss_burst", "overtaken", "throughput_bps"]

TOLERANCE = 0.05  # of delay, deviation and rate
TIMER_MS = 0.3  # standard deviation of a wake-up uniform over a millisecond
OVERTAKEN_TOLERANCE = 0.03
SHAPE_TOLERANCE, SHAPE_CHANCE = 0.05, 2.2  # of the deviation; the second, over sqrt(n), is twice its median
SHOWN, CERTAIN = 0.99, 0.9999  # confidences
SLICES = 20
EDGE_S = 0.8
LEAST_ARRIVALS = 20


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value beside the profile's, in the unit of its name (ms, bit/s, packets, or a share)."""

    name: Name
    measured: float | None
    interval: Interval | None  # of 99 %
    expected: float | None
    tolerance: float
    verdict: Verdict
    note: str = ""


def mean_figure(times: PacketTimes, direction: Direction, link_bytes: int, seed: int) -> Figure:
    """Compare the mean one-way delay of lone packets, serialization included."""
    delays_ms = times.delays_ms
    if not delays_ms:
        return missing("mean_delay_ms", "nothing came through", "off")
    expected = direction.mean_delay_ms + serialisation_ms(direction, link_bytes)
    effect = delay_effect(direction, times.sent_s)
    intervals = mean_interval(delays_ms, SHOWN, effect), mean_interval(delays_ms, CERTAIN, effect)
    tolerance = max(TOLERANCE * expected, TIMER_MS)
    waiting = waiting_share(times.sent_s, direction, seed)
    note = f"{waiting:.2%} of it from waiting for earlier packets at this spacing" if waiting else ""
    note = undecided_delay(direction) or note
    return _within("mean_delay_ms", fmean(delays_ms), intervals, _decided(direction, expected), tolerance, note)


def deviation_figure(times: PacketTimes, direction: Direction) -> Figure:
    """Compare the standard deviation of the one-way delays of lone packets."""
    delays_ms = times.delays_ms
    if not delays_ms:
        return missing("deviation_ms", "nothing came through", "off")
    expected = direction.delay_deviation_ms
    effect = delay_effect(direction, times.sent_s)
    intervals = deviation_interval(delays_ms, SHOWN, effect), deviation_interval(delays_ms, CERTAIN, effect)
    tolerance = max(TOLERANCE * expected, TIMER_MS)
    note = undecided_delay(direction)
    return _within("deviation_ms", pstdev(delays_ms), intervals, _decided(direction, expected), tolerance, note)


def shape_figure(times: PacketTimes, direction: Direction, link_bytes: int) -> Figure:
    """Compare quantiles: how far the measured ones lie from the profile's on average."""
    ordered = sorted(times.delays_ms)
    if not ordered:
        return missing("shape_gap_ms", "nothing came through", "off")
    if reason := undecided_delay(direction):
        return missing("shape_gap_ms", reason)
    extra, count = serialisation_ms(direction, link_bytes), len(ordered)
    expected = (direction.quantile_s((rank + 0.5) / count) * 1000 + extra for rank in range(count))
    gap = fmean(abs(mine - theirs) for mine, theirs in zip(ordered, expected, strict=True))
    share = SHAPE_TOLERANCE + SHAPE_CHANCE * math.sqrt(delay_effect(direction, times.sent_s) / count)
    tolerance = max(TIMER_MS, share * direction.delay_deviation_ms)
    return Figure("shape_gap_ms", gap, None, 0.0, tolerance, "ok" if gap <= tolerance else "off")


def loss_figure(times: PacketTimes, direction: Direction) -> Figure:
    """Compare the share of lost packets."""
    sent, lost = len(times.sent_s), sum(times.lost)
    effect = design_effect(direction)
    shown, certain = (share_interval(lost / effect, sent / effect, level) for level in (SHOWN, CERTAIN))
    reason = undecided_loss(direction)
    expected = None if reason else missing_share(direction)
    return _holding("loss", lost / sent, (shown, certain), expected, reason or f"{lost} of {sent:,}")


def burst_figure(times: PacketTimes, direction: Direction) -> Figure:
    """Compare the mean number of packets lost in a row."""
    lost = times.lost
    losses, followed = sum(lost), sum(before and after for before, after in pairwise(lost))
    if not losses:
        return missing("loss_burst", "no packet was lost")
    shares = (share_interval(followed, losses, level) for level in (SHOWN, CERTAIN))
    shown, certain = (Interval(in_a_row(share.low), in_a_row(share.high)) for share in shares)
    bursts, reason = losses - followed, undecided_loss(direction, in_a_row=True)
    expected = None if reason else mean_burst(direction)
    return _holding("loss_burst", losses / bursts, (shown, certain), expected, reason or f"{bursts} bursts")


def overtaken_figure(times: PacketTimes, direction: Direction, seed: int) -> Figure:
    """Compare the share of packets that arrive after one that was sent later."""
    came = [(s, r) for s, r in zip(times.sent_s, times.received_s, strict=True) if r is not None]
    if len(came) < 2 * SLICES:
        return missing("overtaken", f"{len(came)} packets came: too few")
    flags = overtaken([received for _, received in came])
    slices = [fmean(flags[start:end]) for start, end in _slices(len(flags))]
    intervals = mean_interval(slices, SHOWN), mean_interval(slices, CERTAIN)
    expected = _decided(direction, expected_overtaken([sent for sent, _ in came], direction, seed))
    tolerance = 0.0 if direction.in_order else OVERTAKEN_TOLERANCE
    return _within("overtaken", fmean(flags), intervals, expected, tolerance, undecided_delay(direction))


def throughput_figure(load_times: LoadTimes, direction: Direction) -> Figure:
    """Compare the throughput of a saturated link. No interval: a rate has no randomness."""
    measured_bps = passed_bps(load_times)
    if measured_bps is None:
        return missing("throughput_bps", f"{len(load_times.arrivals)} arrivals: too few", "off")
    if direction.trace:
        return Figure("throughput_bps", measured_bps, None, None, 0.0, "n/a", "the trace decides")
    expected_bps = passing_bps(direction)
    tolerance = TOLERANCE * expected_bps
    if abs(measured_bps - expected_bps) <= tolerance:
        return Figure("throughput_bps", measured_bps, None, expected_bps, tolerance, "ok")
    if load_times.held_back and measured_bps < expected_bps:
        return Figure("throughput_bps", measured_bps, None, None, 0.0, "n/a", "congestion control decides")
    enough = load_times.held_back or load_times.offered_bps * (1 - direction.mean_loss) >= 1.02 * direction.rate_bps
    note = "" if enough else f"the probe itself offered no more than {load_times.offered_bps / 1e6:.0f} Mbit/s"
    return Figure("throughput_bps", measured_bps, None, expected_bps, tolerance, "off" if enough else "unclear", note)


def passed_bps(load_times: LoadTimes) -> float | None:
    """Return the rate of arrivals from EDGE_S after the first one until sending ended; None if too few."""
    # A stream shows a loss as a stall, after which everything waiting arrives at once, so an edge within a stall would
    # lack bytes. So each edge is the moment within EDGE_S with the most arrivals for its time. Jitter shifts both.
    counted, arrived = [], 0.0
    for when, size in load_times.arrivals:
        arrived += size
        if when <= load_times.ended_s:
            counted.append((when, arrived))
    if len(counted) < LEAST_ARRIVALS or counted[-1][0] - counted[0][0] < 3 * EDGE_S:
        return None
    (first_s, first), (last_s, last) = counted[0], counted[-1]
    slope = (last - first) / (last_s - first_s)
    early = [point for point in counted if first_s + EDGE_S <= point[0] <= first_s + 2 * EDGE_S] or counted[:1]
    late = [point for point in counted if point[0] >= last_s - EDGE_S]
    (start_s, start), (end_s, end) = (max(edge, key=lambda p: p[1] - slope * p[0]) for edge in (early, late))
    return (end - start) * 8 / (end_s - start_s)


def missing(name: Name, note: str, verdict: Verdict = "n/a") -> Figure:
    """Return a figure that could not be measured, with the reason."""
    return Figure(name, None, None, None, 0.0, verdict, note)


def _decided(direction: Direction, expected: float) -> float | None:
    """Return `expected`, or None where the profile alone does not say how long packets take."""
    return None if undecided_delay(direction) else expected


def _slices(count: int) -> Iterator[tuple[int, int]]:
    return ((slice_idx * count // SLICES, (slice_idx + 1) * count // SLICES) for slice_idx in range(SLICES))


def _within(
    name: Name,
    measured: float,
    intervals: tuple[Interval, Interval],
    expected: float | None,
    tolerance: float,
    note: str = "",
) -> Figure:
    shown, certain = intervals
    if expected is None:
        return Figure(name, measured, shown, None, 0.0, "n/a", note)
    verdict: Verdict = "unclear" if certain.meets(expected - tolerance, expected + tolerance) else "off"
    if abs(measured - expected) <= tolerance:
        verdict = "ok"
    return Figure(name, measured, shown, expected, tolerance, verdict, note)


def _holding(
    name: Name, measured: float, intervals: tuple[Interval, Interval], expected: float | None, note: str
) -> Figure:
    shown, certain = intervals
    if expected is None:
        return Figure(name, measured, shown, None, 0.0, "n/a", note)
    verdict: Verdict = "unclear" if certain.meets(expected, expected) else "off"
    if shown.meets(expected, expected):
        verdict = "ok"
    return Figure(name, measured, shown, expected, 0.0, verdict, note)
