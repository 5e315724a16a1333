"""Plots of acceptance against staleness and bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider_bench.core.plots import COLORS, saved_figure
from outrider_bench.studies.features.recorded_features import BITS
from outrider_bench.studies.features.staleness import Degradation, DegradationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES = {"chain": "o--", "tree": "s-"}


def plot_staleness(results: Mapping[str, Mapping[str, Sequence[DegradationResult]]], path: Path) -> None:
    """Plot the share of tau against tokens without features, and against bits per value."""
    with saved_figure(path, 1, 2, figsize=(12, 4.5), sharey=True) as (_, (left, right)):
        for number, (name, by_shape) in enumerate(results.items()):
            color = COLORS[number % len(COLORS)]
            for shape, measured in by_shape.items():
                _curve(left, measured, _tokens_late, f"{name}, {shape}", _STYLES[shape], color)
                _curve(right, measured, _bits, f"{name}, {shape}", _STYLES[shape], color)
        left.set_xlabel("newest tokens without features")
        left.set_ylabel("tau / tau with all features in float32")
        left.set_title("late features")
        left.legend(frameon=False, fontsize="small")
        right.set_xlabel("bits a value, a step for every 64")
        right.set_xticks(BITS)
        right.invert_xaxis()
        right.set_title("coarse features")
        for axes in (left, right):
            axes.axhline(1, color="black", linewidth=1)


def _curve(
    axes: Axes,
    measured: Sequence[DegradationResult],
    place: Callable[[Degradation], int | None],
    label: str,
    style: str,
    color: str,
) -> None:
    """Plot the degradations that have a position on the axis, with their intervals."""
    points = sorted((where, one.overall) for one in measured if (where := place(one.cell)) is not None)
    if len(points) < 2:
        return
    places = [where for where, _ in points]
    axes.plot(places, [one.share for _, one in points], style, color=color, label=label, markersize=4)
    axes.fill_between(places, [s.low for _, s in points], [s.high for _, s in points], color=color, alpha=0.12)


def _tokens_late(cell: Degradation) -> int | None:
    return None if cell.lag.verdicts or cell.coding != Degradation().coding else cell.lag.tokens


def _bits(cell: Degradation) -> int | None:
    bits, _, unit = cell.coding.partition(" ")
    return int(bits) if unit == "bits" and cell.lag == Degradation().lag else None
