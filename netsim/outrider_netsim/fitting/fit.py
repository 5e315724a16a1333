"""Fit a profile to recordings of one link: pings give delay and loss of both ways, traces what they have columns of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.fitting.recordings import Recording, RoundTrips
from outrider_netsim.fitting.round_trips import DelayFit, RoundTripFit, figures, fit_round_trips, usual
from outrider_netsim.impairments import path as link_path
from outrider_netsim.impairments.impairment import Packet
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.profiles.traces import Trace

PING_BYTES = 98  # of 56 bytes of data, with ICMP, IP and Ethernet headers
SIMULATED_PINGS = 20_000


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted profile and how near it is."""

    profile: Profile
    table: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # figures of pings: recorded, fitted
    delays: tuple[DelayFit, ...] = ()


def fit_profile(
    name: str, pings: tuple[RoundTrips, ...] = (), down: Trace | None = None, up: Trace | None = None
) -> Fit:
    """Fit a profile; without `up`, both ways have the trace of `down`. Raises ProfileError for too few pings."""
    found = fit_round_trips(pings) if pings else RoundTripFit((), Direction(in_order=True), ())
    profile = Profile(
        name,
        up=replace(found.direction, trace=down if up is None else up),
        down=replace(found.direction, trace=down),
        source=_source(pings, {"down": down, "up": up}),
        outages=found.outages,
    )
    return Fit(profile, compared(pings, profile) if pings else {}, found.delays)


def sort_recordings(recordings: Sequence[Recording]) -> tuple[tuple[RoundTrips, ...], Trace | None]:
    """Return the round trips, and the one trace among them. Raises ProfileError for two traces or none of both."""
    pings = tuple(one for one in recordings if isinstance(one, RoundTrips))
    traces = [one for one in recordings if not isinstance(one, RoundTrips)]
    if len(traces) > 1:
        raise ProfileError(f"{traces[1].name}: a second trace: give the one of the way up with --up")
    return pings, traces[0] if traces else None


def _source(pings: Sequence[RoundTrips], traces: Mapping[str, Trace | None]) -> str:
    parts = []
    if pings:
        count = sum(len(one.rtt_ms) for one in pings)
        seconds = sum(one.duration_s for one in pings)
        files = ", ".join(Path(one.name).name for one in pings[:3])
        more = f" and {len(pings) - 3} more" if len(pings) > 3 else ""
        answers = len(usual(pings))
        parts.append(
            f"{files}{more} ({count} pings in {seconds:.0f} s, {answers} answered; half a round trip each way)"
        )
    parts += [f"{Path(trace.name).name} ({way})" for way, trace in traces.items() if trace is not None]
    return f"fitted to {', '.join(parts)}"


def compared(recordings: Sequence[RoundTrips], profile: Profile) -> dict[str, tuple[float, float]]:
    """Compare recordings with pings through the profile's delay, loss and outages, which take the same interval."""
    recorded, fitted = figures(recordings), figures([simulate(profile, recordings[0].interval_s, SIMULATED_PINGS)])
    return {name: (value, fitted[name]) for name, value in recorded.items()}


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
    path = link_path.Path(replace(direction, rate_bps=0.0, trace=None), seed, profile.outages)
    for number, now in [*pushes, (-1, float("inf"))]:
        while (when := path.next_event()) is not None and when <= now:
            yield from ((int(packet.data), when) for packet in path.pop_ready(when))
        if number >= 0:
            path.push(Packet(b"%d" % number, PING_BYTES), now)
