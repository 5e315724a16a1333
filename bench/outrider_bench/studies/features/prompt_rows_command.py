"""The command that measures what a part of a prompt's features is worth."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console

from outrider_bench.core.acceptance import SHAPES
from outrider_bench.core.long_prompts import lengthened
from outrider_bench.core.options import JsonOption, NewTokensOption, PerFamilyOption, TargetOption, target_of
from outrider_bench.core.progress import Counter, Step, progress_line
from outrider_bench.core.prompts import Question, questions
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import table
from outrider_bench.studies.features.prompt_rows import Part, measure_parts, parts
from outrider_bench.studies.features.staleness import Share, recorded
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_models.core.embedded import drafter_dir
from outrider_proto.errors import UsageError
from outrider_server.engine.target import Target

console = Console(stderr=True)
Shares = Mapping[str, Share]  # by what is there of a prompt's features, all of them first


def prompt_rows_command(
    target: TargetOption = None,
    drafter: Annotated[str | None, typer.Option(help="Directory of a MoA drafter without TLI; the embedded.")] = None,
    rows: Annotated[str, typer.Option(help="How many of a prompt's features are there.")] = "8,16,32",
    prompt_tokens: Annotated[int, typer.Option(min=0, help="Of each prompt at least: others are lengthened.")] = 0,
    per_family: PerFamilyOption = 12,
    max_new_tokens: NewTokensOption = 48,
    json: JsonOption = None,
) -> None:
    """Acceptance with the newest or the oldest of a prompt's features alone, chain and tree."""
    chosen = parts(_numbers(rows))
    directory = target_of(target)
    source = drafter_dir("moa") if drafter is None else resolve_dir(drafter)
    asked = _asked(directory, per_family, prompt_tokens)
    with progress_line() as step:
        results = asyncio.run(_measure(directory, source, asked, chosen, max_new_tokens, step))
    lengths = sorted(len(question.prompt) for question in asked)
    console.print(f"{len(asked)} prompts of {lengths[0]} to {lengths[-1]} tokens, median {median(lengths):g}")
    for shape, shares in results.items():
        told = [_row(name, one) for name, one in shares.items()]
        console.print(table(shape, ("features of the prompt", "tau", "share", "95 %"), told))
    by_shape = {shape: {name: asdict(one) for name, one in shares.items()} for shape, shares in results.items()}
    write_report(json, {"prompt_lengths": lengths, "max_new_tokens": max_new_tokens, "shares": by_shape})


def _asked(directory: Path, per_family: int, least: int) -> list[Question]:
    models = LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER))
    return lengthened(questions(models, per_family), models, least)


async def _measure(
    directory: Path, source: Path, asked: Sequence[Question], chosen: Sequence[Part], limit: int, step: Step
) -> dict[str, Shares]:
    """By shape of the trees."""
    target = Target.load(str(directory))
    answers = plain_answers(target, asked, limit, step)
    drafter, recordings = await recorded(target, directory, source, asked, answers)
    names = ["all", *(f"{part.end} {part.rows}" for part in chosen)]
    results: dict[str, Shares] = {}
    for shape, plan in SHAPES.items():
        shares = measure_parts(drafter, recordings, plan, chosen, Counter(step, shape, len(names)))
        results[shape] = dict(zip(names, shares, strict=True))
    return results


def _row(name: str, one: Share) -> tuple[str, ...]:
    return name, f"{one.tau:.2f}", f"{one.share:.3f}", f"{one.low:.3f}-{one.high:.3f}"


def _numbers(text: str) -> list[int]:
    numbers = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if min(numbers) < 1:
        raise UsageError(f"rows={text!r}: need whole numbers from 1 on, separated by commas")
    return numbers
