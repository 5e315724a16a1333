"""Plot the distribution of a profile's delays: density and cumulative share, one panel per direction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outrider_netsim.core.errors import EngineError, ProfileError
from outrider_netsim.profiles.profile import Direction, Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 20_000
BINS = 120
SHOWN = 0.999  # of the packets
FORMATS = (".png", ".svg", ".pdf")


def save_plot(profile: Profile, file: Path) -> None:
    """Draw to `file` in the format of its suffix. Raises ProfileError, or EngineError without matplotlib."""
    if file.suffix.lower() not in FORMATS:
        raise ProfileError(f"{file}: need a name that ends in {', '.join(FORMATS)}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EngineError("pictures need matplotlib: pip install 'outrider[netsim]'") from None
    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(f"{profile.name}: one-way delay of a lone small packet")
    axes = figure.subplots(1, 2, sharey=True)
    most_ms = max(_shown_ms(profile.up), _shown_ms(profile.down))
    for name, direction, panel in (("up", profile.up, axes[0]), ("down", profile.down, axes[1])):
        _draw(panel, name, direction, most_ms)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        raise ProfileError(f"{file}: cannot be written: {error.strerror or error}") from None


def _draw(panel: Axes, name: str, direction: Direction, most_ms: float) -> None:
    shares = (np.arange(POINTS) + 0.5) / POINTS
    delays_ms = np.array([1000 * direction.quantile_s(share) for share in shares])
    counts, edges = np.histogram(delays_ms, bins=BINS, range=(0, most_ms))
    # Holds every delay that was cut at 0.
    spike = np.searchsorted(edges, direction.base_ms, side="right") - 1
    others = np.delete(counts, spike).max() or counts.max()
    panel.stairs(np.minimum(counts / others, 1), edges, fill=True, alpha=0.4, label="how likely (likeliest: 1)")
    panel.plot(delays_ms, shares, label="share of packets below")
    panel.axvline(direction.mean_delay_ms, color="black", linestyle=":", label="mean")
    mean, deviation = direction.mean_delay_ms, direction.delay_deviation_ms
    panel.set_title(f"{name}: mean {mean:.1f} ms, deviation {deviation:.1f} ms, loss {direction.mean_loss:.2%}")
    panel.set_xlabel("ms")
    panel.set_xlim(0, most_ms)
    panel.set_ylim(0, 1.05)


def _shown_ms(direction: Direction) -> float:
    return max(1.0, 1.1 * 1000 * direction.quantile_s(SHOWN))
