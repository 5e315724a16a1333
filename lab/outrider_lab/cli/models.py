"""The commands `outrider-lab train` and `corpus`: the embedded models and the text that they are trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, cast

import typer

from outrider_lab.corpus import SPLITS, CorpusSample, generate
from outrider_models.core.held_out import FAMILIES, Family
from outrider_proto.errors import UsageError


def train_command(
    recipe: Annotated[str, typer.Option(help="Recipe of the lab, or a .toml file; trains on the corpus.")],
    out: Annotated[Path, typer.Option(help="Directory for the model, its log and its checkpoint.")],
    target: Annotated[
        str | None, typer.Option(help="Target to draft for, with the embedded one's tokenizer; default: that one.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(help="Start from a drafter's weights: directory, hub name, or name of one that ships."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in --out.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Time limit, decay included.")] = None,
) -> None:
    """Train a target or a drafter of the embedded models from a recipe."""
    from outrider_lab.training.recipe import RecipeOptions, train_recipe
    from outrider_models.core.embedded import drafter_source

    if minutes is not None and minutes <= 0:
        raise UsageError(f"--minutes {minutes}: need more than 0")
    options = RecipeOptions(recipe, out, target, start and drafter_source(start), minutes)
    train_recipe(options, resume=resume)


def corpus_command(
    family: Annotated[str, typer.Option(help=f"Family of samples: {', '.join(FAMILIES)}, or all.")] = "all",
    split: Annotated[str, typer.Option(help=f"Split of the corpus: {' or '.join(SPLITS)}.")] = "train",
    seed: Annotated[int, typer.Option(help="Random seed; the same seed gives the same samples.")] = 0,
    count: Annotated[int, typer.Option(help="Number of samples of each family.", min=1)] = 3,
    out: Annotated[Path | None, typer.Option(help="Write JSON lines to this file; show nothing.")] = None,
    shipped: Annotated[bool, typer.Option("--shipped", help="Write the held-out prompts that ship.")] = False,
) -> None:
    """Show generated samples, or write them as JSON lines."""
    if shipped:
        _write_shipped(out)
        return
    if family not in (*FAMILIES, "all"):
        raise UsageError(f"--family {family}: choose one of {', '.join(FAMILIES)}, all")
    if split not in SPLITS:
        raise UsageError(f"--split {split}: choose one of {', '.join(SPLITS)}")
    chosen = FAMILIES if family == "all" else (cast(Family, family),)
    samples = (s for name in chosen for s in generate(name, split, seed, count))
    if out:
        _write(samples, out)
    else:
        _show(samples)


def _write(samples: Iterator[CorpusSample], out: Path) -> None:
    try:
        with out.open("w") as file:
            for sample in samples:
                file.write(json.dumps(sample.as_dict()) + "\n")
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from None


def _show(samples: Iterator[CorpusSample]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for sample in samples:
        console.rule(sample.key, align="left")
        for message in sample.conversation():
            console.print(f"[bold]{message.role}[/]", end=": ")
            console.print(message.content, markup=False)


def _write_shipped(out: Path | None) -> None:
    from outrider_lab.corpus.held_out import shipped_prompts

    if out is None:
        raise UsageError("--shipped: need --out FILE")
    try:
        out.write_bytes(shipped_prompts())
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from None
