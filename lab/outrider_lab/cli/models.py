"""The commands `outrider-lab train` and `corpus`: the embedded models and the text that they are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from outrider_lab.corpus import CorpusSample, Split, generate
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
