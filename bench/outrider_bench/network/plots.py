"""Plots of a report's cases: speed by variant and profile, and the split of a token's time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from outrider_bench.core.plots import COLORS, reaches, saved_figure
from outrider_bench.network.link_endpoint import NO_LINK
from outrider_bench.network.report import ReportedCase
from outrider_bench.network.variants import SERVER_DRAFT, STREAM

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OF_CONTROLS = {STREAM: "#9D9D9D", SERVER_DRAFT: "#5F5F5F"}
_PARTS = ("draft", "wire", "queue", "server_draft", "verify", "wait")


def plot_network(cases: Sequence[ReportedCase], path: Path, machine: str = "") -> None:
    """Plot tokens per second with whiskers for their intervals, and below it the split of a token's time.

    `machine` is named below: that on which they were measured.
    """
    wide = max(7.0, 1.1 * sum(len(case.ways) for case in cases))
    with saved_figure(path, 2, 1, figsize=(wide, 8.5)) as (figure, (above, below)):
        _plot_speeds(above, cases)
        _plot_splits(below, cases)
        figure.suptitle(_heading(cases), fontsize="medium")
        figure.supxlabel("\n".join(filter(None, (_footnote(cases), machine))), fontsize="x-small")


def _plot_speeds(axes: Axes, cases: Sequence[ReportedCase]) -> None:
    names = list(dict.fromkeys(way for case in cases for way in case.ways))
    colors = _OF_CONTROLS | dict(zip((n for n in names if n not in _OF_CONTROLS), cycle(COLORS), strict=False))
    width = 0.85 / len(names)
    for number, name in enumerate(names):
        with_it = {place: case.ways[name] for place, case in enumerate(cases) if name in case.ways}
        places = [place + (number - (len(names) - 1) / 2) * width for place in with_it]
        heights = {f"{place}": figures["tokens_per_second"] or 0.0 for place, figures in with_it.items()}
        intervals = {f"{place}": figures.get("tokens_per_second_ci95") for place, figures in with_it.items()}
        reach = reaches(heights, intervals)
        speeds, label = list(heights.values()), _in_legend(cases, name)
        bars = axes.bar(places, speeds, width * 0.9, yerr=reach, label=label, color=colors[name])
        axes.bar_label(bars, fmt="%.0f", fontsize="small", padding=2)
    for place, case in enumerate(cases):
        if (ideal := case.ideal_stream["tokens_per_second"]) is not None:
            axes.hlines(ideal, place - 0.45, place + 0.45, linestyles="dotted", color="black", linewidth=1)
    axes.set_xticks(range(len(cases)), [_label(case) for case in cases])
    axes.set_ylabel("tokens a second, while decoding")
    axes.set_ylim(top=axes.get_ylim()[1] * 1.25)  # room for the legend
    axes.legend(
        frameon=False, fontsize="small", ncols=2 if any("," in name for name in names) else 4, loc="upper center"
    )


def _plot_splits(axes: Axes, cases: Sequence[ReportedCase]) -> None:
    labels, splits = [], []
    for case in cases:
        for way, figures in case.ways.items():
            labels.append(f"{case.label(way)}\n{_label(case)}" if len(cases) > 1 else case.label(way))
            splits.append(figures["split_ms"])
    floor = [0.0] * len(splits)
    for number, part in enumerate(_PARTS):
        heights = [split.get(part, 0.0) for split in splits]
        axes.bar(range(len(splits)), heights, 0.8, bottom=floor, label=part.replace("_", " "), color=COLORS[number])
        floor = [below + height for below, height in zip(floor, heights, strict=True)]
    axes.set_xticks(range(len(labels)), labels, fontsize="small", rotation=20, ha="right")
    axes.set_ylabel("ms of a token's time (parts may overlap)")
    axes.set_ylim(top=axes.get_ylim()[1] * 1.15)
    axes.legend(frameon=False, fontsize="small", ncols=len(_PARTS))


def _heading(cases: Sequence[ReportedCase]) -> str:
    pace = cases[0].pace
    compute = "not paced" if pace is None else f"paced as {pace}: compute times are those of the named hardware"
    extents = ", ".join(dict.fromkeys(case.extent for case in cases))
    return f"{extents}\n{compute}"


def _footnote(cases: Sequence[ReportedCase]) -> str:
    engines = ", ".join(dict.fromkeys(case.engine for case in cases))
    asked = f"whiskers: 95 % intervals; dotted: the ideal stream, 1000 / T_v; trees: {cases[0].tree_text}"
    return f"{asked}, engine {engines}"


def _in_legend(cases: Sequence[ReportedCase], name: str) -> str:
    """Return a variant's label, and its options if it has any."""
    label, options = next(case for case in cases if name in case.ways).label(name), name.partition(",")[2]
    return f"{label} ({options})" if options else label


def _label(case: ReportedCase) -> str:
    link = "no link" if case.profile == NO_LINK else case.profile
    return f"{case.drafter}, {link}, seed {case.seed}"
