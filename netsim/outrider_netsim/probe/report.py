"""Turn a probe's samples into a report of both directions, as plain data. Pure; figures.py computes the figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider_netsim.probe.expectations import serialisation_ms, undecided_delay
from outrider_netsim.probe.figures import (
    Figure,
    Verdict,
    burst_figure,
    deviation_figure,
    loss_figure,
    mean_figure,
    missing,
    overtaken_figure,
    shape_figure,
    throughput_figure,
)
from outrider_netsim.probe.samples import WAYS, PacketTimes, Samples, Way
from outrider_netsim.profiles.profile import Direction, Profile

QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Quantile:
    """The delay that a share of packets does not exceed."""

    share: float
    measured_ms: float
    expected_ms: float | None  # None where the profile alone does not decide


@dataclass(frozen=True, slots=True)
class DirectionReport:
    """Results of one direction; the delays are those of lone packets, in the order sent."""

    figures: tuple[Figure, ...]
    quantiles: tuple[Quantile, ...]
    delays_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Results of both directions with their verdict."""

    ways: dict[Way, DirectionReport]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all figures."""
        seen = {figure.verdict for way in self.ways.values() for figure in way.figures}
        return "off" if "off" in seen else "unclear" if "unclear" in seen else "ok"

    def as_json(self) -> dict[str, object]:
        """Return everything but the single delays."""
        return {"verdict": self.verdict} | {way: _as_json(found) for way, found in self.ways.items()}


def report(samples: Samples, profile: Profile, seed: int = 0) -> ProbeReport:
    """Compare `samples` with `profile`. `seed` is for the draws of the expected reordering."""
    directions = {"up": profile.up, "down": profile.down}
    return ProbeReport({way: _judged(samples, way, directions[way], seed) for way in WAYS})


def _judged(samples: Samples, way: Way, direction: Direction, seed: int) -> DirectionReport:
    lone = samples.delay[way]
    load_times = samples.load_times.get(way)
    figures = [
        mean_figure(lone, direction, samples.link_bytes, seed),
        deviation_figure(lone, direction),
        shape_figure(lone, direction, samples.link_bytes),
        *_loss_figures(samples, way, direction, seed),
        throughput_figure(load_times, direction)
        if load_times
        else missing("throughput_bps", "the profile has no rate"),
    ]
    return DirectionReport(tuple(figures), _quantiles(lone, direction, samples.link_bytes), tuple(lone.delays_ms))


def _loss_figures(samples: Samples, way: Way, direction: Direction, seed: int) -> Sequence[Figure]:
    times = samples.loss[way]
    loss, burst = loss_figure(times, direction), burst_figure(times, direction)
    if samples.transport == "datagrams":
        return loss, burst, overtaken_figure(times, direction, seed)
    loss = replace(loss, note=f"{loss.note}, seen as stalls")
    return loss, burst, missing("overtaken", "a TCP stream is always in order")


def _quantiles(times: PacketTimes, direction: Direction, link_bytes: int) -> tuple[Quantile, ...]:
    ordered, extra = sorted(times.delays_ms), serialisation_ms(direction, link_bytes)
    return tuple(
        Quantile(
            share,
            ordered[int(share * len(ordered))],
            None if undecided_delay(direction) else direction.quantile_s(share) * 1000 + extra,
        )
        for share in QUANTILES
        if ordered
    )


def _as_json(found: DirectionReport) -> dict[str, object]:
    return {
        "figures": {figure.name: _figure_as_json(figure) for figure in found.figures},
        "quantiles": [
            {"share": quantile.share, "measured_ms": quantile.measured_ms, "profile_ms": quantile.expected_ms}
            for quantile in found.quantiles
        ],
        "packets": len(found.delays_ms),
    }


def _figure_as_json(figure: Figure) -> dict[str, object]:
    interval = figure.interval
    return {
        "measured": figure.measured,
        "interval_99": [_finite(interval.low), _finite(interval.high)] if interval else None,
        "profile": figure.expected,
        "tolerance": figure.tolerance,
        "verdict": figure.verdict,
        "note": figure.note,
    }


def _finite(value: float) -> float | None:
    """Return None for infinity, which JSON lacks."""
    return value if math.isfinite(value) else None
