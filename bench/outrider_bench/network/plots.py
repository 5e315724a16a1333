"""Plots of scenarios: speed by variant and profile, and the split of a token's time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from outrider_bench.core.plots import COLORS, saved_figure
from outrider_bench.core.report import provenance
from outrider_bench.network.link_endpoint import NO_LINK
from outrider_bench.network.report import Scenario
from outrider_bench.network.variants import SERVER_DRAFT, STREAM

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OF_CONTROLS = {STREAM: "#9D9D9D", SERVER_DRAFT: "#5F5F5F"}
_PARTS = ("draft", "wire", "queue", "server_draft", "verify", "wait")


def plot_network(scenarios: Sequence[Scenario], path: Path) -> None:
    """Plot tokens per second with whiskers for their intervals, and below it the split of a token's time."""
    wide = max(7.0, 1.1 * sum(len(scenario.variants) for scenario in scenarios))
    with saved_figure(path, 2, 1, figsize=(wide, 8.5)) as (figure, (above, below)):
        _plot_speeds(above, scenarios)
        _plot_splits(below, scenarios)
        figure.suptitle(_heading(scenarios), fontsize="medium")
        figure.supxlabel(_footnote(scenarios), fontsize="x-small")


def _plot_speeds(axes: Axes, scenarios: Sequence[Scenario]) -> None:
    names = list(dict.fromkeys(variant.name for scenario in scenarios for variant in scenario.variants))
    colors = _OF_CONTROLS | dict(zip((n for n in names if n not in _OF_CONTROLS), cycle(COLORS), strict=False))
    width = 0.85 / len(names)
    for number, name in enumerate(names):
        with_it = [
            (place, scenario)
            for place, scenario in enumerate(scenarios)
            if any(variant.name == name for variant in scenario.variants)
        ]
        places = [place + (number - (len(names) - 1) / 2) * width for place, _ in with_it]
        heights = [_median(scenario, name) for _, scenario in with_it]
        ends = [scenario.interval(name, "tokens_per_second") or (0.0, 0.0) for _, scenario in with_it]
        reach = [
            # A median may lie outside the interval of resampled medians by a hair, and no whisker is negative.
            [max(height - low, 0.0) if low else 0.0 for height, (low, _) in zip(heights, ends, strict=True)],
            [max(high - height, 0.0) if high else 0.0 for height, (_, high) in zip(heights, ends, strict=True)],
        ]
        bars = axes.bar(places, heights, width * 0.9, yerr=reach, label=_in_legend(scenarios, name), color=colors[name])
        axes.bar_label(bars, fmt="%.0f", fontsize="small", padding=2)
    for place, scenario in enumerate(scenarios):
        if isinstance(ideal := scenario.ideal_stream["tokens_per_second"], float):
            axes.hlines(ideal, place - 0.45, place + 0.45, linestyles="dotted", color="black", linewidth=1)
    axes.set_xticks(range(len(scenarios)), [_label(scenario) for scenario in scenarios])
    axes.set_ylabel("tokens a second, while decoding")
    axes.set_ylim(top=axes.get_ylim()[1] * 1.25)  # room for the legend
    axes.legend(
        frameon=False, fontsize="small", ncols=2 if any("," in name for name in names) else 4, loc="upper center"
    )


def _plot_splits(axes: Axes, scenarios: Sequence[Scenario]) -> None:
    labels, splits = [], []
    for scenario in scenarios:
        for variant in scenario.variants:
            split = scenario.medians_of(variant.name)["split_ms"]
            labels.append(
                f"{scenario.label(variant)}\n{_label(scenario)}" if len(scenarios) > 1 else scenario.label(variant)
            )
            splits.append(split if isinstance(split, dict) else {})
    floor = [0.0] * len(splits)
    for number, part in enumerate(_PARTS):
        heights = [split.get(part, 0.0) for split in splits]
        axes.bar(range(len(splits)), heights, 0.8, bottom=floor, label=part.replace("_", " "), color=COLORS[number])
        floor = [below + height for below, height in zip(floor, heights, strict=True)]
    axes.set_xticks(range(len(labels)), labels, fontsize="small", rotation=20, ha="right")
    axes.set_ylabel("ms of a token's time (parts may overlap)")
    axes.set_ylim(top=axes.get_ylim()[1] * 1.15)
    axes.legend(frameon=False, fontsize="small", ncols=len(_PARTS))


def _heading(scenarios: Sequence[Scenario]) -> str:
    pace = scenarios[0].setting.pace
    compute = "not paced" if pace is None else f"paced as {pace}: compute times are those of the named hardware"
    extents = ", ".join(dict.fromkeys(scenario.extent for scenario in scenarios))
    return f"{extents}\n{compute}"


def _footnote(scenarios: Sequence[Scenario]) -> str:
    setting, made = scenarios[0].setting, provenance()
    engines = ", ".join(dict.fromkeys(scenario.setting.engine for scenario in scenarios))
    asked = f"whiskers: 95 % intervals; dotted: the ideal stream, 1000 / T_v; trees: {setting.tree_text}"
    machine = f"{made['processor']}, {made['cores']} cores, load {made['load_average']}"
    return f"{asked}, engine {engines}\n{machine}"


def _in_legend(scenarios: Sequence[Scenario], name: str) -> str:
    """Return a variant's label, and its options if it has any."""
    scenario, variant = next(
        (scenario, variant) for scenario in scenarios for variant in scenario.variants if variant.name == name
    )
    label, options = scenario.label(variant), name.partition(",")[2]
    return f"{label} ({options})" if options else label


def _label(scenario: Scenario) -> str:
    link = "no link" if scenario.setting.profile == NO_LINK else scenario.setting.profile
    return f"{scenario.setting.drafter}, {link}, seed {scenario.setting.seed}"


def _median(scenario: Scenario, name: str) -> float:
    speed = scenario.medians_of(name)["tokens_per_second"]
    return speed if isinstance(speed, float) else 0.0
