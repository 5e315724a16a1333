"""The command that measures what late and coarse features cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from outrider_bench.acceptance import SHAPES
from outrider_bench.progress import Counter, Step, progress_line
from outrider_bench.prompts import by_family, questions
from outrider_bench.report import write_report
from outrider_bench.staleness import EXACT, Cell, Measured, cells, measure, recorded
from outrider_bench.staleness_walk import Lag
from outrider_bench.tables import table
from outrider_bench.target_alone import plain_answers
from outrider_client.config import NO_DRAFTER, ClientConfig
from outrider_client.local_models import LocalModels
from outrider_drafters.frozen import resolve_dir
from outrider_models.embedded import DRAFTERS, drafter_dir, target_dir
from outrider_server.target import Target

DEFAULT = ("moa", "eagle2", "eagle3", "independent")
console = Console(stderr=True)
Results = dict[str, dict[str, list[Measured]]]


def staleness_command(
    target: Annotated[str | None, typer.Option(help="Directory or hub name of the target; default: embedded.")] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option("--drafter", help=f"Embedded drafter or directory, repeatable; default: {', '.join(DEFAULT)}."),
    ] = None,
    per_family: Annotated[int, typer.Option(min=1, help="Held-out prompts of each family.")] = 80,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="New tokens an answer.")] = 96,
    json: Annotated[Path | None, typer.Option("--json", help="Write the report here; - for standard output.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the results here (PNG).")] = None,
) -> None:
    """Acceptance against how late features are and how many bits they have, chain and tree."""
    directory = target_dir() if target is None else resolve_dir(target)
    drafters = {name: drafter_dir(name) if name in DRAFTERS else resolve_dir(name) for name in drafter or DEFAULT}
    with progress_line() as step:
        results = asyncio.run(_measure(directory, drafters, per_family, max_new_tokens, step))
    for name, by_shape in results.items():
        for shape, measured in by_shape.items():
            console.print(_table(name, shape, measured))
    write_report(
        json,
        {
            "per_family": per_family,
            "max_new_tokens": max_new_tokens,
            "drafters": {
                name: {shape: [asdict(measured) for measured in all_cells] for shape, all_cells in by_shape.items()}
                for name, by_shape in results.items()
            },
        },
    )
    if plot is not None:
        from outrider_bench.staleness_plots import plot_staleness

        plot_staleness(results, plot)


async def _measure(directory: Path, drafters: Mapping[str, Path], per_family: int, limit: int, step: Step) -> Results:
    asked = questions(LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER)), per_family)
    target = Target.load(str(directory))
    answers = plain_answers(target, asked, limit, step)
    results: Results = {}
    for name, path in drafters.items():
        drafter, recordings = await recorded(target, directory, path, asked, answers)
        chosen = cells(has_features=bool(drafter.tap.fingerprint))
        for shape, plan in SHAPES.items():
            counter = Counter(step, f"{name}, {shape}", len(asked))
            measured = measure(drafter, recordings, by_family(asked), plan, chosen, counter)
            results.setdefault(name, {})[shape] = measured
    return results


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
