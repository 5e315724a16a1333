"""The commands `outrider-lab train`, `corpus`, `prompts` and `answer`: models, and what they are trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from outrider_bench.core.tables import show_line
from outrider_lab.corpus import CorpusSample, Split, generate
from outrider_lab.training.options import AnswerOptions
from outrider_models.core.held_out import FAMILIES, Family
from outrider_proto.errors import UsageError
from outrider_proto.options.command import with_options
from outrider_proto.options.fields import Flag


@dataclass(frozen=True, kw_only=True)
class TrainRecipeOptions:
    """What to train, on what, and where."""

    recipe: Annotated[str, Flag("Recipe of the lab, or a .toml file; trains on the corpus.")]
    out: Annotated[Path, Flag("Directory for the model, its log and its checkpoint.")]
    target: Annotated[
        str | None, Flag("Target to draft for, with the embedded one's tokenizer; default: that one.", expert=True)
    ] = None
    start: Annotated[
        str | None,
        Flag("Start from a drafter's weights: directory, hub name, or name of one that ships.", expert=True),
    ] = None
    resume: Annotated[bool, Flag("Continue from the checkpoint in --out.")] = False
    minutes: Annotated[float | None, Field(gt=0), Flag("Time limit, decay included.", expert=True)] = None


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """What to show or write."""

    family: Annotated[Family | None, Flag("Family of samples; default: all.")] = None
    split: Annotated[Split, Flag("Split of the corpus.", expert=True)] = "train"
    seed: Annotated[int, Flag("Random seed; the same seed gives the same samples.", expert=True)] = 0
    count: Annotated[int, Field(ge=1), Flag("Number of samples of each family.", expert=True)] = 3
    out: Annotated[Path | None, Flag("Write the held-out prompts that ship to this file; show nothing.")] = None


@with_options(TrainRecipeOptions)
def train_command(options: TrainRecipeOptions) -> None:
    """Train a target or a drafter of the embedded models from a recipe."""
    from outrider_lab.training.recipe import RecipeOptions, train_recipe
    from outrider_models.core.embedded import drafter_source

    start = options.start and drafter_source(options.start)
    recipe = RecipeOptions(options.recipe, options.out, options.target, start, options.minutes)
    train_recipe(recipe, resume=options.resume)


@with_options(CorpusOptions)
def corpus_command(options: CorpusOptions) -> None:
    """Show generated samples, or write the prompts that ship."""
    if options.out is not None:
        _write_shipped(options.out)
        return
    families = FAMILIES if options.family is None else (options.family,)
    _show(sample for family in families for sample in generate(family, options.split, options.seed, options.count))


def prompts_command(
    humaneval: Annotated[Path, typer.Argument(help="HumanEval's problems, HumanEval.jsonl.gz, to keep apart.")],
    out: Annotated[Path, typer.Argument(help="File of JSON lines for the prompts.")],
) -> None:
    """Write prompts of real code: signatures and docstrings of functions in the installed packages."""
    from outrider_lab.corpus.functions import function_prompts

    prompts, counts = function_prompts(0, humaneval)
    try:
        out.write_text("".join(json.dumps(asdict(prompt)) + "\n" for prompt in prompts))
    except OSError as error:
        raise UsageError(f"{out}: {error.strerror}") from None
    apart = sum(prompt.held_out for prompt in prompts)
    said = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    show_line(f"{out}: {len(prompts):,} prompts, {apart:,} of them held out; {said}")


@with_options(AnswerOptions)
def answer_command(
    options: AnswerOptions,
    prompts: Annotated[Path, typer.Argument(help="File of `outrider-lab prompts`.")],
    out: Annotated[Path, typer.Argument(help="Directory for answers and features; what it holds is kept and counted.")],
) -> None:
    """Let a target answer prompts as it is served, and write the features that all families of drafters read."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    from outrider_lab.training.answers import answer_prompts
    from outrider_proto.terminal.console import TerminalConsole

    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress("answer tokens", *columns, console=TerminalConsole(stderr=True)) as bar:
        task = bar.add_task("", total=options.tokens)
        files = answer_prompts(prompts, out, options, lambda files: bar.update(task, completed=files.tokens))
    show_line(f"{out}: {files.texts:,} texts, {files.tokens:,} answer tokens")


def _show(samples: Iterator[CorpusSample]) -> None:
    from outrider_proto.terminal.console import TerminalConsole

    console = TerminalConsole(highlight=False)
    for sample in samples:
        console.rule(sample.key, align="left")
        for message in sample.conversation():
            console.print(f"[bold]{message.role}[/]", end=": ", markup=True)
            console.print(message.content, markup=False)


def _write_shipped(out: Path) -> None:
    from outrider_lab.corpus.held_out import shipped_prompts

    try:
        out.write_bytes(shipped_prompts())
    except OSError as error:
        raise UsageError(f"out={out}: {error.strerror}") from None
