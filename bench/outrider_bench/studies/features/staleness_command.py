"""The command that measures what late and coarse features cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from outrider_bench.core.options import (
    JsonOption,
    NewTokensOption,
    PerFamilyOption,
    PlotOption,
    TargetOption,
    drafters_of,
    target_of,
)
from outrider_bench.core.progress import Step, progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import table
from outrider_bench.studies.features.answered import Answered
from outrider_bench.studies.features.staleness import EXACT, Cell, Measured, cells
from outrider_bench.studies.features.staleness_walk import Lag

DEFAULT = ("moa", "eagle2", "eagle3", "independent")
DraftersOption = Annotated[
    list[str] | None,
    typer.Option("--drafter", help=f"Embedded drafter or directory, repeatable; default: {', '.join(DEFAULT)}."),
]
console = Console(stderr=True)
Results = dict[str, dict[str, list[Measured]]]


def staleness_command(
    target: TargetOption = None,
    drafter: DraftersOption = None,
    per_family: PerFamilyOption = 80,
    max_new_tokens: NewTokensOption = 96,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Acceptance against how late features are and how many bits they have, chain and tree."""
    directory, drafters = target_of(target), drafters_of(drafter or DEFAULT)
    with progress_line() as step:
        results = asyncio.run(_measure(directory, drafters, per_family, max_new_tokens, step))
    for name, by_shape in results.items():
        for shape, measured in by_shape.items():
            console.print(_table(name, shape, measured))
    write_report(json, {"per_family": per_family, "max_new_tokens": max_new_tokens, "drafters": _told(results)})
    if plot is not None:
        from outrider_bench.studies.features.staleness_plots import plot_staleness

        plot_staleness(results, plot)


async def _measure(directory: Path, drafters: Mapping[str, Path], per_family: int, limit: int, step: Step) -> Results:
    answered = Answered.by(directory, per_family, limit, step)
    results: Results = {}
    for name, path in drafters.items():
        drafter, recordings = await answered.recorded(path)
        chosen = cells(has_features=bool(drafter.tap.fingerprint))
        results[name] = answered.measured(name, drafter, recordings, chosen, step)
    return results


def _told(results: Results) -> dict[str, Any]:  # Any: a report's content
    return {
        name: {shape: [asdict(measured) for measured in all_cells] for shape, all_cells in by_shape.items()}
        for name, by_shape in results.items()
    }


def _table(name: str, shape: str, measured: Sequence[Measured]) -> Table:
    columns = ("", "tau", "share", "95 %", "worst family")
    return table(
        f"{name}, {shape}: tau, and its share of that with all features", columns, [_row(one) for one in measured]
    )


def _row(measured: Measured) -> tuple[str, ...]:
    overall = measured.overall
    worst = min(measured.by_family, key=lambda family: measured.by_family[family].share)
    return (
        label(measured.cell),
        f"{overall.tau:.2f}",
        f"{overall.share:.3f}",
        f"{overall.low:.3f}-{overall.high:.3f}",
        f"{worst} {measured.by_family[worst].share:.3f}",
    )


def label(cell: Cell) -> str:
    lag = _counted(cell.lag.verdicts, "verdict") if cell.lag.verdicts else _counted(cell.lag.tokens, "token")
    parts = [cell.coding] * (cell.coding != EXACT) + [f"{lag} late"] * (cell.lag != Lag())
    return ", ".join(parts) or "all there"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"
