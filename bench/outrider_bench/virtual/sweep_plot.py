"""The map of a sweep: a panel per tau, in it R across and T_v up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from outrider_bench.core.plots import saved_figure
from outrider_bench.network.variants import CONTROLS
from outrider_bench.virtual.sweep import SweepGrid, SweepPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OF_CONTROLS = {"stream": "#BDBDBD", "server-draft": "#8C8C8C"}
_COLORS = ("#9ECAE9", "#FFBF79", "#88D27A", "#D6A5C9", "#FF9D98", "#B2DFDB")


def plot_sweep(grid: SweepGrid, points: Sequence[SweepPoint], names: Sequence[str], title: str, path: Path) -> None:
    """Color each point by its fastest variant, and print its ratio to the stream."""
    from matplotlib.patches import Patch

    colors = _colors(names)
    size = (max(6.0, 0.75 * len(grid.round_trips_ms) + 1.2), 0.55 * len(grid.verify_ms) + 1.1)
    with saved_figure(
        path, len(grid.shares), 1, figsize=(size[0], size[1] * len(grid.shares) + 1.0), squeeze=False
    ) as (figure, panels):
        for axes, share in zip(panels[:, 0], grid.shares, strict=True):
            _plot_panel(axes, grid, [point for point in points if point.share == share], colors)
        panels[-1, 0].set_xlabel("round trip R [ms]")
        handles = [Patch(color=colors[name], label=name) for name in names]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
        figure.suptitle(title, fontsize="medium")


def _plot_panel(axes: Axes, grid: SweepGrid, points: Sequence[SweepPoint], colors: dict[str, str]) -> None:
    from matplotlib.patches import Rectangle

    for point in points:
        x, y = grid.round_trips_ms.index(point.rtt_ms), grid.verify_ms.index(point.verify_ms)
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colors[point.best], edgecolor="white"))
        axes.text(x + 0.5, y + 0.5, f"{point.ratio_to_stream:.2f}", ha="center", va="center", fontsize="small")
    axes.set_xlim(0, len(grid.round_trips_ms))
    axes.set_ylim(0, len(grid.verify_ms))
    axes.set_xticks([x + 0.5 for x in range(len(grid.round_trips_ms))], [f"{value:g}" for value in grid.round_trips_ms])
    axes.set_yticks([y + 0.5 for y in range(len(grid.verify_ms))], [f"{value:g}" for value in grid.verify_ms])
    axes.set_ylabel("T_v [ms]")
    axes.set_title(f"tau {fmean(point.tau for point in points):.1f}", fontsize="medium")


def _colors(names: Sequence[str]) -> dict[str, str]:
    others = (name for name in names if name not in CONTROLS)
    return _OF_CONTROLS | dict(zip(others, cycle(_COLORS), strict=False))
