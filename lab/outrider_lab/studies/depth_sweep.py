"""Acceptance and speed of drafters by the depth of their chains or trees.

The ways of `comparison` are every drafter with 1, 2, ... levels: all depths answer a prompt before the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from outrider_bench.core.acceptance import ALL
from outrider_bench.core.bootstrap import Interval
from outrider_bench.core.pair import stop_and_wait_config
from outrider_bench.core.plots import COLORS, reaches, saved_figure
from outrider_bench.core.progress import Step
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, table
from outrider_bench.harness.options import sources_of
from outrider_bench.harness.study import Measured, Study
from outrider_bench.studies.drafters.comparison import (
    ComparedRow,
    compare_entries,
    comparison_of,
    drafter_label,
    mismatches_of,
)
from outrider_bench.studies.drafters.comparison_report import MAX_POSITIONS, PLAIN, Comparison, DrafterMetrics, Speed
from outrider_bench.studies.drafters.ways import DrafterEntry
from outrider_lab.studies.options import DepthSweepOptions


@dataclass(frozen=True, slots=True)
class DepthSweep:
    """The comparison's way of each drafter by levels; `breadth` and `budget` of trees, None for chains."""

    ways: Mapping[str, Mapping[int, str]]
    breadth: int | None
    budget: int | None
    comparison: Comparison

    def figures(self, drafter: str) -> Iterator[tuple[int, DrafterMetrics, Speed]]:
        """Yield levels, acceptance and speed."""
        for levels, way in self.ways[drafter].items():
            yield levels, self.comparison.drafters[way], self.comparison.speeds[way]

    @property
    def shape(self) -> str:
        return "chains" if self.budget is None else f"trees of {self.budget} nodes, breadth {self.breadth},"


class DepthSweepStudy(Study[DepthSweepOptions, ComparedRow, DepthSweep]):
    def run(self, taken: Mapping[str, ComparedRow], step: Step) -> Measured[ComparedRow]:
        options = self.options
        sources = sources_of(options.names)
        entries: dict[str, DrafterEntry] = {}
        for name, ways in self._ways().items():
            config = stop_and_wait_config(target=options.directory, drafter=sources[name])
            entries |= {way: DrafterEntry(config, options.shape(levels)) for levels, way in ways.items()}
        few = options.or_all(options.per_family, 5)
        return compare_entries(options, entries, few, taken, step)

    def report(self, rows: Mapping[str, ComparedRow]) -> DepthSweep:
        options = self.options
        tree = None if options.are_chains else options.shape(options.levels)
        breadth, budget = (None, None) if tree is None else (tree.breadth, tree.budget)
        ways = {drafter_label(name): ways for name, ways in self._ways().items()}
        return DepthSweep(ways, breadth, budget, comparison_of(rows))

    @staticmethod
    def tables(report: DepthSweep) -> list[ResultTable]:
        return [depth_table(report, drafter) for drafter in report.ways]

    @staticmethod
    def failures(report: DepthSweep) -> list[str]:
        return mismatches_of(report.comparison)

    @staticmethod
    def plot(report: DepthSweep, path: Path) -> None:
        plot_depths(report, path)

    def _ways(self) -> dict[str, dict[int, str]]:
        depths = range(1, self.options.levels + 1)
        return {name: {levels: f"{drafter_label(name)}, {levels}" for levels in depths} for name in self.options.names}


def depth_table(report: DepthSweep, drafter: str) -> ResultTable:
    rows = [
        [
            f"{levels}",
            f"{drafted.positions.rate:.2f}",
            f"{1 / levels:.2f}",
            plus_minus(drafted.overall, drafted.tau_ci95[ALL], 2),
            " ".join(f"{share:.2f}" for share in drafted.positions.reached[:MAX_POSITIONS]),
            plus_minus(speed.speedup, speed.speedup_ci95, 2),
            plus_minus(speed.tokens_per_s, speed.tokens_per_s_ci95, 0),
        ]
        for levels, drafted, speed in report.figures(drafter)
    ]
    reached = "accepted at least 1, 2, ... (share)"
    columns = ("levels", "accepted / drafted", "1/n", "tau", reached, "x plain", "tokens/s")
    return table(f"{drafter}: {report.shape} of 1 to n levels", columns, rows, caption=OVER_PROMPTS)


def plot_depths(report: DepthSweep, path: Path) -> None:
    """Plot accepted over drafted tokens beside 1/n, tau, and speed, against the number of levels."""
    with saved_figure(path, 1, 3, figsize=(15, 4.5)) as (_, (left, middle, right)):
        for number, drafter in enumerate(report.ways):
            figures = list(report.figures(drafter))
            levels, color = [depth for depth, _, _ in figures], COLORS[number % len(COLORS)]
            left.plot(levels, [drafted.positions.rate for _, drafted, _ in figures], "o-", color=color, label=drafter)
            lengths = {str(depth): (drafted.overall, drafted.tau_ci95[ALL]) for depth, drafted, _ in figures}
            speeds = {str(depth): (speed.speedup, speed.speedup_ci95) for depth, _, speed in figures}
            for axes, values in ((middle, lengths), (right, speeds)):
                heights, errors = _with_errors(values)
                axes.errorbar(levels, heights, errors, fmt="o-", capsize=2, color=color, label=drafter)
        if report.budget is None:
            left.plot(levels, [1 / n for n in levels], "x--", color="grey", label="1/n: only the first is accepted")
        left.set_ylabel("accepted / drafted")
        left.set_ylim(0, 1.02)
        left.legend(frameon=False)
        middle.set_ylabel("tokens a verdict, bonus included")
        right.set_ylabel(f"speed / {PLAIN}")
        right.axhline(1, color="black", linewidth=1)
        for axes in (left, middle, right):
            axes.set_xlabel(f"levels of the {report.shape.rstrip(',')}")


def _with_errors(
    values: Mapping[str, tuple[float, Interval | None]],
) -> tuple[list[float], tuple[list[float], list[float]]]:
    """Return heights, and reaches of their intervals."""
    heights = {name: height for name, (height, _) in values.items()}
    return list(heights.values()), reaches(heights, {name: interval for name, (_, interval) in values.items()})
