"""The command that measures what a private prompt costs in quality."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from outrider_bench.core.progress import Step, progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import table
from outrider_bench.studies.serving.privacy import Quality, quality
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_models.core.embedded import PAIR, drafter_source, target_dir
from outrider_server.engine.target import Target

console = Console(stderr=True)


def privacy_command(
    target: Annotated[str | None, typer.Option(help="Directory or hub name of the target; default: embedded.")] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="Embedded drafter or directory; moa, eagle2, independent. Repeatable."),
    ] = None,
    per_family: Annotated[int, typer.Option(min=1, help="Held-out prompts of each family.")] = 100,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="New tokens an answer.")] = 128,
    json: Annotated[Path | None, typer.Option("--json", help="Write the report here; - for standard output.")] = None,
) -> None:
    """Right answers that need a private fact, in every way to keep it."""
    directory = target_dir() if target is None else resolve_dir(target)
    with progress_line() as step:
        measured = asyncio.run(_measure(directory, drafter or [*PAIR, "independent"], per_family, max_new_tokens, step))
    for name, result in measured.items():
        console.print(_table(f"{name}: share of right answers", result.shares, result))
        if result.agreement:
            console.print(_table(f"{name}: share of the target's next tokens foretold", result.agreement, result))
    write_report(json, {"drafters": {name: asdict(result) for name, result in measured.items()}})


async def _measure(directory: Path, names: list[str], per_family: int, limit: int, step: Step) -> dict[str, Quality]:
    target = Target.load(str(directory))
    return {name: await quality(directory, drafter_source(name), per_family, limit, target, step) for name in names}


def _table(title: str, shares: Mapping[str, Mapping[str, float]], result: Quality) -> Table:
    rows = [[way, *_cells(by_family)] for way, by_family in shares.items()]
    rows.append(["(safe share of the prompt)", *_cells(result.safe_share)])
    return table(title, ("way", *(f"{family} ({count})" for family, count in result.asked.items())), rows)


def _cells(by_family: Mapping[str, float]) -> list[str]:
    return [f"{share:.2f}" for share in by_family.values()]
