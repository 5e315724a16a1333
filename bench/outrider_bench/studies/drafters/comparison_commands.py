"""The commands that compare drafters: all of them on the same prompts, and one of them level by level."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from outrider_bench.core.in_process_pair import papers_loop
from outrider_bench.core.progress import progress_line
from outrider_bench.core.prompts import questions
from outrider_bench.core.report import write_report
from outrider_bench.studies.drafters.comparison import Comparison, Controls, Entrant, compare
from outrider_bench.studies.drafters.comparison_tables import families_table, positions_table, speeds_table, sweep_table
from outrider_client.cli.options import tree_plan
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_drafters.contracts.tree_shape import TreePlan, TreeShape
from outrider_models.core.embedded import DRAFTERS, drafter_source, target_dir
from outrider_server.engine.target import Target

TargetOption = Annotated[str | None, typer.Option(help="Directory or hub name of the target; default: the embedded.")]
DraftersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter", help="Embedded name, DIR[,option=value...] or lookup; repeatable; default: all embedded."
    ),
]
AssistantsOption = Annotated[
    list[Path] | None,
    typer.Option("--assistant", help="Small model for transformers' assisted generation; repeatable."),
]
PerFamilyOption = Annotated[int, typer.Option(min=1, help="Held-out prompts of each category.")]
LimitOption = Annotated[int, typer.Option(min=1, help="New tokens an answer.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the report here; - for standard output.")]
PlotOption = Annotated[Path | None, typer.Option(help="Draw the results here (PNG).")]
console = Console(stderr=True)


def drafters_command(
    target: TargetOption = None,
    drafter: DraftersOption = None,
    assistant: AssistantsOption = None,
    per_family: PerFamilyOption = 10,
    max_new_tokens: LimitOption = 128,
    breadth: Annotated[int | None, typer.Option(help="Of the trees; default: each drafter's own.")] = None,
    levels: Annotated[int | None, typer.Option(help="As above.")] = None,
    budget: Annotated[int | None, typer.Option(help="As above.")] = None,
    choices: Annotated[str | None, typer.Option(help="Fixed trees for all: a shipped set's name or a file.")] = None,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Acceptance, cost and speed of drafters, against the plain loop and transformers' own ways, in one run."""
    plan = tree_plan(choices, breadth=breadth, levels=levels, budget=budget)
    entrants = {_label(name): _entrant(target, name, plan) for name in drafter or DRAFTERS}
    result = _compare(target, entrants, assistant, per_family, max_new_tokens)
    for table in (families_table, positions_table, speeds_table):
        console.print(table(result))
    write_report(json, asdict(result))
    if plot is not None:
        from outrider_bench.studies.drafters.comparison_plots import plot_comparison

        plot_comparison(result, plot)
    _fail_unless_exact(result)


def depth_sweep_command(
    target: TargetOption = None,
    drafter: Annotated[str, typer.Option(help="As for drafters.")] = DRAFTERS[0],
    levels: Annotated[int, typer.Option(min=1, max=32, help="Chains of 1 to so many levels.")] = 8,
    per_family: PerFamilyOption = 5,
    max_new_tokens: LimitOption = 128,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Acceptance and speed of one drafter's chains against their depth; 1/n is what a chain reaches whose first token
    alone is ever accepted."""
    entrants = {str(n): _entrant(target, drafter, TreeShape.chain(n)) for n in range(1, levels + 1)}
    result = _compare(target, entrants, None, per_family, max_new_tokens)
    console.print(sweep_table(_label(drafter), result))
    write_report(json, {"drafter": _label(drafter), **asdict(result)})
    if plot is not None:
        from outrider_bench.studies.drafters.comparison_plots import plot_sweep

        plot_sweep(_label(drafter), result, plot)
    _fail_unless_exact(result)


def _compare(
    target: str | None, entrants: dict[str, Entrant], assistants: list[Path] | None, per_family: int, limit: int
) -> Comparison:
    directory = _target(target)
    asked = questions(LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER)), per_family)
    controls = Controls.load(directory, {path.name: path for path in assistants or ()}, limit)
    with progress_line() as step:
        return asyncio.run(compare(entrants, controls, Target.load(str(directory)), asked, step))


def _entrant(target: str | None, drafter: str, plan: TreePlan | None) -> Entrant:
    return Entrant(papers_loop(target=_target(target), drafter=drafter_source(drafter)), plan)


def _label(drafter: str) -> str:
    """Of a directory and its options the last part of the path."""
    return drafter.rsplit("/", 1)[-1]


def _target(target: str | None) -> Path:
    return target_dir() if target is None else resolve_dir(target)


def _fail_unless_exact(result: Comparison) -> None:
    if any(drafted.mismatches for drafted in result.drafters.values()):
        raise typer.Exit(1)
