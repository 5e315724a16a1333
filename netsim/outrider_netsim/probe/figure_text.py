"""Format figures for tables, in suitable units."""

from __future__ import annotations

import math

from outrider_netsim.probe.figures import Figure, Name

HEADINGS = ("", "measured", "99 % interval", "profile", "±", "verdict")
TITLES: dict[Name, tuple[str, float]] = {  # title with unit, factor to that unit
    "mean_delay_ms": ("mean delay, ms", 1.0),
    "deviation_ms": ("standard deviation, ms", 1.0),
    "shape_gap_ms": ("quantiles off by, ms", 1.0),
    "loss": ("loss, %", 100.0),
    "loss_burst": ("losses in a row", 1.0),
    "overtaken": ("overtaken, %", 100.0),
    "throughput_bps": ("throughput, Mbit/s", 1e-6),
}


def figure_row(figure: Figure) -> tuple[str, ...]:
    """Return one cell per heading, without the note."""
    title, scale = TITLES[figure.name]
    measured, interval, expected = figure.measured, figure.interval, figure.expected
    return (
        title,
        "" if measured is None else _number(measured, scale),
        f"{_number(interval.low, scale)} - {_number(interval.high, scale)}" if interval else "",
        "" if expected is None else _number(expected, scale),
        _number(figure.tolerance, scale) if figure.tolerance else "",
        figure.verdict,
    )


def figure_note(figure: Figure) -> str:
    """Return the note with the figure's title, or an empty string."""
    return f"{TITLES[figure.name][0].partition(',')[0]}: {figure.note}" if figure.note else ""


def _number(value: float, scale: float) -> str:
    value *= scale
    if not math.isfinite(value):
        return "any" if value > 0 else "none"
    return f"{value:.{3 if abs(value) < 1 else 2}f}"
