"""Fit a profile to recordings of one link: pings give delay and loss of both ways, traces what they have columns of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.fitting.comparison import Row, delay_rows, rate_rows, round_trip_rows
from outrider_netsim.fitting.rates import rate_figures, step_of, trace_like
from outrider_netsim.fitting.recordings import Recording, RoundTrips
from outrider_netsim.fitting.round_trips import (
    MIN_REPLIES,
    DelayFit,
    coherence_of,
    fit_delays,
    fit_round_trips,
    usual,
)
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace, Trace


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What to fit: `down` and `up` are traces of one way; with `model`, figures replace them."""

    name: str
    round_trips: tuple[RoundTrips, ...] = ()
    down: Trace | None = None
    up: Trace | None = None
    model: bool = False
    seed: int = 0
    made_file: Path | None = None  # a made trace goes to this name with .up or .down, and .trace


@dataclass(slots=True)
class Fit:
    """A fitted profile and how near it is; `made` has the traces that it refers to and that must be written."""

    profile: Profile
    tables: dict[str, list[Row]] = field(default_factory=dict)
    delays: dict[str, tuple[DelayFit, ...]] = field(default_factory=dict)
    made: dict[Path, DeliveryTrace] = field(default_factory=dict)


def fit_profile(options: FitOptions) -> Fit:
    """Fit a profile. Raises ProfileError for recordings that are too short."""
    fit = Fit(Profile.symmetric(options.name, Direction(in_order=True)))
    if options.round_trips:
        _fit_pings(fit, options.round_trips)
    down, up = options.down, options.up if options.up is not None else options.down
    for way, trace in (("down", down), ("up", up)):
        if trace is not None:
            _fit_trace(fit, way, trace, options)
    fit.profile = replace(fit.profile, source=_source(options))
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
    direction = replace(
        _delayed(Direction(in_order=True), found.delays[0], found.coherence_ms), loss=found.loss, bursts=found.bursts
    )
    fit.profile = replace(fit.profile, up=direction, down=direction, outages=found.outages)
    fit.delays["round trip"] = found.delays
    fit.tables["round trip"] = round_trip_rows(pings, fit.profile)


def _fit_trace(fit: Fit, way: str, trace: Trace, options: FitOptions) -> None:
    direction: Direction = getattr(fit.profile, way)
    if isinstance(trace, DeliveryTrace):
        step_s = step_of(trace)
        recorded, used = rate_figures(trace, step_s), trace
        if options.model and options.made_file is not None:
            file = options.made_file.with_suffix(f".{way}.trace")
            used = fit.made[file] = replace(trace_like(trace, step_s, options.seed), name=str(file))
        fit.tables[f"rate {way}"] = rate_rows(recorded, rate_figures(used, step_s))
        direction = replace(direction, trace=used)
    elif options.model:
        direction = _modelled(fit, way, trace, direction)
    else:
        direction = replace(direction, trace=trace)
    fit.profile = replace(fit.profile, up=direction) if way == "up" else replace(fit.profile, down=direction)


def _modelled(fit: Fit, way: str, trace: ConditionTrace, direction: Direction) -> Direction:
    """Return `direction` with the mean of each column, and a distribution in place of the delay's."""
    spans = np.diff(np.array([*trace.times_s, trace.period_s]))
    # Each row as often as it is long, in units of the median row, so that all count by their time.
    times = np.maximum(1, np.round(spans / np.median(spans))).astype(np.int64)
    if times.sum() < MIN_REPLIES:
        raise ProfileError(f"{trace.name}: {len(times)} rows: need at least {MIN_REPLIES}")
    if trace.rate_bps is not None:
        direction = replace(direction, rate_bps=float(f"{np.average(trace.rate_bps, weights=spans):.4g}"))
    if trace.loss is not None:
        direction = replace(direction, loss=float(f"{np.average(trace.loss, weights=spans):.4g}"), bursts=None)
    if trace.delay_ms is not None:
        samples = np.repeat(np.array(trace.delay_ms), times)
        fits = fit.delays[f"delay {way}"] = fit_delays(samples, ways=1)
        coherence_ms = coherence_of(lambda lag: (samples[:-lag], samples[lag:]), float(np.median(spans)))
        direction = _delayed(direction, fits[0], coherence_ms)
        fit.tables[f"delay {way}"] = delay_rows(samples, direction)
    return direction


def _delayed(direction: Direction, delay: DelayFit, coherence_ms: float) -> Direction:
    return replace(
        direction,
        base_ms=delay.base_ms,
        delay_ms=delay.delay_ms,
        jitter_ms=delay.jitter_ms,
        distribution=delay.distribution,
        coherence_ms=coherence_ms if delay.jitter_ms else 0.0,
    )


def _source(options: FitOptions) -> str:
    parts = []
    if options.round_trips:
        count = sum(len(one.rtt_ms) for one in options.round_trips)
        seconds = sum(one.duration_s for one in options.round_trips)
        files = ", ".join(Path(one.name).name for one in options.round_trips[:3])
        more = f" and {len(options.round_trips) - 3} more" if len(options.round_trips) > 3 else ""
        answers = len(usual(options.round_trips))
        parts.append(
            f"{files}{more} ({count} pings in {seconds:.0f} s, {answers} answered; half a round trip each way)"
        )
    traces = {"down": options.down, "up": options.up}
    parts += [f"{Path(trace.name).name} ({way})" for way, trace in traces.items() if trace is not None]
    return f"fitted to {', '.join(parts)}"
