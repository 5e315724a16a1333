"""Plot a probe: measured delays over the profile's density, each way, and a table of all figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from outrider_netsim.core.errors import EngineError, ProfileError
from outrider_netsim.probe.expectations import serialisation_ms
from outrider_netsim.probe.figure_text import HEADINGS, figure_row
from outrider_netsim.probe.report import DirectionReport
from outrider_netsim.probe.samples import WAYS
from outrider_netsim.profiles.profile import Direction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from outrider_netsim.probe.run import ProbeRun

FORMATS = (".png", ".svg", ".pdf")
BINS = 60
POINTS = 20_000
SHOWN = 0.999  # of the packets
PEAK_SHARE = 0.05  # bins lower than this share of the peak are not magnified
COLORS = {"ok": "#54A24B", "unclear": "#E3A33B", "off": "#E45756", "n/a": "#999999"}


def check_plot_file(file: Path) -> None:
    """Check before measuring. Raises ProfileError for an unknown image format, EngineError without matplotlib."""
    if file.suffix.lower() not in FORMATS:
        raise ProfileError(f"{file}: need a name that ends in {', '.join(FORMATS)}")
    try:
        import matplotlib.figure  # noqa: F401 - checks that it is installed
    except ImportError:
        raise EngineError("pictures need matplotlib: pip install 'outrider[netsim]'") from None


def save_probe_plot(run: ProbeRun, file: Path) -> None:
    """Draw to `file` in the format of its suffix. Raises as check_plot_file, and ProfileError if it cannot write."""
    check_plot_file(file)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 7), layout="constrained")
    figure.suptitle(f"{run.profile.name} through the {run.engine} engine: one-way delay of lone packets")
    axes = figure.subplots(2, 2, width_ratios=(1, 1))
    directions = {"up": run.profile.up, "down": run.profile.down}
    for way, (picture, table) in zip(WAYS, axes, strict=True):
        _draw_delays(picture, way, run.report.ways[way], directions[way], run.seen.samples.link_bytes)
        _draw_figures(table, run.report.ways[way])
    axes[1][0].set_xlabel("ms")
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise ProfileError(f"{file}: cannot be written: {error.strerror or error}") from None


def _draw_delays(axes: Axes, way: str, found: DirectionReport, direction: Direction, link_bytes: int) -> None:
    low, high = _range_ms(found, direction)
    edges = [low + (high - low) * edge / BINS for edge in range(BINS + 1)]
    measured = _shares(found.delays_ms, low, high)
    axes.stairs(measured, edges, fill=True, alpha=0.45, label=f"measured, {len(found.delays_ms):,} packets")
    if direction.trace is None:
        extra = serialisation_ms(direction, link_bytes)
        drawn = [direction.quantile_s((point + 0.5) / POINTS) * 1000 + extra for point in range(POINTS)]
        claimed = _shares(drawn, low, high)
        axes.stairs(claimed, edges, color="black", linewidth=1.2, label="profile")
        rest = _without_peak(claimed)
        if max(rest) > PEAK_SHARE * max(claimed):
            axes.set_ylim(top=1.15 * max(*rest, *_without_peak(measured)))
        way += _peak(axes.get_ylim()[1], claimed, measured)
    axes.set_title(way, loc="left")
    axes.set_ylabel("share of packets per bin")
    axes.legend(frameon=False, loc="upper right")


def _draw_figures(axes: Axes, found: DirectionReport) -> None:
    axes.axis("off")
    rows = [figure_row(figure) for figure in found.figures]
    table = axes.table(rows, colLabels=HEADINGS, loc="center left", cellLoc="right", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(8.5)
    table.scale(1, 1.6)
    table.auto_set_column_width(list(range(len(HEADINGS))))
    for row_idx, figure in enumerate(found.figures, start=1):
        table[row_idx, len(HEADINGS) - 1].get_text().set_color(COLORS[figure.verdict])


def _range_ms(found: DirectionReport, direction: Direction) -> tuple[float, float]:
    """Return a non-empty range that holds nearly all packets, measured and expected."""
    ordered = sorted(found.delays_ms) or [0.0]
    low, high = ordered[0], ordered[int(SHOWN * (len(ordered) - 1))]
    if direction.trace is None:
        low, high = min(low, direction.quantile_s(1e-9) * 1000), max(high, direction.quantile_s(SHOWN) * 1000)
    room = max(0.1, 0.05 * (high - low))
    return low - room, high + room


def _shares(delays_ms: tuple[float, ...] | list[float], low: float, high: float) -> list[float]:
    counts = [0] * BINS
    for delay in delays_ms:
        place = math.floor((delay - low) / (high - low) * BINS)
        if 0 <= place < BINS:
            counts[place] += 1
    return [count / max(1, len(delays_ms)) for count in counts]


def _without_peak(shares: list[float]) -> list[float]:
    """Return all but the two highest: delays cut at 0 pile up in a bin, or on the border of two."""
    return sorted(shares)[:-2]


def _peak(top: float, claimed: list[float], measured: list[float]) -> str:
    """Return a note on the highest bin and its neighbors if it does not fit into the plot."""
    highest = max(claimed)
    if highest <= top:
        return ""
    place = claimed.index(highest)
    near = slice(max(0, place - 1), place + 2)
    return f" (peak cut off: {sum(claimed[near]):.1%} of packets in the profile, {sum(measured[near]):.1%} measured)"
