"""Colors of all plots, and a figure that is saved once it is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#4C78A8", "#F58518", "#54A24B", "#B279A2", "#E45756", "#72B7B2")


@contextmanager
def saved_figure(
    path: Path,
    rows: int = 1,
    columns: int = 1,
    **options: Any,  # Any: options of plt.subplots
) -> Iterator[tuple[Figure, Any]]:  # Any: axes, or an array of them
    """Yield a figure and its axes, and write it to `path` as PNG afterwards."""
    import matplotlib as mpl

    # Agg needs no display. It has to be chosen before pyplot is imported.
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(rows, columns, layout="constrained", **options)
    yield figure, axes
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def reaches(
    figures: Mapping[str, float], intervals: Mapping[str, tuple[float, float] | None]
) -> tuple[list[float], list[float]]:
    """Return how far the figures' intervals reach below and above them, as error bars want it; 0 without interval."""
    ends = [intervals.get(name) or (figure, figure) for name, figure in figures.items()]
    # The median of a sample may lie outside the interval that its resamples give, by rounding.
    return (
        [max(figure - low, 0.0) for figure, (low, _) in zip(figures.values(), ends, strict=True)],
        [max(high - figure, 0.0) for figure, (_, high) in zip(figures.values(), ends, strict=True)],
    )
