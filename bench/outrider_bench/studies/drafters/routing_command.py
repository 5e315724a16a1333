"""The command that measures routing between heads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from outrider_bench.core.in_process_pair import papers_loop
from outrider_bench.core.progress import Step, progress_line
from outrider_bench.core.prompts import questions
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import table
from outrider_bench.studies.drafters.routing import Outcome, compare_ways, ways
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_drafters.load import open_source
from outrider_models.core.embedded import drafter_source, target_dir
from outrider_server.engine.target import Target

DOMAIN_HEADS = ("eagle2_math", "eagle2_chat")
console = Console(stderr=True)


def routing_command(
    target: Annotated[str | None, typer.Option(help="Directory or hub name of the target; default: embedded.")] = None,
    heads: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Two drafters for one target; default: the embedded heads for math and for chat."),
    ] = None,
    gate: Annotated[float, typer.Option(help="Probability that spares the second head.")] = 0.8,
    per_family: Annotated[int, typer.Option(min=1, help="Held-out prompts of each category.")] = 10,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="New tokens an answer.")] = 128,
    json: Annotated[Path | None, typer.Option("--json", help="Write the report here; - for standard output.")] = None,
) -> None:
    """Two heads, each alone and routed: acceptance against what the second head costs."""
    directory = target_dir() if target is None else resolve_dir(target)
    names = heads or DOMAIN_HEADS
    chosen = (drafter_source(names[0]), drafter_source(names[1]))
    for head in chosen:
        open_source(DrafterSource.parse(head))  # refuse it before the target has answered everything
    with progress_line() as step:
        outcomes = asyncio.run(_measure(directory, chosen, gate, per_family, max_new_tokens, step))
    for show in (_tau_table, _cost_table):
        console.print(show(outcomes))
    write_report(
        json, {"heads": names, "gate": gate, "ways": {name: asdict(outcome) for name, outcome in outcomes.items()}}
    )
    if any(outcome.mismatches for outcome in outcomes.values()):
        raise typer.Exit(1)


async def _measure(
    directory: Path, heads: tuple[str, str], gate: float, per_family: int, limit: int, step: Step
) -> dict[str, Outcome]:
    asked = questions(LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER)), per_family)
    target = Target.load(str(directory))
    expected = plain_answers(target, asked, limit, step)
    return await compare_ways(ways(heads, gate), papers_loop(target=directory), target, asked, expected, step)


def _tau_table(outcomes: Mapping[str, Outcome]) -> Table:
    categories = list(next(iter(outcomes.values())).tau)
    rows = [
        [name, *(f"{outcome.tau[category]:.2f}" for category in categories), f"{outcome.overall:.2f}"]
        for name, outcome in outcomes.items()
    ]
    return table("mean acceptance length (tokens per verdict, bonus included)", ("way", *categories, "all"), rows)


def _cost_table(outcomes: Mapping[str, Outcome]) -> Table:
    """The routing report's routers always take +100 % trees."""
    counted = ("trees/1000 tokens", "extra trees", "passes/1000 tokens")
    columns = ("way", *counted, "skipped", "draft ms a cycle", "sent", "not exact")
    rows = [
        [
            name,
            f"{outcome.drafts_per_1000_tokens:.0f}",
            f"{outcome.extra_drafts:+.0%}",
            f"{outcome.passes_per_1000_tokens:.0f}",
            f"{outcome.skipped:.0%}",
            f"{outcome.draft_ms:.2f}",
            " / ".join(f"{share:.0%}" for share in outcome.shares.values()),
            f"{outcome.mismatches}",
        ]
        for name, outcome in outcomes.items()
    ]
    return table("what it takes to draft", columns, rows)
