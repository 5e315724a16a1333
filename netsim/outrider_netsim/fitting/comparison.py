"""Recorded and fitted figures side by side. The fitted ones are measured on the profile, by the same functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from outrider_netsim.fitting import round_trips
from outrider_netsim.fitting.rates import QUANTILES as RATE_QUANTILES
from outrider_netsim.fitting.rates import RateFigures
from outrider_netsim.fitting.recordings import RoundTrips
from outrider_netsim.fitting.round_trips import RoundTripFigures
from outrider_netsim.impairments import Packet
from outrider_netsim.impairments.path import Path
from outrider_netsim.profiles.profile import Direction, Profile

PING_BYTES = 98  # of 56 bytes of data, with ICMP, IP and Ethernet headers
SIMULATED_PINGS = 20_000


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a recording and of what was fitted to it."""

    name: str
    recorded: float
    fitted: float | None = None  # None where the profile refers to the recording


def round_trip_rows(recordings: Sequence[RoundTrips], profile: Profile) -> list[Row]:
    """Compare recordings with pings through the profile's delay, loss and outages, which take the same interval."""
    fitted = simulate(profile, recordings[0].interval_s, SIMULATED_PINGS)
    return list(_round_trip_rows(round_trips.figures(recordings), round_trips.figures([fitted])))


def rate_rows(figures: RateFigures) -> list[Row]:
    """Describe a recorded trace, to which the profile refers."""
    shares = zip(RATE_QUANTILES, figures.quantiles_bps, strict=True)
    values = {
        "mean rate, Mbit/s": figures.mean_bps / 1e6,
        "deviation, Mbit/s": figures.deviation_bps / 1e6,
        **{f"{share:.0%} of {figures.step_s:.2g}-s steps are below, Mbit/s": bps / 1e6 for share, bps in shares},
        "coherence, s": figures.coherence_s,
        "stalls": figures.stalls,
        "time in stalls, %": 100 * figures.stall_share,
        "longest stall, s": figures.longest_stall_s,
    }
    return [Row(name, value) for name, value in values.items()]


def simulate(profile: Profile, interval_s: float, count: int, seed: int = 0) -> RoundTrips:
    """Send pings through both directions, without their rate and trace, and return them as a recording."""
    sent = np.arange(count, dtype=np.float64) * interval_s
    there = dict(_transit(profile, profile.up, f"{seed}/up", list(enumerate(sent.tolist()))))
    arrivals = sorted((at, number) for number, at in there.items())
    back = dict(_transit(profile, profile.down, f"{seed}/down", [(number, at) for at, number in arrivals]))
    rtts = [1000 * (back[number] - at) if number in back else np.nan for number, at in enumerate(sent.tolist())]
    return RoundTrips(profile.name, sent, np.array(rtts))


def _transit(
    profile: Profile, direction: Direction, seed: str, pushes: Sequence[tuple[int, float]]
) -> Iterator[tuple[int, float]]:
    """Yield number and arrival of each packet that gets through."""
    path = Path(replace(direction, rate_bps=0.0, trace=None), seed, profile.outages)
    for number, now in [*pushes, (-1, float("inf"))]:
        while (when := path.next_event()) is not None and when <= now:
            yield from ((int(packet.data), when) for packet in path.pop_ready(when))
        if number >= 0:
            path.push(Packet(b"%d" % number, PING_BYTES), now)


def _round_trip_rows(recorded: RoundTripFigures, fitted: RoundTripFigures) -> Iterator[Row]:
    yield Row("mean, ms", recorded.mean_ms, fitted.mean_ms)
    yield Row("deviation, ms", recorded.deviation_ms, fitted.deviation_ms)
    for share, one, other in zip(round_trips.QUANTILES, recorded.quantiles_ms, fitted.quantiles_ms, strict=True):
        yield Row(f"p{100 * share:.0f}, ms", one, other)
    yield Row("correlation of neighbors", recorded.correlation, fitted.correlation)
    yield Row("lost, %", 100 * recorded.loss, 100 * fitted.loss)
    yield Row("losses in a row", recorded.burst, fitted.burst)
    yield Row("time in outages, %", 100 * recorded.outage_share, 100 * fitted.outage_share)
    yield Row("time in holds, %", 100 * recorded.hold_share, 100 * fitted.hold_share)
