"""Fit a profile to recordings of one link: pings give delay and loss of both ways, traces what they have columns of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.fitting.comparison import Row, rate_rows, round_trip_rows
from outrider_netsim.fitting.rates import rate_figures
from outrider_netsim.fitting.recordings import Recording, RoundTrips
from outrider_netsim.fitting.round_trips import DelayFit, fit_round_trips, usual
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.profiles.traces import DeliveryTrace, Trace


@dataclass(slots=True)
class Fit:
    """A fitted profile and how near it is."""

    profile: Profile
    tables: dict[str, list[Row]] = field(default_factory=dict)
    delays: tuple[DelayFit, ...] = ()  # of round trips


def fit_profile(
    name: str, pings: tuple[RoundTrips, ...] = (), down: Trace | None = None, up: Trace | None = None
) -> Fit:
    """Fit a profile; without `up`, both ways have the trace of `down`. Raises ProfileError for too short recordings."""
    fit = Fit(Profile.symmetric(name, Direction(in_order=True)))
    if pings:
        _fit_pings(fit, pings)
    traces = {"down": down, "up": down if up is None else up}
    for way, trace in traces.items():
        if isinstance(trace, DeliveryTrace):
            fit.tables[f"rate {way}"] = rate_rows(rate_figures(trace))
    fit.profile = replace(
        fit.profile,
        source=_source(pings, {"down": down, "up": up}),
        up=replace(fit.profile.up, trace=traces["up"]),
        down=replace(fit.profile.down, trace=traces["down"]),
    )
    return fit


def sort_recordings(recordings: Sequence[Recording]) -> tuple[tuple[RoundTrips, ...], Trace | None]:
    """Return the round trips, and the one trace among them. Raises ProfileError for two traces or none of both."""
    pings = tuple(one for one in recordings if isinstance(one, RoundTrips))
    traces = [one for one in recordings if not isinstance(one, RoundTrips)]
    if len(traces) > 1:
        raise ProfileError(f"{traces[1].name}: a second trace: give the one of the way up with --up")
    return pings, traces[0] if traces else None


def _fit_pings(fit: Fit, pings: tuple[RoundTrips, ...]) -> None:
    found = fit_round_trips(pings)
    delay = found.delays[0]
    direction = Direction(
        base_ms=delay.base_ms,
        delay_ms=delay.delay_ms,
        jitter_ms=delay.jitter_ms,
        distribution=delay.distribution,
        coherence_ms=found.coherence_ms if delay.jitter_ms else 0.0,
        loss=found.loss,
        bursts=found.bursts,
        in_order=True,
    )
    fit.profile = replace(fit.profile, up=direction, down=direction, outages=found.outages)
    fit.delays = found.delays
    fit.tables["round trip"] = round_trip_rows(pings, fit.profile)


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
