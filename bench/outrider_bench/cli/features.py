"""Commands about the target's features: codec, staleness, prompt-rows."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from outrider_bench.cli.options import (
    FamiliesOption,
    JsonOption,
    NewTokensOption,
    PerFamilyOption,
    PlotOption,
    QuestionsOption,
    TargetOption,
    drafters_for,
    source_of,
    sources_of,
    target_of,
)
from outrider_bench.core.progress import progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import show, show_line

CODEC_DRAFTERS = ("moa", "eagle2", "eagle3")
STALENESS_DRAFTERS = ("moa", "eagle2", "eagle3", "independent")
ManyPerFamilyOption = Annotated[
    int | None, typer.Option(min=1, help="Questions per family; default: 80, of --questions all of a category.")
]


def codec_command(
    target: TargetOption = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            help="Name of one that ships, or DIR[,option=value...]; repeatable; default: "
            f"{', '.join(CODEC_DRAFTERS)} of the embedded target, or all that ship for another.",
        ),
    ] = None,
    questions: QuestionsOption = None,
    families: FamiliesOption = None,
    per_family: ManyPerFamilyOption = None,
    max_new_tokens: NewTokensOption = 96,
    json: JsonOption = None,
) -> None:
    """Measure bytes, microseconds and acceptance of every feature codec, against the paper's."""
    from outrider_bench.studies.features.codec import codec_table, coder_table, measure_codecs

    directory = target_of(target)
    asked = source_of(directory, questions, families)
    drafters = sources_of(drafters_for(directory, drafter, CODEC_DRAFTERS))
    count = _per_family(per_family, questions)
    with progress_line() as step:
        results = asyncio.run(measure_codecs(directory, drafters, asked, count, max_new_tokens, step))
    for name, result in results.items():
        show(codec_table(name, result), coder_table(name, result))
    by_drafter = {name: asdict(result) for name, result in results.items()}
    write_report(json, {"per_family": count, "max_new_tokens": max_new_tokens, "drafters": by_drafter})


def staleness_command(
    target: TargetOption = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            help="Name of one that ships, or DIR[,option=value...]; repeatable; default: "
            f"{', '.join(STALENESS_DRAFTERS)} of the embedded target, or all that ship for another.",
        ),
    ] = None,
    questions: QuestionsOption = None,
    families: FamiliesOption = None,
    per_family: ManyPerFamilyOption = None,
    max_new_tokens: NewTokensOption = 96,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Measure acceptance with late features and with coarse ones, for chains and trees."""
    from outrider_bench.studies.features.staleness import measure_staleness, staleness_as_dict, staleness_table

    directory = target_of(target)
    asked = source_of(directory, questions, families)
    drafters = sources_of(drafters_for(directory, drafter, STALENESS_DRAFTERS))
    count = _per_family(per_family, questions)
    with progress_line() as step:
        results = asyncio.run(measure_staleness(directory, drafters, asked, count, max_new_tokens, step))
    for name, by_shape in results.items():
        for shape, measured in by_shape.items():
            show(staleness_table(name, shape, measured))
    report = {"per_family": count, "max_new_tokens": max_new_tokens, "drafters": staleness_as_dict(results)}
    write_report(json, report)
    if plot is not None:
        from outrider_bench.studies.features.staleness_plots import plot_staleness

        plot_staleness(results, plot)


def _per_family(given: int | None, questions: Path | None) -> int | None:
    return 80 if given is None and questions is None else given


def prompt_rows_command(
    target: TargetOption = None,
    drafter: Annotated[
        str | None, typer.Option(help="Directory of a MoA drafter without TLI; default: the embedded one.")
    ] = None,
    rows: Annotated[
        str, typer.Option(help="Numbers of the prompt's feature rows to draft with, separated by commas.")
    ] = "8,16,32",
    prompt_tokens: Annotated[
        int, typer.Option(min=0, help="Lengthen prompts to at least this many tokens; 0 leaves them as they are.")
    ] = 0,
    per_family: PerFamilyOption = 12,
    max_new_tokens: NewTokensOption = 48,
    json: JsonOption = None,
) -> None:
    """Measure acceptance with only the newest or the oldest feature rows of a prompt, for chains and trees."""
    from statistics import median

    from outrider_bench.studies.features.prompt_rows import (
        ask_long_prompts,
        measure_shares,
        prompt_row_choices,
        prompt_rows_table,
        read_row_counts,
    )
    from outrider_drafters.checkpoints.target_weights import resolve_dir
    from outrider_models.core.embedded import drafter_source

    chosen = prompt_row_choices(read_row_counts(rows))
    directory = target_of(target)
    source = resolve_dir(drafter_source("moa" if drafter is None else str(drafter)))
    asked = ask_long_prompts(directory, per_family, prompt_tokens)
    with progress_line() as step:
        results = asyncio.run(measure_shares(directory, source, asked, chosen, max_new_tokens, step))
    lengths = sorted(len(question.prompt) for question in asked)
    show_line(f"{len(asked)} prompts of {lengths[0]} to {lengths[-1]} tokens, median {median(lengths):g}")
    for shape, shares in results.items():
        show(prompt_rows_table(shape, shares))
    by_shape = {shape: {name: asdict(one) for name, one in shares.items()} for shape, shares in results.items()}
    write_report(json, {"prompt_lengths": lengths, "max_new_tokens": max_new_tokens, "shares": by_shape})
