"""Colors of all plots, and a figure that is saved once it is drawn."""

from __future__ import annotations

from collections.abc import Iterator
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
